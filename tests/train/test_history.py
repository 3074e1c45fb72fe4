"""Metrics read again: phases, one trace of all ranks, a page; TensorBoard; stacks of all ranks."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import pytest
from clouds import clouds

from mpicoll.base.locks import Lock
from mpicoll.train import MLP, Config, TrainingError, history, run
from mpicoll.train.driver import metrics, predicted
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


def test_layers_that_are_gathered_have_rows_of_their_own(tmp_path):
    names = ("compute", "gather layer1", "gather layer2", "gather layer1", "reduce layer2")
    spans = [(name, 0.125 * k, 0.125 * k + 0.25) for k, name in enumerate(names)]
    write(tmp_path, 0, {"event": "run", "ranks": 1, "config": {}}, step(1, 12.0, spans))
    events = history.chrome(history.read(tmp_path))["traceEvents"]
    found = [(e["name"], e["tid"], e["cat"]) for e in events if e["ph"] == "X"]
    rows = dict(zip(names[1:], (1, 2, 1, 3), strict=True))
    assert found == [
        ("compute", 0, "step"),
        *((name, rows[name], "communication") for name in names[1:]),
    ]


def test_parts_are_means_of_steps(folder):
    found = history.read(folder)
    assert found.predicted == 0.25
    # The first step took 8 s until the second one began, of which nothing but its end is known.
    assert history.parts(found)[0] == {
        "loading": 0.0625,
        "compute": 0.5,
        "hidden": 0.25,
        "exposed": 0.125,
        "waiting": 0.0,
        "servers": 0.0,
        "update": 0.0,
        "other": ((8.0 - 0.6875) + 0.0625) / 2,
        "seconds": (8.0 + 0.75) / 2,
    }


def test_torn_and_wrong_lines_are_left_out_and_named(folder):
    with open(folder / "rank-1.jsonl", "a") as file:
        file.write('{"event": "st')
    with pytest.warns(UserWarning, match=r"rank-1\.jsonl, line 4 dropped: not complete JSON"):
        assert len(history.read(folder).steps[1]) == 1
    with open(folder / "rank-1.jsonl", "a") as file:
        file.write('\n{"event": "dance"}\n{"event": "step"}\n')
    with pytest.warns(UserWarning, match="dropped") as caught:
        assert len(history.read(folder).steps[1]) == 1
    assert [str(w.message).partition("jsonl, ")[2] for w in caught] == [
        "line 4 dropped: not complete JSON",
        "line 5 dropped: KeyError('dance')",
        "line 6 dropped: KeyError('number')",
    ]
    write(folder, 0)
    write(folder, 1)
    with pytest.raises(ValueError, match="has no run"):
        history.read(folder)


KILLED = """
import os, signal, sys
sys.path[:0] = [sys.argv[2]]
from clouds import clouds
from mpicoll.train import Config, run
def dies(step):
    if step.number == 27:
        os.kill(os.getpid(), signal.SIGKILL)
kept = {"metrics": sys.argv[1] + "/m", "checkpoint": sys.argv[1] + "/c"}
run(Config(batch=5, epochs=3, checkpoint_every=15, **kept), dataset=clouds(), on_step=dies)
"""


@pytest.fixture
def killed(tmp_path):
    """A run that was killed in step 27, with a checkpoint of step 15; and one that goes on."""
    here = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, here], check=False)
    assert done.returncode == -signal.SIGKILL
    kept = {"metrics": str(tmp_path / "m"), "checkpoint": str(tmp_path / "c")}
    return Config(batch=5, epochs=3, checkpoint_every=15, resume="auto", **kept)


def test_what_an_attempt_repeats_counts_once(killed, tmp_path):
    begun = []
    result = run(killed, dataset=clouds(), on_begin=begun.append)
    assert begun == [result.beginning]
    assert (result.beginning.step, result.beginning.attempt) == (15, 2)
    path = tmp_path / "m" / "rank-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    numbers = [line["number"] for line in lines if line["event"] == "step"]
    assert numbers == [*range(1, 28), *range(16, 64)]
    assert {line["run"] for line in lines} == {result.beginning.run}
    for _ in range(2):
        found = history.read(tmp_path / "m")
        assert [step["number"] for step in found.steps[0]] == [*range(1, 64)]
        assert {step["attempt"] for step in found.steps[0][15:]} == {2}
        assert [epoch["loss"] for epoch in found.epochs] == [e.loss for e in result.history]
        assert len(found.clocks[0]) == 4
        path.write_bytes(2 * path.read_bytes())  # the file twice in one


def test_an_attempt_replaces_steps_that_it_does_not_make(killed, tmp_path):
    """On fewer ranks, or ended earlier."""
    (tmp_path / "m" / "rank-1.jsonl").write_bytes((tmp_path / "m" / "rank-0.jsonl").read_bytes())
    run(replace(killed, steps=20), dataset=clouds())
    found = history.read(tmp_path / "m")
    assert {rank: len(steps) for rank, steps in found.steps.items()} == {0: 20, 1: 15}


def test_a_page_is_made_of_a_torn_file_that_was_gone_on_with(killed, tmp_path, command):
    pytest.importorskip("plotly")
    path = tmp_path / "m" / "rank-0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    run(killed, dataset=clouds())
    with pytest.warns(UserWarning, match=r"rank-0\.jsonl, line 31 dropped: not complete JSON"):
        done = command("report", tmp_path / "m", "-o", tmp_path / "run.html")
    assert done.status == 0, done.err
    assert "63 steps, 3 epochs" in (tmp_path / "run.html").read_text()


def test_a_second_kill_before_a_checkpoint_is_another_attempt(killed, tmp_path):
    def fails(step):
        raise ValueError(step.number)

    with pytest.raises(TrainingError):
        run(killed, dataset=clouds(), on_step=fails)
    assert run(killed, dataset=clouds()).beginning.attempt == 3
    assert len(history.read(tmp_path / "m").steps[0]) == 63


def test_another_run_in_the_folder_is_said_and_kept_apart(tmp_path):
    config = Config(batch=16, epochs=1, metrics=str(tmp_path))
    first = run(config, dataset=clouds()).beginning.run
    with pytest.warns(UserWarning, match=rf"has metrics of another run \({first}\); those of"):
        second = run(replace(config, epochs=2), dataset=clouds()).beginning.run
    said = f"metrics of 2 runs: this is {second}, the last; before it there were {first}"
    with pytest.warns(UserWarning, match=said):
        found = history.read(tmp_path)
    assert (found.config["epochs"], len(found.steps[0]), len(found.epochs)) == (2, 14, 2)


def test_another_job_in_the_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "Lock", partial(Lock, patience=0))
    held = Lock(tmp_path / "rank-0.jsonl")
    said = rf"opening the metrics failed on rank 0: .*process {os.getpid()} on .* writes to it"
    with pytest.raises(TrainingError, match=said):
        run(Config(metrics=str(tmp_path)), dataset=clouds())
    held.release()
    run(Config(batch=16, epochs=1, metrics=str(tmp_path)), dataset=clouds())
    assert os.listdir(tmp_path) == ["rank-0.jsonl"]


class Own(MLP):
    """A model of the user's own."""


class Plain:
    """An optimizer of the user's own."""

    slots = ()

    def update(self, weights, gradient, state, lr, number):
        weights -= lr * gradient


def test_a_page_has_the_names_of_what_a_program_brings(tmp_path):
    pytest.importorskip("plotly")
    from mpicoll.report import training

    config = Config(batch=16, epochs=1, metrics=str(tmp_path))
    own = {"model": Own((12, 4)), "optimizer": Plain()}
    run(config, dataset=replace(clouds(), name="my clouds"), **own)
    found = history.read(tmp_path)
    text = training.render(found)
    assert "Own on my clouds, 1 rank" in text and "Plain with lr 0.05" in text
    assert "mnist5k" not in text and "softmax" not in text
    absent = {"data", "context", "hidden", "channels", "layers", "width", "heads", "dropout"}
    absent |= {"momentum", "weight_decay"}
    assert set(found.config) == {field.name for field in fields(Config)} - absent


def test_data_that_the_configuration_names_keep_its_name(tmp_path):
    config = Config(dataset=str(tmp_path / "own.npz"))
    assert metrics.described(config, replace(clouds(), name="own"), None, None) == asdict(config)


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
        "loading samples",
        "computing",
    ]
    assert "Data servers" not in text
    assert "mlp on clouds, 1 rank<" in text
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"compute", "exchange", "update", "share", "bucket 0"} == {e["name"] for e in spans}
    assert min(e["ts"] for e in spans) == 0


def test_a_page_says_what_data_servers_did(folder):
    pytest.importorskip("plotly")
    from mpicoll.report import training

    config = {"strategy": "allreduce", "optimizer": "sgd", "lr": 0.1, "batch": 8, "seed": 0}
    config |= {"model": "mlp", "dataset": "digits", "dtype": "float64"}
    with open(folder / "rank-0.jsonl", "a") as file:
        file.write(json.dumps({"event": "run", "ranks": 3, "config": config}) + "\n")
    line = {"event": "served", "batches": 5, "samples": 40, "preparing": 0.25, "seconds": 2.0}
    lines = [json.dumps({**line, "attempt": attempt}) for attempt in (1, 2)]  # a run that went on
    (folder / "data-2.jsonl").write_text("\n".join(lines))
    found = history.read(folder)
    assert found.served == {2: {"batches": 10, "samples": 80, "preparing": 0.5, "seconds": 4.0}}
    text = training.render(found)
    assert "<h2>Data servers</h2>" in text and ">0.50<" in text and ">4.00<" in text


def trained(folder, **changes):
    config = {"model": "mlp", "batch": 16, "epochs": 2, "metrics": str(folder), **changes}
    run(Config(**config), dataset=clouds())
    return history.read(folder)


def test_runs_over_each_other(command, tmp_path):
    go = pytest.importorskip("plotly.graph_objects")
    folders = [tmp_path / "slow", tmp_path / "fast"]
    slow, _ = (trained(folder, lr=lr) for folder, lr in zip(folders, (0.01, 0.1), strict=True))
    done = command("report", *folders, "-o", tmp_path / "both.html")
    assert done.status == 0, done.err
    text = (tmp_path / "both.html").read_text()
    assert "<h1>Runs slow, fast</h1>" in text
    assert "<td>lr</td><td>0.01</td><td>0.1</td>" in text and "<td>batch</td>" not in text
    found = re.findall(r'<script type="application/json">(.*?)</script>', text)
    by_step, by_seconds, *_, times = (go.Figure(json.loads(figure)) for figure in found)
    assert [line.name for line in by_step.data] == ["slow", "fast"] == list(times.data[0].x)
    assert by_step.data[0].x == tuple(range(1, 15))
    assert by_step.data[0].y == by_seconds.data[0].y
    assert list(by_seconds.data[0].x) == list(history.elapsed(slow).values())
    whole = sum(bar.y[0] for bar in times.data)
    assert whole == pytest.approx(1e3 * history.mean_of_ranks(slow)["seconds"])


def test_a_page_begins_with_what_is_not_default(tmp_path):
    pytest.importorskip("plotly")
    from mpicoll.report import training

    found = trained(tmp_path / "mine", lr=0.25)
    own = training.changed(found)
    assert own["lr"] == "0.25" and own["dataset"] == "clouds" and "optimizer" not in own
    text = training.render(found)
    assert "<h1>mine: mlp on clouds, 1 rank</h1>" in text and f"run {found.run}" in text
    assert text.index("Differs from the default: ") < text.index("Where the time goes")


@pytest.mark.parametrize(
    ("predicted", "exposed", "hidden", "why"),
    [
        (1.0, [1.0] * 3, 0.0, "one after the other."),
        (9.0, [1.0] * 3, 0.0, "0.11 × the prediction, because several buckets"),
        (1.0, [1.0, 1.0, 9.0], 0.0, "3.7 × the prediction, because few steps are much slower"),
        (1.0, [1.0] * 3, 3.0, "75 % of it is hidden"),
        (1.0, [4.0] * 3, 0.0, "4 × the prediction, because the measured time includes ranks"),
        (None, [1.0], 0.0, "No prediction"),
    ],
)
def test_a_prediction_that_is_wrong_is_explained(folder, predicted, exposed, hidden, why):
    pytest.importorskip("plotly")
    from mpicoll.report import training

    found = history.read(folder)
    found.predicted = predicted
    one = found.steps[0][0]
    found.steps = {0: [{**one, "exposed": e, "hidden": hidden, "began": 0.0} for e in exposed]}
    assert why in training._predicted(found)


def test_what_a_shard_granted_is_counted():
    """Worker 1 is two steps ahead when it gets parameters for the third."""
    events = [("pull", 0, 0), ("pull", 1, 0), ("push", 1, 0), ("pull", 1, 1), ("push", 1, 1)]
    events += [("pull", 1, 2), ("push", 0, 0), ("send", 0, 1), ("leave", 1, 2), ("leave", 0, 1)]
    trace = [{"kind": k, "worker": w, "clock": c, "bound": 2} for k, w, c in events]
    trace.append({"kind": "change", "clock": 1, "bound": 3, "reason": "some"})
    assert history.granted(trace) == (3, 4, 1, 2, (2, 2))
    assert history.granted([{**trace[0], "bound": None}]).bound == (math.inf, math.inf)


RUNS_ON = """
import sys, time
sys.path[:0] = [sys.argv[2]]
from clouds import clouds
from mpicoll.train import Config, run
def slowly(step):
    if step.number == 3:
        print("on", flush=True)
        sys.stdin.readline()
run(Config(batch=16, epochs=1, metrics=sys.argv[1]), dataset=clouds(), on_step=slowly, quiet=True)
"""


def test_a_page_is_refreshed_while_the_run_goes_on(command, tmp_path, monkeypatch):
    """And is no longer when it has ended."""
    pytest.importorskip("plotly")
    from mpicoll.cli.commands import report

    metrics, page = tmp_path / "metrics", tmp_path / "run.html"
    words = [sys.executable, "-c", RUNS_ON, str(metrics), str(Path(__file__).parents[1])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    seen = []
    with subprocess.Popen(words, **pipes) as trains:
        assert trains.stdout.readline() == "on\n"

        def look(seconds):
            seen.append(page.read_text())
            if len(seen) == 2:
                trains.communicate("\n")

        monkeypatch.setattr(report.time, "sleep", look)
        done = command("report", metrics, "-o", page, "--watch")
    assert done.status == 0 and "again every 5 s" in done.out
    assert len(seen) == 2
    assert all('http-equiv="refresh" content="5"' in text for text in seen)
    assert all(" · 3 steps, " in text or " · 2 steps, " in text for text in seen)
    assert 'http-equiv="refresh"' not in page.read_text()
    assert "7 steps, 1 epoch" in page.read_text()


def test_runs_are_shown_with_runs_alone(command, folder):
    done = command("report", folder, "other.jsonl")
    assert "other.jsonl has no metrics of a training run" in done.err
    assert "--trace is of one training run" in command("report", folder, folder, "--trace", "t").err
    assert "--watch follows training runs" in command("report", "x.jsonl", "--watch").err
    assert "--trace needs a training run" in command("report", "x.jsonl", "--trace", "t").err


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
    assert names == ["compute", "exchange", "update", "share", "bucket 0"]
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
