"""The launch itself: what the other tests under mpirun rely on."""

import os

import numpy as np
import pytest
from mpi4py import MPI


def test_size_is_the_size_launched():
    # A launcher that the library does not understand starts N lone ranks, each of size 1.
    launched = os.environ.get("MPICOLL_TEST_RANKS")
    if launched is None:
        pytest.skip("not started by tests/launch.py, which says how many ranks it asked for")
    assert MPI.COMM_WORLD.size == int(launched)


def test_every_rank_is_reached():
    ranks = np.empty(MPI.COMM_WORLD.size, dtype="i4")
    MPI.COMM_WORLD.Allgather(np.array([MPI.COMM_WORLD.rank], dtype="i4"), ranks)
    assert ranks.tolist() == list(range(MPI.COMM_WORLD.size))


@pytest.mark.mpi(min_size=2)
def test_ranks_are_processes_of_their_own():
    world = MPI.COMM_WORLD
    pids = np.empty(world.size, dtype="i8")
    world.Allgather(np.array([os.getpid()], dtype="i8"), pids)
    assert len(set(pids.tolist())) == world.size
