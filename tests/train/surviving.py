"""Started on several ranks: a training in which some of them die, and the others go on.

The argument is a JSON object: ``tests``, this folder's parent; ``changes`` of the configuration;
``deaths``, a list of [rank, how, where, times]: the rank dies when it is about to call a function
of ``mpicoll.train`` for the so manieth time; ``after``: [rank, first, seconds, last]: it is killed
so many seconds after its step ``first``, in whatever it does then, or after its step ``last``, if
that is earlier; ``stopped``: seconds for which one is that stops; ``room``: bytes that are left
from then on to one that does not die, but fills up; ``batch norm``; ``command``: as
``mpicoll train`` does; ``refused``: a path, made by ranks that wait until another one has died and
then fail with the same error, and awaited by one that dies then; ``locks``: paths of which ranks
print, when the training has failed, which are still locked.  Each rank that is left prints what it
has found, and the first how far that is from one process.
"""

# ruff: noqa: E402 - threads are limited before NumPy is loaded

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.base.deaths import dead
from mpicoll.base.locks import is_held
from mpicoll.comm import exit_on_exception
from mpicoll.train import Config, Sequential, TrainingError, data, main, run
from mpicoll.train.driver import checkpoints, memory
from mpicoll.train.models import BatchNorm, Dense, ReLU

JOB = json.loads(sys.argv[1])
sys.path[:0] = [JOB["tests"]]
from clouds import clouds
from dying import before_call


def die(how):
    if how == "exception":
        raise OSError("the disk is full")
    if how == "fill":
        memory.available = lambda: JOB["room"]
        return
    if how == "refuse":
        Path(JOB["refused"]).touch()
        while not dead(MPI.COMM_WORLD):
            MPI.COMM_SELF.Iprobe()  # MPI hears of deaths in its calls
            time.sleep(0.01)
        time.sleep(0.3)  # those that sleep see it, too
        raise TrainingError("the data are worn out")
    if how == "when refused":
        while not os.path.exists(JOB["refused"]):
            time.sleep(0.01)
    if how == "exit":
        os._exit(3)
    if how == "stop":
        mine = str(os.getpid())
        subprocess.Popen(["sh", "-c", f"sleep {JOB['stopped']}; kill -CONT {mine}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid(), signal.SIGKILL)


def model():
    if not JOB.get("batch norm"):
        return None
    local = JOB["batch norm"] == "local"
    layers = [Dense(8, bias=False), BatchNorm(local=local), ReLU(), Dense(4)]
    return Sequential(layers, (12,), "float64")


def checksum(result):
    arrays = {**result.parameters, **result.buffers}
    return zlib.crc32(b"".join(arrays[name].tobytes() for name in sorted(arrays)))


def difference(result, reference):
    """Of arrays, of the largest value of each."""
    return max(
        float(np.abs(array - reference.parameters[name]).max() / np.abs(array).max())
        for name, array in result.parameters.items()
    )


@exit_on_exception()
def start(config):
    comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
    victim, first, seconds, last = JOB.get("after") or (None, 0, 0, 0)
    steps, epochs = [], []

    def on_step(step):
        if comm.rank == victim and step.number == first:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + 1e-6)
        if comm.rank == victim and step.number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append(step.number)

    try:
        result = run(
            config,
            comm,
            dataset=clouds(),
            model=model(),
            on_step=on_step,
            on_epoch=lambda epoch: epochs.append(epoch.number),
            quiet=True,
        )
    except TrainingError:
        if "locks" in JOB:
            held = [path for path in JOB["locks"] if is_held(path)]
            print(json.dumps({"rank": comm.rank, "held": held}), flush=True)
        raise
    if config.strategy == "fsdp" or config.mesh:  # a rank has parts
        arrays, _ = checkpoints.load(checkpoints.find(Path(config.checkpoint)), ("parameter",))
        whole = {name.removeprefix("parameter/"): array for name, array in arrays.items()}
        result = replace(result, parameters=whole)
    found = {
        "rank": comm.rank,
        "lost": [[list(loss.ranks), loss.step, loss.repeated, loss.left] for loss in result.lost],
        "from": [loss.checkpoint for loss in result.lost],
        "spare": [loss.spare for loss in result.lost],
        "skipped": sum(epoch.skipped for epoch in result.history),
        "seconds": [loss.seconds for loss in result.lost],
        "steps": result.steps,
        "seen": [steps, epochs],
        "loss": result.history[-1].loss,
        "bits": checksum(result),
    }
    if comm.rank == min(
        set(range(comm.size)) - {rank for loss in result.lost for rank in loss.ranks}
    ):
        places = comm.size - config.spares
        reference = run(config.alone(places), dataset=clouds(), model=model(), quiet=True)
        found["difference"] = difference(result, reference)
        found["expected"] = checksum(reference), reference.history[-1].loss
    print(json.dumps(found), flush=True)
    comm.leave()


for rank, how, *moment in JOB["deaths"]:
    if MPI.COMM_WORLD.rank == rank:
        before_call(*moment, partial(die, how))
options = {"dataset": "digits", "dtype": "float64", "batch": 10, "epochs": 4, "survive": True}
changes = {k: tuple(v) if isinstance(v, list) else v for k, v in JOB["changes"].items()}
config = Config(**{**options, **changes})
if JOB.get("command"):
    data.DATASETS["digits"] = clouds
    sys.exit(main(config, mpicoll.Intracomm(MPI.COMM_WORLD)))
start(config)
