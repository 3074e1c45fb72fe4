"""Segments that wait: they neither hold up who has sent them, nor get messages of others."""

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI
from outside import registering

import mpicoll
from mpicoll.algorithms.linear import bcast_linear, reduce_linear
from mpicoll.engine.transport import TRANSPORTS
from mpicoll.schedule import Recv, Send, pipelined, scratch, strands

WORLD = MPI.COMM_WORLD
RANK, P = WORLD.Get_rank(), WORLD.Get_size()
#: More than a sender has entries and slots.
SEGMENTS = 64

pytestmark = pytest.mark.skipif(not 3 <= P <= 5, reason="3 to 5 ranks show it")


@pytest.fixture(params=["compiled", "python"])
def ours(request, monkeypatch, transport):
    monkeypatch.setenv("MPICOLL_TRANSPORT", transport)
    comm = connected(WORLD.Dup())
    if request.param == "python":
        comm._state.plans.device = comm._state.fast_path.path = None
    yield comm
    comm.Free()


@pytest.fixture
def registered():
    """Registers an algorithm under the name ``waits`` for one test."""
    with registering("waits") as add:
        yield add


def the_last_rank_sends_first(ours, data, total, algorithm):
    """Sums to rank 0 in rank order: what the last rank sends waits for rank 1, which comes last."""
    for _ in range(3):
        if RANK == 1:
            WORLD.recv(source=P - 1)
        ours.Reduce(data, total, algorithm=algorithm)
        if RANK == P - 1:
            WORLD.send("all sent", 1)
        if RANK == 0:
            assert set(total) == {P * (P + 1) / 2}


def in_segments(rank, size, root):
    return pipelined(reduce_linear(rank, size, root), SEGMENTS, SEGMENTS)


@pytest.mark.parametrize("transport", ["shm", "mpi"])
@pytest.mark.parametrize("elements", [1, 500, 20_000])
def test_who_has_sent_all_does_not_wait_for_another_sender(ours, registered, transport, elements):
    if elements > 500 and ours.shared_memory() is None:
        pytest.skip("MPI lets a sender of long messages wait for its receiver")
    registered("reduce", in_segments)
    data, total = np.full(SEGMENTS * elements, RANK + 1.0), np.zeros(SEGMENTS * elements)
    ours.Reduce(data, total, algorithm="waits")  # verified before its first run, by all ranks
    the_last_rank_sends_first(ours, data, total, "waits")


@pytest.mark.parametrize("transport", ["shm"])
def test_who_has_sent_from_a_window_does_not_wait_for_another_sender(ours):
    """It has room to send and asks for nothing, but waits until its message has been read."""
    data = mpicoll.empty(20_000, "f8", ours)
    data[:] = RANK + 1
    total = np.zeros(20_000)
    the_last_rank_sends_first(ours, data, total, "linear")


def after_the_last_rank(rank, size, root):
    """A broadcast that the others hear once the last rank has sent it back."""
    last = size - 1
    if rank == root:
        yield Send(last, 0)
        yield Recv(last, scratch(0))
        yield tuple(Send(peer, 0) for peer in range(size) if peer not in (root, last))
    else:
        yield Recv(root, 0)
        if rank == last:
            yield Send(root, 0)


def unlike_strands(rank, size, root):
    """More segments than tags; every third one waits."""
    likes = bcast_linear, after_the_last_rank, bcast_linear
    return strands(*(each(rank, size, root) for each in likes), segments=100, window=1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_segments_far_ahead_are_not_taken_for_others(ours, registered, transport):
    registered("bcast", unlike_strands, scratch=lambda P: 1)
    expected = np.arange(600)
    data = expected.copy()
    ours.Bcast(data, algorithm="waits")  # verified before its first run, by all ranks
    for _ in range(3):
        data = expected.copy() if RANK == 0 else np.zeros_like(expected)
        if RANK == P - 1:
            WORLD.recv(source=0)
        request = ours.Ibcast(data, algorithm="waits")
        if RANK == 0:
            for _ in range(10_000):
                request.Test()
            WORLD.send("the others are far ahead", P - 1)
        request.Wait()
        np.testing.assert_array_equal(data, expected)
