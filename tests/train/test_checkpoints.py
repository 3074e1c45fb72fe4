"""Checkpoints: whole or not there, and a run that goes on is the run that was not stopped."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from float64 import Config

from mpicoll.base.locks import Lock
from mpicoll.cli import main
from mpicoll.train import Dataset, TrainingError, run
from mpicoll.train.driver import checkpointing, checkpoints

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(2, np.float32)}


def blobs(samples=50):
    generator = np.random.default_rng(3)
    labels = np.arange(2 * samples) % 3
    inputs = 2 * np.eye(3, 4)[labels] + generator.standard_normal((2 * samples, 4))
    return Dataset(
        "blobs", 3, inputs[:samples], labels[:samples], inputs[samples:], labels[samples:]
    )


def test_what_is_saved_is_loaded(tmp_path):
    path = checkpoints.save(tmp_path / "new" / "runs", 7, ARRAYS, {"epoch": 2}, best=False)
    assert path.name == "step-00000007"
    arrays, facts = checkpoints.load(checkpoints.find(tmp_path / "new" / "runs"))
    assert facts["epoch"] == 2
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array) and arrays[name].dtype == array.dtype


def test_the_last_k_and_the_best_are_kept(tmp_path):
    for step in range(1, 7):
        checkpoints.save(tmp_path, step, ARRAYS, {}, best=step == 2)
        checkpoints.prune(tmp_path, 2, step)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best", "step-00000002", "step-00000005", "step-00000006"]
    assert (tmp_path / "best").read_text() == "step-00000002\n"


def test_a_step_is_saved_again_in_place_of_the_old(tmp_path):
    checkpoints.save(tmp_path, 1, ARRAYS, {"run": 1}, best=False)
    checkpoints.save(tmp_path, 1, ARRAYS, {"run": 2}, best=False)
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_checkpoints_of_later_steps_are_of_another_run_and_stay(tmp_path):
    for step in (500, 600, 450, 460, 470):
        checkpoints.save(tmp_path, step, ARRAYS, {}, best=False)
    checkpoints.prune(tmp_path, 2, 470)
    names = [f"step-{step:08}" for step in (460, 470, 500, 600)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [path.name for path in checkpoints.later(tmp_path, 470)] == names[2:]


def test_a_kill_while_a_step_is_saved_again_leaves_what_was_saved_before(tmp_path):
    checkpoints.save(tmp_path, 1, ARRAYS, {"run": 1}, best=True)
    (tmp_path / "step-00000001").rename(tmp_path / ".old-step-00000001")  # killed here
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 1
    checkpoints.prune(tmp_path, 1, 1)
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 1
    checkpoints.save(tmp_path, 2, ARRAYS, {"run": 2}, best=False)
    checkpoints.prune(tmp_path, 1, 2)
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 2
    checkpoints.save(tmp_path, 1, ARRAYS, {"run": 3}, best=False)
    assert not list(tmp_path.glob(".old*"))


def test_a_step_that_cannot_be_saved_again_stays(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, 1, ARRAYS, {"run": 1}, best=False)
    rename = Path.rename

    def refuse(path, target):
        if path.name.startswith(".step-"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(tmp_path, 1, ARRAYS, {"run": 2}, best=False)
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from mpicoll.train.driver import checkpoints

owner, name = (np, "savez") if sys.argv[2] == "savez" else (checkpoints, sys.argv[2])
real, left = getattr(owner, name), int(sys.argv[3])

def dies(*arguments, **more):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **more)

setattr(owner, name, dies)
checkpoints.save(Path(sys.argv[1]), 2, {"a": np.ones(3)}, {}, best=False)
"""


@pytest.mark.parametrize(
    ("moment", "call"), [("savez", 1), ("_digest", 1), *(("synchronise", k) for k in (1, 2, 3))]
)
def test_a_kill_while_saving_leaves_the_checkpoint_before(tmp_path, moment, call):
    checkpoints.save(tmp_path, 1, ARRAYS, {}, best=False)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, moment, str(call)], check=False)
    assert done.returncode == -signal.SIGKILL
    found = checkpoints.find(tmp_path)
    assert found.name == "step-00000001"
    assert checkpoints.load(found)[0].keys() == ARRAYS.keys()
    checkpoints.prune(tmp_path, 5, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_failure_while_saving_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, 1, ARRAYS, {}, best=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "changed", "manifest", "version"])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    path = checkpoints.save(tmp_path, 1, ARRAYS, {}, best=False)
    data = (path / "arrays.npz").read_bytes()
    manifest = (path / "manifest.json").read_text()
    if damage == "truncated":
        (path / "arrays.npz").write_bytes(data[:-10])
    elif damage == "changed":
        (path / "arrays.npz").write_bytes(data[:100] + b"x" + data[101:])
    elif damage == "manifest":
        (path / "manifest.json").write_text(manifest[: len(manifest) // 2])
    else:
        (path / "manifest.json").write_text(json.dumps({**json.loads(manifest), "version": 9}))
    with pytest.raises(ValueError, match=r"is damaged|of version 9"):
        checkpoints.load(path)


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


@pytest.mark.parametrize("fact", ["epoch", "number", "scale", "history", "sha256"])
def test_a_manifest_that_lacks_something_is_refused(tmp_path, fact):
    config = Config(batch=16, epochs=1, checkpoint=str(tmp_path))
    run(config, dataset=blobs())
    path = tmp_path / "step-00000004" / "manifest.json"
    facts = json.loads(path.read_text())
    del facts[fact]
    path.write_text(json.dumps(facts))
    with pytest.raises(TrainingError, match=rf"on rank 0: ValueError: .*{fact} is|is damaged"):
        run(replace(config, resume="auto", epochs=2), dataset=blobs())


def test_where_a_run_goes_on_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", inputs=np.eye(30, 8), labels=np.arange(30) % 3)
    command = ["train", "./own.npz", "--batch", "6", "--checkpoint", "kept", "--resume", "auto"]
    assert main([*command, "--epochs", "1"]) == 0
    assert "no checkpoint in kept: begins with step 1\nepoch " in capsys.readouterr().out
    assert main([*command, "--epochs", "2"]) == 0
    assert (
        "goes on from kept/step-00000004: step 4 is made, attempt 2 begins in epoch 2\nepoch "
        in capsys.readouterr().out
    )
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
    (tmp_path / "step-00000004" / "arrays.npz").write_bytes(b"")
    with pytest.raises(TrainingError, match=r"arrays\.npz is damaged: it has 0 bytes"):
        run(Config(batch=16, resume=str(tmp_path)), dataset=blobs())


def test_signals_mean_what_they_did_before_a_run(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)
    run(Config(batch=16, epochs=1), dataset=blobs())
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)) == before


def test_a_handler_that_is_not_pythons_is_left_alone():
    program = (
        "import faulthandler, os, signal\n"
        "from mpicoll.train import Config, run\n"
        "faulthandler.register(signal.SIGUSR1)\n"
        "print(run(Config(steps=1)).steps)\n"
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
        "print(run(Config(steps=1), on_step=here).steps)\n"
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
        "from mpicoll.train.driver import loop\n"
        "class Bad(MLP):\n"
        "    def push_gradients(self, *a):\n"
        "        if MPI.COMM_WORLD.rank == 2:\n"
        "            raise OSError('the disk is on fire')\n"
        "        return super().push_gradients(*a)\n"
        "loop.make_model = lambda config, dataset: Bad((8, 3))\n"
        f"config = Config(dataset={str(tmp_path / 'data.npz')!r}, epochs=3)\n"
        "sys.exit(main(config, mpicoll.Intracomm(MPI.COMM_WORLD)))\n"
    )
    start = time.monotonic()
    done = mpirun(3, program)
    assert done.status == 1
    assert time.monotonic() - start < 30  # of which most is the start of Python and MPI
    assert done.err.count("failed on rank 2: OSError: the disk is on fire") == 1
