"""Metrics read again: phases, one trace of all ranks, a page; TensorBoard; stacks of all ranks."""

import json
import re
import sys
from pathlib import Path

import pytest
from clouds import clouds

from mpicoll.train import Config, TrainingError, history, run
from mpicoll.train.driver import predicted
from mpicoll.train.records import Step


def write(folder, rank, *lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"rank-{rank}.jsonl").write_text(text)


def step(number, began, spans=(("compute", 0.0, 0.5), ("bucket 1", 0.25, 0.75))):
    return {
        "event": "step",
        "number": number,
        "epoch": 1,
        "loss": 1.0,
        "loading": 0.0625,
        "compute": 0.5,
        "hidden": 0.25,
        "exposed": 0.125,
        "waiting": 0.0,
        "began": began,
        "spans": spans,
    }


@pytest.fixture
def folder(tmp_path):
    """Two ranks whose clocks are 100 s apart at first, and 102 s after 20 s."""
    run_ = {"event": "run", "ranks": 2, "config": {"model": "mlp"}, "predicted": 0.25}
    ours = [{"event": "clock", "local": t, "ahead": 0.0} for t in (10.0, 30.0)]
    write(tmp_path, 0, run_, ours[0], step(1, 12.0), step(2, 20.0), ours[1])
    theirs = [{"event": "clock", "local": t, "ahead": a} for t, a in ((110.0, 100.0), (132.0, 102))]
    write(tmp_path, 1, theirs[0], step(1, 121.0), theirs[1])
    return tmp_path


def test_a_trace_has_the_times_of_one_clock(folder):
    events = history.chrome(history.read(folder))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["tid"], e["ts"] / 1e6, e["dur"] / 1e6) for e in spans] == [
        (0, 0, 0.0, 0.5),
        (0, 2, 0.25, 0.5),
        (0, 0, 8.0, 0.5),
        (0, 2, 8.25, 0.5),
        (1, 0, 8.0, 0.5),  # 121 - 101 is 20
        (1, 2, 8.25, 0.5),
    ]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["rank 0", "rank 1"]


def test_phases_are_means_of_steps(folder):
    found = history.read(folder)
    assert found.predicted == 0.25
    assert history.phases(found)[0] == {
        "loading": 0.0625,
        "compute": 0.5,
        "hidden": 0.25,
        "exposed": 0.125,
        "waiting": 0.0,
    }


def test_an_incomplete_last_line_is_left_out_and_a_wrong_one_named(folder):
    with open(folder / "rank-1.jsonl", "a") as file:
        file.write('{"event": "st')
    assert len(history.read(folder).steps[1]) == 1
    with open(folder / "rank-1.jsonl", "a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"rank-1\.jsonl, line 4 is no line of metrics"):
        history.read(folder)
    write(folder, 0)
    write(folder, 1)
    with pytest.raises(ValueError, match="has no run"):
        history.read(folder)


def test_a_run_as_a_page_and_a_trace(command, tmp_path):
    go = pytest.importorskip("plotly.graph_objects")
    metrics, page, trace = tmp_path / "metrics", tmp_path / "run.html", tmp_path / "trace.json"
    run(Config(model="mlp", batch=16, epochs=2, metrics=str(metrics)), dataset=clouds())
    done = command("report", metrics, "-o", page, "--trace", trace)
    assert done.status == 0, done.err
    text = page.read_text()
    figures = re.findall(r'<script type="application/json">(.*?)</script>', text)
    losses, accuracies, times = (go.Figure(json.loads(figure)) for figure in figures)
    assert len(losses.data[0].x) == 14 and losses.data[1].x == (7, 14) == accuracies.data[0].x
    assert [bar.name for bar in times.data[:2]] == [
        "reading or awaiting samples",
        "computing alone",
    ]
    assert "Data servers" not in text
    assert "mlp on mnist5k, 1 rank<" in text
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"compute", "exchange", "update", "bucket 0"} == {e["name"] for e in spans}
    assert min(e["ts"] for e in spans) == 0


def test_a_page_says_what_data_servers_did(folder):
    pytest.importorskip("plotly")
    from mpicoll.report import training

    config = {"strategy": "allreduce", "optimizer": "sgd", "lr": 0.1, "batch": 8, "seed": 0}
    config |= {"model": "mlp", "dataset": "digits", "dtype": "float64"}
    with open(folder / "rank-0.jsonl", "a") as file:
        file.write(json.dumps({"event": "run", "ranks": 3, "config": config}) + "\n")
    line = {"event": "served", "batches": 5, "samples": 40, "preparing": 0.25, "seconds": 2.0}
    (folder / "data-2.jsonl").write_text(2 * (json.dumps(line) + "\n"))  # a run that went on
    found = history.read(folder)
    assert found.served == {2: {"batches": 10, "samples": 80, "preparing": 0.5, "seconds": 4.0}}
    text = training.render(found)
    assert "<h2>Data servers</h2>" in text and ">0.50<" in text and ">4.00<" in text


def test_a_run_is_shown_alone(command, folder):
    done = command("report", folder, "other.jsonl")
    assert "2 paths, one a training run: give its folder alone" in done.err
    assert "--trace is of a training run" in command("report", "x.jsonl", "--trace", "t").err


def test_event_files_of_tensorboard(tmp_path):
    events = pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    from tensorboardX.event_file_writer import EventFileWriter
    from tensorboardX.proto import event_pb2

    assert events and EventFileWriter
    run(Config(batch=16, epochs=2, tensorboard=str(tmp_path)), dataset=clouds())
    (path,) = tmp_path.iterdir()
    data, found = path.read_bytes(), {}
    while data:  # length, checksum, record, checksum
        length = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
    assert found["step/loss"] == list(range(1, 15))
    assert found["epoch/test_accuracy"] == [7, 14]


def test_without_tensorboardx_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(TrainingError, match="needs the package tensorboardX: pip install"):
        run(Config(tensorboard=str(tmp_path)), dataset=clouds())


def test_one_process_predicts_nothing():
    assert predicted.seconds(None, "ring", [("allreduce", 8)]) is None


def test_a_bucket_is_a_number_or_left_to_the_model():
    assert predicted.bucket(None, "ring", 1000) is None
    with pytest.raises(ValueError, match="bucket is 'large': give a whole number"):
        Config(bucket="large")
    assert run(Config(bucket="model", batch=16, epochs=1), dataset=clouds()).steps == 7


def test_hang_after_is_above_zero():
    with pytest.raises(ValueError, match="hang_after is 0: give seconds above 0"):
        Config(hang_after=0)


def test_steps_say_when_they_began_and_what_was_done():
    seen: list[Step] = []
    run(Config(batch=16, epochs=1), dataset=clouds(), on_step=seen.append)
    assert sorted(s.began for s in seen) == [s.began for s in seen] and seen[0].began > 0
    names = [name for name, _, _ in seen[0].spans]
    assert names == ["compute", "exchange", "update", "bucket 0"]
    assert all(0 <= start <= end for s in seen for _, start, end in s.spans)


# --- stacks ---------------------------------------------------------------------------------------


def test_a_signal_to_one_rank_or_a_hang_shows_the_stacks_of_all(job):
    script = """
        import os, signal, time
        sys.path[:0] = [HERE]
        from clouds import clouds
        from mpicoll.train import Config, run
        def asks(step):
            if step.number == 3 and comm.rank == 1:
                os.kill(os.getpid(), signal.SIGUSR2)
        def first():
            run(Config(batch=8, epochs=8, hang_after=None), comm, dataset=clouds(), on_step=asks)
        first()
        time.sleep(0.5)
        def hangs(step):
            if step.number == 2 and comm.rank == 0:
                time.sleep(2)
        def second():
            run(Config(batch=8, epochs=1, hang_after=0.5), comm, dataset=clouds(), on_step=hangs)
        second()
        print("over", flush=True)
    """
    status, out, err = job(2, script.replace("HERE", repr(str(Path(__file__).parents[1]))))
    assert status == 0, err
    assert out.count("over") == 2
    assert "in asks" in err and "in first" in err
    assert "[rank 0] stacks: asked for by rank 1" in err
    assert re.search(r"\[rank \d\] stacks: no step has ended for \d+ s", err)
    assert "in hangs" in err and "in second" in err
