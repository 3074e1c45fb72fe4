"""Results on disk: whatever was finished is read back, whatever was torn is not."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from points import POINT, write

from mpicoll.bench import records
from mpicoll.bench.records import Run, Writer


def test_a_run_is_read_back(tmp_path):
    path = tmp_path / "a.jsonl"
    points = [POINT, replace(POINT, algorithm="native", wrong=None)]
    write(path, points)
    assert records.read(path) == [Run("r", {"format": 1, "ranks": 4}, points)]


def test_runs_are_appended(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, [POINT])
    write(path, [replace(POINT, run="s")], name="s")
    assert [(run.name, len(run.points)) for run in records.read(path)] == [("r", 1), ("s", 1)]


def test_the_same_run_twice_in_one_file_is_counted_once(tmp_path):
    """As by `cat a a`: twice as many times would make intervals narrower than they are."""
    path = tmp_path / "a.jsonl"
    points = [POINT, replace(POINT, algorithm="native"), replace(POINT, parameters={})]
    write(path, points)
    once = records.read(path)
    path.write_bytes(2 * path.read_bytes())
    assert records.read(path) == once
    # What has been measured again takes the place of what was there.
    write(path, [replace(POINT, times=(1e-6,), slowest=(0,))])
    (run,) = records.read(path)
    assert [len(point.times) for point in run.points] == [1, 3, 3]


def test_lines_say_what_a_reader_in_a_hurry_wants(tmp_path):
    write(tmp_path / "a.jsonl", [POINT])
    line = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1])
    assert line["time"] == 2e-6
    assert line["n"] == 3
    assert line["ci_lo"] is None
    assert line["times"] == [3e-6, 1e-6, 2e-6]


@given(data=st.data())
def test_a_file_cut_anywhere_keeps_its_finished_points(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    points = [replace(POINT, size=8 << i) for i in range(4)]
    write(path, points)
    whole = path.read_bytes()
    first = whole.index(b"\n", whole.index(b"\n") + 1)
    cut = data.draw(st.integers(first, len(whole)))
    path.write_bytes(whole[:cut])
    # A line that lacks nothing but its end of line is finished.
    finished = whole[: cut + 1].count(b"\n") - 1
    torn = cut < len(whole) and whole[:cut].splitlines()[-1] not in whole.splitlines()
    if torn:
        with pytest.warns(UserWarning, match="dropped: not complete JSON"):
            (run,) = records.read(path)
    else:
        (run,) = records.read(path)
    assert run.points == points[:finished]
    if torn:
        # A later run starts on a line of its own.
        write(path, [replace(POINT, run="s")], name="s")
        with pytest.warns(UserWarning, match=f"line {finished + 2} dropped"):
            runs = records.read(path)
        assert [len(run.points) for run in runs] == [finished, 1]


def test_a_killed_writer_leaves_what_it_finished(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, [POINT])
    code = f"""
import os, signal
from tests_point import POINT
from mpicoll.bench.records import Writer
writer = Writer({str(path)!r})
writer.point(POINT)
os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "tests_point.py").write_text(
        f"from mpicoll.bench.records import Point\nPOINT = {replace(POINT, size=8)!r}\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=30)
    assert done.returncode == -signal.SIGKILL
    (run,) = records.read(path)
    assert len(run.points) == 2


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "3",
        '{"record": "point", "run": "r"}',
        '{"record": "dance", "run": "r"}',
        '{"record": "point"}',
        json.dumps({**POINT.as_dict(), "times": []}),
    ],
)
def test_lines_that_are_no_record(tmp_path, line):
    path = tmp_path / "a.jsonl"
    write(path, [POINT])
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.warns(UserWarning, match="line 3 dropped"):
        (run,) = records.read(path)
    assert run.points == [POINT]


def test_a_file_of_something_else_is_told_of_once(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("import os\n\nprint(1)\nos.abort()\n")
    with (
        pytest.warns(UserWarning, match="line 1 and 2 lines after it dropped: not ") as caught,
        pytest.raises(ValueError, match="no measured point"),
    ):
        records.read(path)
    assert len(caught) == 1


def test_points_without_the_line_of_their_run(tmp_path):
    path = tmp_path / "a.jsonl"
    with Writer(path) as writer:
        writer.point(POINT)
    assert records.read(path) == [Run("r", {}, [POINT])]


@pytest.mark.parametrize("content", ["", "\n\n", '{"record":"run","run":"r"}\n'])
def test_a_file_without_points(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match="holds no measured point"):
        records.read(path)


def test_a_file_of_a_later_version(tmp_path):
    (tmp_path / "a").write_text('{"record":"run","run":"r","format":2}\n')
    with pytest.raises(ValueError, match="has a run of format 2, and this version reads up to 1"):
        records.read(tmp_path / "a")


def test_two_sweeps_do_not_write_to_one_file(tmp_path):
    with Writer(tmp_path / "a"), pytest.raises(OSError, match=r"process .* writes to it"):
        Writer(tmp_path / "a", patience=0.01)
    Writer(tmp_path / "a").close()


def test_a_full_disk_is_an_error_and_keeps_the_file():
    with Writer("/dev/full") as writer, pytest.raises(OSError, match="No space left"):
        writer.run("r", {})
