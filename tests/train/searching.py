"""Started on several ranks: a search in which some of them die, and the others go on.

The argument is a JSON object: ``tests``, this folder's parent; ``space``, and ``options`` of the
search; ``deaths``, a list of [rank, where, times]: the rank is killed when it is about to call a
function of ``mpicoll.train`` for the so manieth time.
"""

# ruff: noqa: E402 - threads are limited before NumPy is loaded

import json
import os
import pkgutil
import signal
import sys

from mpicoll.train import threads

threads.limit_blas_threads()

from mpi4py import MPI

import mpicoll
from mpicoll.train.search import SearchOptions, Space, console

JOB = json.loads(sys.argv[1])


def prepare_to_die(where, times):
    path, _, name = where.rpartition(".")
    owner = pkgutil.resolve_name(f"mpicoll.train.{path}")
    before = getattr(owner, name)

    def dying(*arguments, **named):
        nonlocal times
        times -= 1
        if not times:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*arguments, **named)

    setattr(owner, name, dying)


for rank, *death in JOB["deaths"]:
    if MPI.COMM_WORLD.rank == rank:
        prepare_to_die(*death)
space, options = Space.of(JOB["space"]), SearchOptions(**JOB["options"])
comm = mpicoll.Intracomm(MPI.COMM_WORLD)
sys.exit(console.main(space, options, comm, as_json=True, progress=False))
