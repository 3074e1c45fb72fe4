"""Searches in one process: what is tried, written down, gone on with, and shown."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from clouds import write_samples

from mpicoll.base.locks import Lock
from mpicoll.train import TrainingError, evaluate
from mpicoll.train.data import load
from mpicoll.train.driver import array_files, checkpointing
from mpicoll.train.search import jobs, methods, trials
from mpicoll.train.search.coordinator import Coordinator
from mpicoll.train.search.crews import Crew
from mpicoll.train.search.data import without_test
from mpicoll.train.search.loop import search
from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space


@pytest.fixture
def space(tmp_path):
    """Learning rates of which some are so high that no step is finite."""
    write_samples(tmp_path / "data.npz")
    text = f"""
[run]
dataset = "{tmp_path / "data.npz"}"
model = "mlp"
hidden = [8]
epochs = 4
batch = 16
schedule = "cosine"

[space]
lr = {{choice = [0.001, 0.05, 1e300]}}
momentum = {{uniform = [0.0, 0.9], points = 2}}
"""
    (tmp_path / "space.toml").write_text(text)
    return Space.read(tmp_path / "space.toml")


def options(tmp_path, **more):
    given = {"method": "asha", "trials": 9, "eta": 2, "out": str(tmp_path / "found")}
    return SearchOptions(**{**given, **more})


def lines(tmp_path):
    return trials.read(tmp_path / "found" / trials.FILE)


def same_decisions(tmp_path):
    records = lines(tmp_path)
    method = methods.make_method(*trials.machine(records))
    return trials.replay(tmp_path / "found", records, method)


@pytest.mark.parametrize("method", ["random", "grid", "asha", "pbt"])
def test_a_search_in_one_process(space, tmp_path, method):
    wanted = options(tmp_path, method=method, trials=None if method == "grid" else 6)
    found = search(space, wanted)
    records = lines(tmp_path)
    assert found.complete
    assert found.trials == 6
    told = [record for record in records if record["event"] == "told"]
    best = max((r for r in told if r["score"] is not None), key=lambda record: record["score"])
    assert (found.trial, found.trained) == (best["trial"], best["epochs"])
    assert found.validation == best["validation"]
    assert found.epochs == sum(record["event"] == "epoch" for record in records)
    # Those that cannot be trained have failed, with their words, and the others went on.
    asked = {(r["trial"], r["epochs"]): r["values"] for r in records if r["event"] == "asked"}
    for record in told:
        failed = asked[record["trial"], record["epochs"]]["lr"] == 1e300
        assert (record["score"] is None) == failed
        assert bool(record["failed"]) == failed
    assert found.failed
    assert all("skipped" in words or "finite" in words for words in found.failed.values())
    # The test set was seen once, by the best.
    assert [r["event"] for r in records if "test" in r] == ["winner"]
    assert found.test == evaluate(found.checkpoint).measures
    assert same_decisions(tmp_path) == len(asked)


def test_data_that_cannot_be_read_leave_no_search_behind(space, tmp_path):
    (tmp_path / "data.npz").rename(tmp_path / "elsewhere.npz")
    with pytest.raises(TrainingError, match="reading"):
        search(space, options(tmp_path))
    (tmp_path / "elsewhere.npz").rename(tmp_path / "data.npz")
    assert search(space, options(tmp_path, trials=2)).complete


def test_what_is_promoted_is_what_a_whole_run_is_after_as_many_epochs(space, tmp_path):
    """A pause and a resume change nothing, also where the learning rate changes."""
    slow = search(space, options(tmp_path, out=str(tmp_path / "asha"), trials=6))
    whole = search(
        space, options(tmp_path, out=str(tmp_path / "random"), trials=6, method="random")
    )
    values = {}
    for name in ("asha", "random"):
        for record in trials.read(tmp_path / name / trials.FILE):
            if record["event"] == "epoch":
                values.setdefault(name, {})[record["trial"], record["number"]] = record[
                    "validation"
                ]
    assert len(values["asha"]) < len(values["random"])
    assert all(values["random"][place] == found for place, found in values["asha"].items())
    assert slow.epochs == len(values["asha"])
    assert whole.epochs == len(values["random"])


def test_checkpoints_that_nobody_needs_are_removed(space, tmp_path):
    found = search(space, options(tmp_path))
    there = sorted(path.parent.parent.name for path in tmp_path.glob("found/*/*/step-*"))
    last = methods.make_method(*trials.machine(lines(tmp_path)))
    trials.replay(tmp_path, lines(tmp_path), last)
    assert set(there) <= {f"trial-{trial:04}" for trial in last.last()}
    assert len(there) <= len(last.last()) + 1
    assert any(str(path) == found.checkpoint for path in tmp_path.glob("found/*/*"))


def test_a_search_that_is_there_is_not_overwritten(space, tmp_path):
    search(space, options(tmp_path, trials=2))
    with pytest.raises(TrainingError, match="exists: continue with --resume"):
        search(space, options(tmp_path, trials=2))
    with pytest.raises(TrainingError, match="trials is 2 there and 3 now"):
        search(space, options(tmp_path, trials=3), resume=True)
    before = len(lines(tmp_path))
    found = search(space, options(tmp_path, trials=2), resume=True)
    assert found.complete
    assert [r["event"] for r in lines(tmp_path)[before:]] == ["search"]


@pytest.mark.parametrize("cut", [0.3, 0.8])
def test_a_search_goes_on_from_a_torn_file(space, tmp_path, cut, monkeypatch):
    """No job is lost or done twice, and what comes is what an undisturbed search finds."""
    with monkeypatch.context() as patch:
        # Checkpoints that were there when this was the end of the file.
        patch.setattr(Coordinator, "_tidy", lambda self: None)
        whole = search(space, options(tmp_path))
    decided = [r for r in lines(tmp_path) if r["event"] == "asked"]
    path = tmp_path / "found" / trials.FILE
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the torn line
        again = search(space, options(tmp_path), resume=True)
        records = lines(tmp_path)
    assert [r["event"] for r in records if r["event"] == "winner"] == ["winner"]
    asked = [r for r in records if r["event"] == "asked"]
    told = [(r["trial"], r["epochs"]) for r in records if r["event"] == "told"]
    assert len(set(told)) == len(told) == len(asked)
    # One group is told in one order, so the decisions are those of before.
    assert [trials.job_of(r) for r in asked] == [trials.job_of(r) for r in decided]
    assert (again.trial, again.test) == (whole.trial, whole.test)


def test_a_file_that_was_changed_is_named(space, tmp_path, command):
    search(space, options(tmp_path))
    path = tmp_path / "found" / trials.FILE
    done = command("search", tmp_path / "space.toml", "--output", tmp_path / "found", "--replay")
    assert (done.status, done.out.endswith("the same as were decided\n")) == (0, True)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    told = [r for r in records if r["event"] == "told" and r["score"] is not None]
    told[0]["score"] = 5.0 - told[0]["score"]
    for record in told[1:]:
        record["score"] = -record["score"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    done = command("search", tmp_path / "space.toml", "--output", tmp_path / "found", "--replay")
    assert done.status == 1
    assert "and the method gives Job" in done.err


def test_a_file_without_a_first_line_is_begun(space, tmp_path):
    """A full disk has made it, and kept what it should hold."""
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / trials.FILE).write_text('{"run":"2026')
    assert search(space, options(tmp_path, trials=2), resume=True).complete
    with pytest.warns(UserWarning, match="line 1 dropped"):
        assert same_decisions(tmp_path)


def test_a_full_disk_ends_the_search_and_no_trial_has_failed(space, tmp_path, monkeypatch):
    whole = search(space, options(tmp_path, out=str(tmp_path / "whole")))
    saved = held = 0

    def locked(path):
        nonlocal held
        held += 1
        if held == 5:
            raise OSError(28, "No space left on device")
        return Lock(path)

    def full(*arguments):
        nonlocal saved
        saved += 1
        if saved == 3:
            return None, OSError(28, "No space left on device")
        return write(*arguments)

    write = array_files.write
    with monkeypatch.context() as patch:
        patch.setattr(array_files, "write", full)
        words = "trial .: saving a checkpoint failed on rank 0: .* No space .*: mend that, and"
        with pytest.raises(TrainingError, match=words):
            search(space, options(tmp_path))
        patch.setattr(checkpointing, "Lock", locked)
        with pytest.raises(TrainingError, match=words.replace("saving", "looking for")):
            search(space, options(tmp_path), resume=True)
    assert not [r for r in lines(tmp_path) if r["event"] == "told" and "No space" in str(r)]
    found = search(space, options(tmp_path), resume=True)
    assert (found.trial, found.test, found.failed) == (whole.trial, whole.test, whole.failed)


def test_a_measure_that_is_not_finite_is_a_failure(space, tmp_path, monkeypatch):
    def spoilt(config, *arguments, **named):
        result = run(config, *arguments, **named)
        if "trial-0001" in config.checkpoint:
            result.history[-1].validation["loss"] = math.nan
        return result

    run = jobs.run
    monkeypatch.setattr(jobs, "run", spoilt)
    wanted = options(tmp_path, method="random", trials=4, measure="loss")
    found = search(space, wanted)
    assert found.failed[1] == "loss of the validation set is nan"
    assert found.trial not in (None, 1)
    again = search(space, wanted, resume=True)
    assert (again.trial, again.failed) == (found.trial, found.failed)


@pytest.mark.parametrize(
    ("event", "change", "words"),
    [
        ("asked", {"values": 3}, "values is 3"),
        ("asked", {"source": [0]}, "source is"),
        ("told", {"score": "high"}, "score is 'high'"),
        ("told", {"failed": 1}, "failed is 1"),
        ("told", {"seconds": "now"}, "seconds is 'now'"),
        ("winner", {"test": None}, "test is None"),
    ],
)
def test_a_line_that_lacks_what_it_should_say_is_dropped(tmp_path, event, change, words):
    found = [
        {"event": "search", "space": {}, "options": {}},
        {"event": "asked", "trial": 0, "values": {}, "epochs": 1, "source": None},
        {"event": "told", "trial": 0, "epochs": 1, "score": 1.0, "validation": {}, "failed": None},
        {"event": "winner", "trial": 0, "epochs": 1, "test": {}},
    ]
    wrong = [{"seconds": 1.0, **r, **(change if r["event"] == event else {})} for r in found]
    path = tmp_path / trials.FILE
    path.write_text("".join(json.dumps(record) + "\n" for record in wrong))
    with pytest.warns(UserWarning, match=f"dropped: .*{words}"):
        assert len(trials.read(path)) == 3


class Losing(Crew):
    """Two groups that train nothing; those named are lost once all have a job."""

    def __init__(self, lost):
        self.groups, self._lost, self.started, self._jobs = [0, 1], lost, [], {}

    def start(self, group, job):
        self.started.append((group, job.place))
        self._jobs[group] = job

    def poll(self, hear):
        if self._lost:
            group = self._lost.pop()
            self.groups.remove(group)
            del self._jobs[group]
            hear(group, {"is": "lost"})
            return
        job = self._jobs.pop(self.groups[0])
        hear(self.groups[0], {"is": "done", "score": -job.trial, "validation": {}, "failed": None})

    def stop(self):
        """Nobody has anything to stop."""


def test_the_job_of_a_lost_group_is_the_next_that_is_handed_out(space, tmp_path):
    found, crew = trials.Trials(tmp_path / "found", space, options(tmp_path), False), Losing([1])
    Coordinator(found, crew, tmp_path, lambda now: None).run()
    found.close()
    assert crew.started[:3] == [(0, (0, 1)), (1, (1, 1)), (0, (1, 1))]
    asked = [(r["trial"], r["epochs"]) for r in lines(tmp_path) if r["event"] == "asked"]
    told = [(r["trial"], r["epochs"]) for r in lines(tmp_path) if r["event"] == "told"]
    assert len(set(told)) == len(told) == same_decisions(tmp_path)
    assert sorted(told) == sorted(asked)
    assert [(r["group"], r["trial"]) for r in lines(tmp_path) if r["event"] == "lost"] == [(1, 1)]


def test_without_groups_there_is_no_search(space, tmp_path):
    found, crew = trials.Trials(tmp_path / "found", space, options(tmp_path), False), Losing([0, 1])
    with pytest.raises(TrainingError, match="every group has lost a rank"):
        Coordinator(found, crew, tmp_path, lambda now: None).run()
    found.close()
    assert search(space, options(tmp_path), resume=True).complete


def test_a_measure_that_no_run_has_is_refused(space, tmp_path):
    with pytest.raises(TrainingError, match="measure is 'r2', and runs on data measure accuracy"):
        search(space, options(tmp_path, measure="r2"))


def test_by_the_loss_the_lowest_is_best(space, tmp_path):
    found = search(space, options(tmp_path, measure="loss", method="random", trials=4))
    losses = [
        r["validation"]["loss"] for r in lines(tmp_path) if r["event"] == "told" and r["score"]
    ]
    assert found.validation["loss"] == min(losses)


def test_trials_see_no_test_set_and_a_validation_set_of_each_class(tmp_path):
    write_samples(tmp_path / "data.npz")
    dataset = load(str(tmp_path / "data.npz"))
    found = without_test(dataset, 10)
    assert [*found.parts] == ["train", "validation"]
    assert len(found.train_targets) + len(found.validation_targets) == len(dataset.train_targets)
    for label in range(4):
        there = np.count_nonzero(dataset.train_targets == label)
        assert np.count_nonzero(found.validation_targets == label) == there // 10
    assert without_test(found, 10).validation_inputs is found.validation_inputs


def test_a_search_on_the_command_line_and_its_page(space, tmp_path, command):
    words = ("--method", "asha", "--trials", "6", "--eta", "2", "--output", tmp_path / "found")
    done = command("search", tmp_path / "space.toml", *words)
    assert (done.status, done.err) == (0, "")
    assert "best: trial" in done.out
    assert "test loss" in done.out
    assert "failed" in done.out
    done = command("report", tmp_path / "found", "-o", tmp_path / "page.html")
    assert done.status == 0
    page = (tmp_path / "page.html").read_text()
    assert "Search of lr, momentum: asha" in page
    for name in ("values", "epochs", "best-by-time", "best-by-epochs"):
        assert f'data-name="{name}"' in page
    assert "group lost" not in page
    with open(tmp_path / "found" / trials.FILE, "a", encoding="utf-8") as file:
        file.write('{"event":"lost","group":1,"trial":2,"seconds":3.0}\n')
    assert command("report", tmp_path / "found", "-o", tmp_path / "page.html").status == 0
    assert "1 group lost" in (tmp_path / "page.html").read_text()


def test_a_live_table_shows_what_is_under_way(space, tmp_path, command, monkeypatch):
    monkeypatch.setattr("mpicoll.train.search.console._RATE", 1000)
    words = ("--trials", "3", "--output", tmp_path / "found", "--progress", "--json")
    done = command("search", tmp_path / "space.toml", *words)
    assert done.status == 0
    assert json.loads(done.out)["trials"] == 3
    assert "group 0" in done.err
    assert "best 1" in done.err


def test_no_trial_with_a_score_is_a_failure(tmp_path, command):
    write_samples(tmp_path / "data.npz")
    (tmp_path / "space.toml").write_text(
        f'[run]\ndataset = "{tmp_path / "data.npz"}"\n[space]\nlr = {{choice = [1e300]}}\n'
    )
    done = command(
        "search", tmp_path / "space.toml", "--trials", "2", "--output", tmp_path / "found"
    )
    assert done.status == 1
    assert "no trial has a score" in done.out


def started(tmp_path, *words):
    code = "import sys; from mpicoll.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "search", tmp_path / "space.toml", *words]
    return subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_signal_stops_a_search(space, tmp_path):
    words = ("--method", "asha", "--trials", "2000", "--eta", "2", "--output", tmp_path / "found")
    process = started(tmp_path, *words)
    path = tmp_path / "found" / trials.FILE
    while process.poll() is None and not (path.exists() and b'"told"' in path.read_bytes()):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "stopped by a signal: --resume continues" in said) == (75, True)
    told = sum(record["event"] == "told" for record in lines(tmp_path))
    assert 0 < told < 2000
    assert not [r for r in lines(tmp_path) if r["event"] == "winner"]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_command_on_a_group_stops_by_a_signal_and_goes_on(space, tmp_path, mpirun):
    out, group = tmp_path / "found", ("--ranks-per-trial", "2")
    words = ("search", tmp_path / "space.toml", "--method", "asha", "--eta", "2", *group)
    words += ("--trials", "12", "--output", out)
    job = mpirun.start(3, "-m", "mpicoll", *words)
    path = out / trials.FILE
    while job.poll() is None and not (path.exists() and b'"told"' in path.read_bytes()):
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    done = mpirun.finish(job, 80)
    assert done.status == 75
    assert "stopped by a signal: --resume continues" in done.err
    assert 0 < sum(record["event"] == "told" for record in lines(tmp_path)) < 20
    done = mpirun(3, "-m", "mpicoll", *words, "--resume", "--json", limit=80)
    assert done.status == 0, done.err
    assert json.loads(done.out)["trials"] == 12
    told = [(r["trial"], r["epochs"]) for r in lines(tmp_path) if r["event"] == "told"]
    assert len(set(told)) == len(told) == same_decisions(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["asha", "pbt"])
def test_killed_ten_times_no_trial_is_lost_or_done_twice(space, tmp_path, method):
    words = ("--method", method, "--trials", "40", "--eta", "2", "--output", tmp_path / "found")
    chance = random.Random(method)
    path = tmp_path / "found" / trials.FILE

    def written():
        return path.stat().st_size if path.exists() else 0

    for _ in range(10):
        enough = written() + chance.randint(300, 3000)
        process = started(tmp_path, *words, "--resume")
        while written() < enough:
            assert process.poll() is None, process.communicate()
            time.sleep(chance.uniform(0, 0.01))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    process = started(tmp_path, *words, "--resume")
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = lines(tmp_path)
    asked = [(r["trial"], r["epochs"]) for r in records if r["event"] == "asked"]
    told = [(r["trial"], r["epochs"]) for r in records if r["event"] == "told"]
    assert len(set(asked)) == len(asked)
    assert sorted(asked) == sorted(told)
    assert {trial for trial, _ in told} == set(range(40))
    assert same_decisions(tmp_path) == len(asked)
    # What was found is what a search finds that nobody disturbs.
    calm = search(space, options(tmp_path, method=method, trials=40, out=str(tmp_path / "calm")))
    scores = {(r["trial"], r["epochs"]): r["score"] for r in records if r["event"] == "told"}
    again = {
        (r["trial"], r["epochs"]): r["score"]
        for r in trials.read(tmp_path / "calm" / trials.FILE)
        if r["event"] == "told"
    }
    assert scores == again
    assert calm.complete
    assert jobs.folder_of(tmp_path / "found", (calm.trial, calm.trained)).is_dir()
