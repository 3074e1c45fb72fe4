"""A run in a program prints what the command prints, unless it is to be quiet."""

import re

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.train import Config, Sequential, main, run
from mpicoll.train.data import from_arrays
from mpicoll.train.driver.printer import Printer
from mpicoll.train.models import Dense

INPUTS = np.random.default_rng(0).standard_normal((60, 3))
ARRAYS = {"inputs": INPUTS, "labels": np.arange(60) % 3}


def small():
    return from_arrays("points", ARRAYS)


def without_times(text):
    """Lines without what the clock has measured."""
    return [re.sub(r"\d+\.\d\d? +\d+%|\d+\.\d s", "-", line) for line in text.splitlines()]


def test_it_prints_what_the_command_prints(capfd, tmp_path):
    np.savez(tmp_path / "points.npz", **ARRAYS)
    config = Config(dataset=str(tmp_path / "points.npz"), epochs=2, target_loss=0.0)
    run(config)
    in_a_program = capfd.readouterr()
    assert main(config, mpicoll.Intracomm(MPI.COMM_SELF)) == 0
    by_the_command = capfd.readouterr()
    lines = without_times(in_a_program.out)
    assert lines == without_times(by_the_command.out)
    assert lines[0].startswith("train points: softmax 3-3 in float32, 1 rank")
    assert sum(line.lstrip().startswith(("1 ", "2 ")) for line in lines) == 2
    assert lines[-1].startswith("test loss ")


def test_it_is_quiet_when_asked(capfd):
    run(Config(epochs=1), dataset=small(), quiet=True)
    assert capfd.readouterr() == ("", "")


def test_it_names_what_the_program_brings(capfd):
    model = Sequential([Dense(3)], (3,), "float32")

    def sign(weights, gradient, state, lr, step):
        weights -= lr * np.sign(gradient)

    run(Config(epochs=1), dataset=small(), model=model, optimizer=sign, schedule=lambda step: 0.1)
    first, second, *_ = capfd.readouterr().out.splitlines()
    assert first.startswith("train points: Sequential in float32")
    assert "sign with its own learning rates, seed 0" in second


def test_it_says_where_it_resumes(capfd, tmp_path):
    config = {"checkpoint": str(tmp_path), "resume": "auto"}
    run(Config(epochs=1, **config), dataset=small())
    assert "starts at step 1" in capfd.readouterr().out
    run(Config(epochs=1, **config), dataset=small())
    assert "nothing is left to train: all 1 epoch are done" in capfd.readouterr().out


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_for_standard_error(terminal, capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    run(Config(epochs=1), dataset=small())
    assert ("epoch 1" in capfd.readouterr().err) == terminal


def test_a_rank_that_trains_no_more_prints_nothing(capfd):
    printer = Printer(Config(epochs=1), None, None)
    result = run(Config(epochs=1), dataset=small(), quiet=True)
    printer.begin(small(), None, prints=True)
    printer.pause()
    printer.end(result)
    assert capfd.readouterr() == ("", "")
