"""What a person sees of a run: how far a long epoch is, where it resumes, and what is left."""

from types import SimpleNamespace

import pytest

from mpicoll.train import Config
from mpicoll.train.driver import printer, progress
from mpicoll.train.records import Beginning, Epoch, Step

REST = {"test": {}, "communication": 0.25, "skipped": 0, "compute": (1.0,)}


def test_long_epochs_write_a_line_now_and_then(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    on_step = progress.beats()
    for epoch, position in [*((1, step) for step in range(1, 11)), (2, 4), (2, 5)]:
        on_step(SimpleNamespace(epoch=epoch, position=position, of=10))
        now[0] += 20
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1: step 3 of 10, 140 s left",
        "epoch 1: step 5 of 10, 100 s left",
        "epoch 1: step 7 of 10, 60 s left",
        "epoch 1: step 9 of 10, 20 s left",
    ]


def test_a_bar_may_begin_in_the_middle_of_an_epoch(capsys, monkeypatch):
    """As where the rank that drew it has died."""
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0)
    with progress.progress_bar() as on_step:
        on_step(SimpleNamespace(epoch=3, position=6, of=8))
        assert "epoch 3" in (said := capsys.readouterr().err) and "75%" in said
        on_step(SimpleNamespace(epoch=3, position=8, of=8))
    assert "100%" in capsys.readouterr().err


def test_the_rank_that_prints_shows_progress():
    steps = []
    prints = printer.Printer(Config(), None, steps.append)
    step = Step.__new__(Step)
    for first in (False, True):
        prints.begin(None, None, first)
        prints.add(step)
        assert len(steps) == first
    prints.pause()
    prints.add(step)
    assert steps == [step]


@pytest.mark.parametrize(
    ("given", "epoch", "step", "words"),
    [
        ({}, 2, 4, "resumed from kept/step-4, epoch 2 (attempt 2)"),
        ({}, 4, 12, "all 3 epochs are done; raise --epochs to train on"),
        ({"steps": 4}, 2, 4, "all 4 steps are done; raise --steps to train on"),
    ],
)
def test_where_a_run_resumes_and_what_is_left(given, epoch, step, words):
    begin = Beginning(run="r", attempt=2, step=step, epoch=epoch, checkpoint="kept/step-4")
    said = printer.resumed(Config(epochs=3, checkpoint="kept", **given), begin)
    assert words in said and said.startswith("resumed from kept/step-4, epoch ")
    assert ("nothing is left to train" in said) == ("done" in words)


def test_a_comparison_says_the_speed_up():
    verdict = {"seconds": 8.0, "speed_up": 3.2, "largest": 1e-16, "array": "w", "limit": 1e-12}
    facts = {
        "validation": {"loss": 0.5},
        "test": {},
        "seconds": 2.5,
        "ranks": 4,
        "communication_a_step": {"measured": 0.0, "predicted": None},
        "difference_from_one_process": {**verdict, "ok": True},
    }
    lines = printer.conclusion(facts).splitlines()
    assert lines[1] == "one process takes 8.0 s: a speed-up of 3.20 on 4 ranks"


@pytest.mark.parametrize(("train", "lines"), [({}, 2), ({"loss": 0.25, "accuracy": 0.5}, 3)])
def test_the_table_of_epochs_fits_80_columns(train, lines):
    held = {"loss": 12.3456, "accuracy": 0.5}
    epoch = Epoch(number=12, loss=0.125, train=train, validation=held, seconds=123.25, **REST)
    table = printer._Table()
    first = table.lines(epoch).splitlines()
    assert len(first) == lines and max(map(len, first)) <= 80
    assert {"validation", "accuracy", "exposed"} <= set(" ".join(first[:-1]).split())
    assert table.lines(epoch) == first[-1]  # heads are said once
    assert {"12", "0.1250", "12.3456", "0.5000", "123.25"} <= set(first[-1].split())
