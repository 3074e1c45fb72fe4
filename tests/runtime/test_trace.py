"""Traces: what is written is read back, merged over ranks, and shown."""

import json

import pytest

from mpicoll.cli import main
from mpicoll.runtime import trace


@pytest.fixture
def path(tmp_path):
    """Traces of two ranks, the second of which hangs in its second call."""
    path = tmp_path / "trace"
    for rank in range(2):
        tracer = trace.Tracer(str(path), (rank, 2), "0.0", rank)
        call = tracer.call("allreduce", "ring")
        call.step("send", 1 - rank, 40, 0, 0, call._start)
        call.step("fold", None, 40, 0, 0, call._start)
        call.end(80)
        second = tracer.call("barrier", "dissemination")
        second.step("send", 1 - rank, 0, 0, 0, second._start)
        if rank == 0:
            second.end(0, ValueError("no luck"))
        trace._FILES.pop(str(path)).close()
    return path


def test_all_ranks_are_merged(path):
    steps = trace.read(path)
    assert [step["start"] for step in steps] == sorted(step["start"] for step in steps)
    assert {(s["rank"], s["call"], s["step"]) for s in steps} == {
        (0, 1, "send"), (0, 1, "fold"), (0, 1, "call"), (0, 2, "send"), (0, 2, "call"),
        (1, 1, "send"), (1, 1, "fold"), (1, 1, "call"), (1, 2, "send"),
    }  # fmt: skip
    assert all("peer" not in step for step in steps if step["step"] in ("fold", "call"))


def test_one_rank_alone(path):
    assert {step["rank"] for step in trace.read(f"{path}.1")} == {1}


def test_files_of_an_earlier_larger_job_are_left_out(path):
    path.with_suffix(".2").write_text("from last week")
    assert len(trace.read(path)) == 9


def test_an_incomplete_last_line_is_left_out(path):
    with open(f"{path}.1", "a") as file:
        file.write('{"comm": "0.0", "ca')
    assert len(trace.read(path)) == 9


def test_shown_call_by_call(path, capsys):
    assert main(["show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads == [
        "allreduce ring, 80 bytes (call 1 on 0.0)",
        "barrier dissemination, 0 bytes (call 2 on 0.0)",
    ]
    assert any("rank 1    send     0         40 bytes" in line for line in lines), lines
    assert sum("ValueError: no luck" in line for line in lines) == 1
    assert main(["show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == trace.read(path)


@pytest.mark.parametrize("text", ["", "nonsense\n", "[]\n", '{"ranks": 1}\n{"a": 1}\n'])
def test_what_is_no_trace_is_refused(tmp_path, text, capsys):
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(ValueError, match="is no trace"):
        trace.read(file)
    assert main(["show", str(file)]) == 2
    assert "is no trace" in capsys.readouterr().err


def test_no_file_and_no_algorithm_are_told_apart(tmp_path, capsys):
    assert main(["show", str(tmp_path / "missing")]) == 2
    assert "no trace can be read" in capsys.readouterr().err
    assert main(["show", "allreduce"]) == 2
    assert "name an algorithm of allreduce too" in capsys.readouterr().err
