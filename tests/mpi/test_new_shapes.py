"""Calls of new lengths: plans are scaled where one of another length has run."""

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.engine import planning

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
#: Elements of a block; what is planned first has parts that are multiples of 64 bytes.
FIRST, OTHERS = 64 * 64, (64 * 16, 16 * 5, 64 * 48 + 16, 16, 64 * 64 * 3)


@pytest.fixture(scope="module")
def comm():
    return connected(WORLD.Dup())


@pytest.fixture
def built(monkeypatch):
    built = []
    build = planning.build
    monkeypatch.setattr(
        planning, "build", lambda shape, piece: built.append(shape) or build(shape, piece)
    )
    return built


def allreduce(comm, count, algorithm):
    send = np.arange(count * P, dtype="i8") + RANK
    recv = np.zeros_like(send)
    comm.Allreduce(send, recv, algorithm=algorithm)
    assert (recv == P * np.arange(count * P) + P * (P - 1) // 2).all()


def allgather(comm, count, algorithm):
    recv = np.zeros(count * P, "i8")
    comm.Allgather(np.arange(count, dtype="i8") + RANK, recv, algorithm=algorithm)
    assert (recv.reshape(P, -1) == np.arange(count) + np.arange(P)[:, None]).all()


def reduce_scatter(comm, count, algorithm):
    recv = np.zeros(count, "i8")
    comm.Reduce_scatter_block(np.arange(count * P, dtype="i8"), recv, algorithm=algorithm)
    assert (recv == P * (np.arange(count) + RANK * count)).all()


def bcast(comm, count, algorithm):
    data = np.arange(count, dtype="i8") if RANK == 0 else np.zeros(count, "i8")
    comm.Bcast(data, algorithm=algorithm)
    assert (data == np.arange(count)).all()


def alltoall(comm, count, algorithm):
    recv = np.zeros(count * P, "i8")
    comm.Alltoall(np.arange(count * P, dtype="i8") + RANK, recv, algorithm=algorithm)
    expected = np.arange(count) + RANK * count + np.arange(P)[:, None]
    assert (recv.reshape(P, -1) == expected).all()


CALLS = {call.__name__: call for call in (allreduce, allgather, reduce_scatter, bcast, alltoall)}
CASES = [(name, algorithm) for name in CALLS for algorithm in algorithms.names(name)]


@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_results_of_scaled_plans_are_right(comm, name, algorithm, built):
    if algorithms.find(name, algorithm).misfit(P, {}):
        pytest.skip("not for so many ranks")
    for count in (FIRST, *OTHERS, FIRST):
        CALLS[name](comm, count, algorithm)


@pytest.mark.parametrize("name", CALLS)
def test_a_new_length_is_not_planned_again(name, built):
    own = connected(WORLD.Dup())
    if own._state.plans.device is None:
        pytest.skip("Python runs the plans")
    algorithm = {"alltoall": "pairwise", "bcast": "binomial"}.get(name, "ring")
    for count in (FIRST, *OTHERS):
        CALLS[name](own, count, algorithm)
    assert len(built) == 1
    CALLS[name](own, 7, algorithm)
    own.Free()


def test_requests_of_scaled_plans(comm, built):
    for count in (FIRST, *OTHERS):
        recv = np.zeros(count * P)
        comm.Iallreduce(np.ones(count * P), recv, algorithm="ring").Wait()
        assert (recv == P).all()
        plan = comm.Allreduce_init(np.ones(count * P), recv, algorithm="ring")
        for _ in range(2):
            recv[:] = 0
            plan.Start()
            plan.Wait()
            assert (recv == P).all()
        plan.Free()


def test_calls_that_are_not_blocking_by_a_scaled_plan_go_the_fast_path(comm):
    path = comm._state.fast_path.path
    for count in (FIRST, *OTHERS):
        send = np.arange(count * P, dtype="i8") + RANK
        comm.Allreduce(send, np.zeros_like(send), algorithm="ring")
        for turn in range(4):
            before = 0 if path is None else sum(path.calls().values())
            pairs = [(send + i, np.zeros_like(send)) for i in range(3)]
            requests = [comm.Iallreduce(*pair, algorithm="ring") for pair in pairs]
            for (sent, found), request in zip(pairs, requests, strict=True):
                request.Wait()
                assert (found == P * (sent - RANK) + P * (P - 1) // 2).all()
            assert path is None or turn == 0 or sum(path.calls().values()) - before == 3
