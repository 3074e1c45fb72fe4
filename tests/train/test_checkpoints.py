"""Checkpoints: whole or not there, and a run that goes on is the run that was not stopped."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from kept import rewrite, write_first_format

from mpicoll.base.locks import Lock
from mpicoll.cli import main
from mpicoll.train import Dataset, TrainingError, run
from mpicoll.train.driver import array_files, checkpointing, checkpoints, parity
from mpicoll.train.ranks import signals


def blobs(samples=50):
    generator = np.random.default_rng(3)
    labels = np.arange(2 * samples) % 3
    inputs = 2 * np.eye(3, 4)[labels] + generator.standard_normal((2 * samples, 4))
    return Dataset(
        "blobs", 3, inputs[:samples], labels[:samples], inputs[samples:], labels[samples:]
    )


def test_a_failure_while_saving_ends_the_run_and_leaves_what_was_there(tmp_path, monkeypatch):
    config = Config(batch=10, epochs=1, checkpoint=str(tmp_path))
    run(config, dataset=blobs())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_files, "host", full)
    said = r"saving a checkpoint failed on rank 0: OSError: .* No space .*rank-0\.arrays'"
    with pytest.raises(TrainingError, match=said):
        run(replace(config, resume="auto", epochs=2), dataset=blobs())
    assert sorted(os.listdir(tmp_path)) == ["best", "step-00000005"]


def test_an_optimizer_that_keeps_other_arrays_cannot_go_on(tmp_path):
    """By itself, rank 0 would look for what is not there while the others wait."""
    common = {"batch": 10, "optimizer": "momentum", "checkpoint": str(tmp_path)}
    run(Config(momentum=0.0, epochs=1, **common), dataset=blobs())
    with pytest.raises(
        TrainingError, match=r"state of the optimizer is \[\] there and \['velocity"
    ):
        run(Config(momentum=0.9, epochs=2, resume="auto", **common), dataset=blobs())


def test_a_used_folder_is_warned_of(tmp_path):
    config = Config(batch=10, epochs=1, checkpoint=str(tmp_path))
    run(config, dataset=blobs())
    with pytest.warns(UserWarning, match="step-00000005 is of a later step than 0"):
        run(config, dataset=blobs())


def test_another_job_with_the_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "Lock", partial(Lock, patience=0))
    config = Config(batch=10, epochs=1, checkpoint=str(tmp_path))
    held = Lock(tmp_path)
    said = rf"looking for a checkpoint failed on rank 0: .*process {os.getpid()} on .* writes to it"
    with pytest.raises(TrainingError, match=said):
        run(config, dataset=blobs())
    held.release()
    run(config, dataset=blobs())
    assert sorted(os.listdir(tmp_path)) == ["best", "step-00000005"]


def test_a_jump_of_the_learning_rate_is_said(tmp_path):
    config = {"batch": 10, "schedule": "cosine", "lr": 0.1, "checkpoint": str(tmp_path)}
    run(Config(epochs=2, **config), dataset=blobs())
    with pytest.warns(UserWarning, match="later step than 0"):
        halted = run(Config(epochs=2, **config), dataset=blobs(), on_step=lambda s: s.number == 5)
    assert halted.steps < 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the end, and the rates follow each other
        run(Config(epochs=2, resume="auto", **config), dataset=blobs())
    said = "learning rate goes from 0.00244717 in step 10 to 0.05 in step 11, because this run has"
    rates = []
    with pytest.warns(UserWarning, match=said):
        run(
            Config(epochs=4, resume="auto", **config),
            dataset=blobs(),
            on_step=lambda step: rates.append(step.lr),
        )
    assert rates[0] == pytest.approx(0.05)


@pytest.mark.parametrize("fact", ["epoch", "number", "scale", "history"])
def test_a_manifest_that_lacks_something_is_refused(tmp_path, fact):
    config = Config(batch=16, epochs=1, checkpoint=str(tmp_path))
    run(config, dataset=blobs())
    rewrite(tmp_path / "step-00000004", lambda facts, _: facts.pop(fact))
    with pytest.raises(TrainingError, match=rf"on rank 0: ValueError: .*{fact} is"):
        run(replace(config, resume="auto", epochs=2), dataset=blobs())


def test_where_a_run_goes_on_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", inputs=np.eye(30, 8), labels=np.arange(30) % 3)
    command = ["train", "./own.npz", "--batch", "6", "--checkpoint", "kept", "--resume", "auto"]
    assert main([*command, "--epochs", "1"]) == 0
    assert "no checkpoint in kept: starts at step 1\nepoch " in capsys.readouterr().out
    assert main([*command, "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    assert "resumed from kept/step-00000004, epoch 2 (attempt 2)\nepoch " in said
    assert main([*command, "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    assert "nothing is left to train: all 2 epochs are done; raise --epochs to train on" in said
    assert main([*command, "--epochs", "3", "--json"]) == 0
    beginning = json.loads(capsys.readouterr().out)["beginning"]
    assert (beginning["step"], beginning["epoch"], beginning["attempt"]) == (8, 3, 3)


def test_no_checkpoint_is_named(tmp_path):
    with pytest.raises(TrainingError, match="holds no checkpoint"):
        run(Config(resume=str(tmp_path)), dataset=blobs())


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd"},
        {"optimizer": "adam", "accumulate": 2, "dropout": 0.3, "model": "mlp"},
        {"wire": "topk:0.2"},
        {"schedule": "cosine", "warmup": 5},
        {"dtype": "float16", "lr": 0.01},
    ],
    ids=lambda changes: next(iter(changes.values())),
)
def test_a_run_goes_on_in_the_middle_of_an_epoch_to_the_bit(tmp_path, changes):
    data = blobs()
    config = {"batch": 4, "epochs": 4, "checkpoint_every": 12, **changes}
    whole, seen = [], []
    reference = run(Config(**config), dataset=data, on_step=lambda s: whole.append(s.loss))

    def halt(step):
        seen.append(step.loss)
        if step.number == 17:
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = run(Config(checkpoint=str(tmp_path), **config), dataset=data, on_step=halt)
    assert stopped.stopped == "signal"
    on = Config(checkpoint=str(tmp_path), resume="auto", **config)
    resumed = run(on, dataset=data, on_step=lambda s: seen.append(s.loss))
    assert seen == whole  # no batch twice, none left out
    for name, array in reference.parameters.items():
        assert np.array_equal(array, resumed.parameters[name])
    assert [e.loss for e in resumed.history] == [e.loss for e in reference.history]
    assert run(on, dataset=data).steps == reference.steps  # there is nothing left to do


def test_a_checkpoint_at_the_end_of_each_epoch(tmp_path):
    run(Config(batch=16, epochs=3, checkpoint=str(tmp_path), keep=5), dataset=blobs())
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == ["step-00000004", "step-00000008", "step-00000012"]
    assert (tmp_path / "best").exists()
    _, facts = checkpoints.load(tmp_path / names[0])
    assert (facts["epoch"], facts["position"], len(facts["history"])) == (2, 0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adam"}, "optimizer is momentum there and adam in this run"),
        ({"batch": 8}, "samples in a step is 16 there and 8"),
        ({"seed": 1}, "seed is 0 there and 1"),
        (
            {"model": "mlp"},
            r"layer1.weight is float64 of shape \[4, 3\] there and float64 of shape \[4, 64\]",
        ),
        ({"model": "mlp", "hidden": (3,)}, "parameter layer2.weight is missing there and float64"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, changes, message):
    config = {"batch": 16, "epochs": 1}
    run(Config(checkpoint=str(tmp_path), **config), dataset=blobs())
    with pytest.raises(TrainingError, match=message):
        run(Config(resume=str(tmp_path), **{**config, **changes}), dataset=blobs())


def test_a_damaged_checkpoint_ends_the_run(tmp_path):
    run(Config(batch=16, epochs=1, checkpoint=str(tmp_path)), dataset=blobs())
    (tmp_path / "step-00000004" / "rank-0.arrays").write_bytes(b"")
    with pytest.raises(TrainingError, match=r"rank-0\.arrays is damaged: it has 0 bytes"):
        run(Config(batch=16, resume=str(tmp_path)), dataset=blobs())


class Several:
    """A model of six arrays of 2 MB that computes next to nothing."""

    SHAPE = (500, 500)

    def initial_parameters(self, seed):
        return {f"w{k}": np.full(self.SHAPE, k / 8) for k in range(6)}

    def loss_and_gradients(self, parameters, batch):
        return 0.0, {name: np.full(self.SHAPE, 1e-3) for name in parameters}

    def losses_and_outputs(self, parameters, inputs, labels):
        return np.zeros(len(labels)), np.zeros((len(labels), 3))


def test_a_checkpoint_takes_the_memory_of_its_largest_array(tmp_path, monkeypatch):
    peaks = {"save": [], "restore": []}

    def measured(name, method):
        def call(*arguments):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            found = method(*arguments)
            peaks[name].append(tracemalloc.get_traced_memory()[1] - before)
            return found

        return call

    for name in peaks:
        method = getattr(checkpointing.Checkpointing, name)
        monkeypatch.setattr(checkpointing.Checkpointing, name, measured(name, method))
    config = Config(batch=50, epochs=1, optimizer="adam", checkpoint=str(tmp_path), dtype="float64")
    run(config, dataset=blobs(), model=Several())  # imports what is imported at the first time
    tracemalloc.start()
    try:
        for epochs in (2, 3):
            again = replace(config, resume="auto", epochs=epochs)
            result = run(again, dataset=blobs(), model=Several())
    finally:
        tracemalloc.stop()
    largest = 8 * 500 * 500
    assert result.steps == 3
    kept = sum(path.stat().st_size for path in (tmp_path / "step-00000003").glob("*.arrays"))
    assert kept == 6 * 3 * largest
    # From where the arrays are, and to where they are, without copies.
    assert max(peaks["restore"]) <= 0.2 * largest
    assert max(peaks["save"]) <= 0.2 * largest


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": "adam", "model": "mlp"}, {"wire": "topk:0.2"}, {"optimizer": "sgd"}],
    ids=["adam", "topk", "sgd"],
)
def test_format_1_goes_on_as_format_2_does(tmp_path, changes):
    config = {"batch": 4, "epochs": 3, "checkpoint_every": 12, "dtype": "float64", **changes}
    saved = Config(checkpoint=str(tmp_path / "new"), **config)
    run(saved, dataset=blobs(), on_step=lambda step: step.number == 15)
    path = checkpoints.find(tmp_path / "new")
    old = write_first_format(tmp_path / "old" / path.name, *checkpoints.load(path))
    assert sorted(os.listdir(old)) == ["arrays.npz", "manifest.json"]
    results = [run(Config(resume=str(p), **config), dataset=blobs()) for p in (path, old)]
    assert results[0].steps == results[1].steps == 39
    for name, array in results[0].parameters.items():
        assert np.array_equal(array, results[1].parameters[name])


def test_a_checkpoint_that_an_older_mpicoll_wrote_goes_on():
    """Written before there was a format 2: in the middle of the second epoch, with momentum."""
    folder = Path(__file__).parent / "format_1"
    config = {"batch": 8, "epochs": 3, "model": "mlp", "hidden": (5,), "dtype": "float64"}
    resumed = run(Config(resume=str(folder), **config), dataset=blobs())
    assert (resumed.beginning.step, resumed.beginning.epoch, resumed.steps) == (10, 2, 21)
    assert resumed.history[0].test == {"accuracy": 0.32}
    differences = parity.differences(
        resumed.parameters, run(Config(**config), dataset=blobs()).parameters
    )
    assert max(differences.values()) <= 1e-12


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_checkpoint_of_format_1_is_refused(tmp_path, damage):
    arrays = {"parameter/w": np.arange(6.0), "state/velocity/w": np.ones(6)}
    path = write_first_format(tmp_path / "step-00000001", arrays, {"epoch": 1})
    loaded, _ = checkpoints.load(path)
    assert loaded.keys() == arrays.keys()
    data = (path / "arrays.npz").read_bytes()
    (path / "arrays.npz").unlink()
    if damage != "missing":
        left = data[:-30] if damage == "truncated" else data[:160] + b"x" + data[161:]
        (path / "arrays.npz").write_bytes(left)
    with pytest.raises(ValueError, match=r"arrays\.npz is (missing or )?damaged.*take another"):
        checkpoints.load(path)


KILLED = """
import os, signal, sys
from mpi4py import MPI
import mpicoll
sys.path.insert(0, sys.argv[2])
from clouds import clouds
from float64 import Config
from mpicoll.train import Config, run
from mpicoll.train.driver import array_files

host = array_files.host
comm = mpicoll.Intracomm(MPI.COMM_WORLD)
saves = 0

def begin(epoch):
    global saves
    saves += 1

def dies(values):
    if saves == 2 and comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return host(values)

array_files.host = dies
config = Config(batch=16, epochs=4, strategy="zero1", checkpoint=sys.argv[1], dtype="float64")
run(config, comm, dataset=clouds(), on_epoch=begin)
"""


def test_a_rank_that_is_killed_while_it_writes_leaves_the_checkpoint_before(mpirun, tmp_path):
    program, folder = tmp_path / "program.py", tmp_path / "kept"
    program.write_text(KILLED)
    done = mpirun(2, program, folder, Path(__file__).parent.parent)
    assert done.status != 0
    assert any(path.name.startswith(".step-00000014") for path in folder.iterdir())
    assert checkpoints.find(folder).name == "step-00000007"
    on = Config(batch=16, epochs=2, checkpoint=str(folder), resume="auto", dtype="float64")
    assert run(on, dataset=clouds()).beginning.step == 7
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["best", "step-00000007", "step-00000014"]


def test_a_signal_that_comes_as_a_run_ends_stops_the_search_around_it():
    asked = []
    before = signal.getsignal(signal.SIGTERM)
    with signals.heard(lambda: asked.append("search")):
        with signals.heard(lambda: asked.append("run")):
            signal.raise_signal(signal.SIGTERM)
        assert asked == ["run", "search"]
        signal.raise_signal(signal.SIGTERM)
    assert asked == ["run", "search", "search"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_mean_what_they_did_before_a_run():
    during = []

    def now():  # to Python, and to the system, as MPICH's own handler of SIGUSR1
        actions = {number: signals._action(number) for number in signals.SIGNALS}
        return [(signal.getsignal(n), signals._address(action)) for n, action in actions.items()]

    before = now()
    run(Config(batch=16, epochs=1), dataset=blobs(), on_step=lambda step: during.append(now()))
    assert now() == before and during[0] != before


def test_a_handler_that_is_not_pythons_is_left_alone():
    program = (
        "import faulthandler, os, signal\n"
        "from mpicoll.train import Config, run\n"
        "faulthandler.register(signal.SIGUSR1)\n"
        "print(run(Config(steps=1), quiet=True).steps)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "line 5 in <module>" in done.stderr


def test_a_rank_shows_its_stacks_when_asked():
    program = (
        "import os, signal\n"
        "from mpicoll.train import Config, run\n"
        "def here(step):\n"
        "    os.kill(os.getpid(), signal.SIGUSR2)\n"
        "print(run(Config(steps=1), on_step=here, quiet=True).steps)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "in here" in done.stderr and "in _note" in done.stderr


def test_resume_auto_wants_a_folder():
    with pytest.raises(ValueError, match="give checkpoint"):
        Config(resume="auto")


def test_a_signal_to_one_rank_ends_all_with_one_status(mpirun, tmp_path):
    """As a batch system sends it: the command, three ranks, a checkpoint to go on from."""
    np.savez(tmp_path / "data.npz", inputs=np.eye(30, 8), labels=np.arange(30) % 3)
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys\n"
        "from mpi4py import MPI\n"
        "import mpicoll\n"
        "from mpicoll.train import Config, main\n"
        "from mpicoll.train.strategies.lockstep import Trainer\n"
        "step = Trainer.step\n"
        "def counted(self, *a):\n"
        "    if self.number == 5 and MPI.COMM_WORLD.rank == 1:\n"
        "        os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    return step(self, *a)\n"
        "Trainer.step = counted\n"
        f"config = Config(dataset={str(tmp_path / 'data.npz')!r}, batch=6, epochs=3, "
        f"checkpoint={str(tmp_path / 'kept')!r})\n"
        "sys.exit(main(config, mpicoll.Intracomm(MPI.COMM_WORLD)))\n"
    )
    done = mpirun(3, program)
    assert done.status == 75, done.err
    assert "stopped by a signal after step 6: see" in done.err
    assert checkpoints.find(tmp_path / "kept").name == "step-00000006"


def test_a_rank_that_raises_ends_the_launch_soon(mpirun, tmp_path):
    np.savez(tmp_path / "data.npz", inputs=np.eye(30, 8), labels=np.arange(30) % 3)
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from mpi4py import MPI\n"
        "import mpicoll\n"
        "from mpicoll.train import MLP, Config, main\n"
        "from mpicoll.train.driver import preparation\n"
        "class Bad(MLP):\n"
        "    def push_gradients(self, *a):\n"
        "        if MPI.COMM_WORLD.rank == 2:\n"
        "            raise OSError('the disk is on fire')\n"
        "        return super().push_gradients(*a)\n"
        "preparation.make_model = lambda config, dataset: Bad((8, 3))\n"
        f"config = Config(dataset={str(tmp_path / 'data.npz')!r}, epochs=3)\n"
        "sys.exit(main(config, mpicoll.Intracomm(MPI.COMM_WORLD)))\n"
    )
    start = time.monotonic()
    done = mpirun(3, program)
    assert done.status == 1
    assert time.monotonic() - start < 30  # of which most is the start of Python and MPI
    assert done.err.count("failed on rank 2: OSError: the disk is on fire") == 1
