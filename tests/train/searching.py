"""Started on several ranks: a search in which some of them die, and the others go on.

The argument is a JSON object: ``tests``, this folder's parent; ``space``, and ``options`` of the
search; ``deaths``, a list of [rank, where, times]: the rank is killed when it is about to call a
function of ``mpicoll.train`` for the so manieth time.
"""

# ruff: noqa: E402 - threads are limited before NumPy is loaded

import json
import os
import signal
import sys

from mpicoll.train import threads

threads.limit_blas_threads()

from mpi4py import MPI

import mpicoll
from mpicoll.train.search import SearchOptions, Space, console

JOB = json.loads(sys.argv[1])
sys.path[:0] = [JOB["tests"]]
from dying import before_call

for rank, *moment in JOB["deaths"]:
    if MPI.COMM_WORLD.rank == rank:
        before_call(*moment, lambda: os.kill(os.getpid(), signal.SIGKILL))
space, options = Space.of(JOB["space"]), SearchOptions(**JOB["options"])
comm = mpicoll.Intracomm(MPI.COMM_WORLD)
sys.exit(console.main(space, options, comm, as_json=True, progress=False))
