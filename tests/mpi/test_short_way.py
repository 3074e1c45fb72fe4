"""No repeated call leaves the fast path, whatever its kind and spelling: counted, not timed."""

import importlib
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI

import mpicoll
from mpicoll.engine import progress

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
WORLD = MPI.COMM_WORLD
P, RANK = WORLD.Get_size(), WORLD.Get_rank()


@pytest.fixture(scope="module")
def api_cost():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("api_cost")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def ours():
    comm = connected(WORLD.Dup())
    if comm._state.fast_path.path is None:
        pytest.skip("without the compiled engine, or threads, every call goes the slow path")
    yield comm
    comm.Free()


def counted(comm, call, turns=3):
    """How many of some calls went the fast path, after one that did not."""
    path = comm._state.fast_path.path
    call(comm)
    before = sum(path.calls().values())
    for _ in range(turns):
        call(comm)
    return sum(path.calls().values()) - before


def made(method, *given):
    """A call of a method."""
    return lambda comm: getattr(comm, method)(*given)


@pytest.mark.parametrize("n", [2, 256, 1 << 14])
def test_calls_of_the_table_go_the_fast_path(api_cost, ours, n):
    late = []
    for method, spelling, call in api_cost.rows(ours, n, api_cost.SPELLINGS):
        if method in ("bcast", "allreduce", "Sendrecv"):
            continue  # mpi4py's own
        if counted(ours, call) != 3:
            late.append((method, spelling))
    assert not late


def test_strided_arrays_go_the_fast_path(ours):
    for turn in range(3):
        whole = np.zeros((4, 6))
        whole[:] = RANK + turn
        found = np.full((4, 12), -1.0)
        want = P * (P - 1) / 2 + P * turn
        assert counted(ours, made("Allreduce", whole[:, ::2], found[:, ::4])) == 3
        assert (found[:, ::4] == want).all()
        assert (np.delete(found, np.s_[::4], axis=1) == -1).all()
        turned = np.asfortranarray(whole)
        counted(ours, made("Allreduce", MPI.IN_PLACE, turned[:, 1:3]))
        every = np.zeros((P, 4, 3))
        assert counted(ours, made("Allgather", whole[:, ::2], every)) == 3
        assert (every == (np.arange(P) + turn)[:, None, None]).all()


def test_the_order_of_axes_is_part_of_a_call(ours):
    rows = np.arange(6.0).reshape(2, 3) + RANK
    for _ in range(3):
        columns = np.zeros((2, 3), order="F")
        ours.Allreduce(rows, columns)
        assert (columns == P * np.arange(6).reshape(2, 3) + P * (P - 1) / 2).all()
        flat = np.zeros(6)
        ours.Allreduce(rows.ravel(), flat)
        assert (flat == P * np.arange(6) + P * (P - 1) / 2).all()
        with pytest.raises(ValueError, match="order"):
            ours.Allreduce(rows.reshape(3, 2), columns)


def test_derived_datatypes_are_told_by_what_they_are(ours):
    for turn in range(4):
        length = 2 + turn % 2
        kind = MPI.INT64_T.Create_vector(3, 1, length).Commit()
        box = np.full(3 * length, -1)
        if RANK == 0:
            box[::length] = np.arange(3) + turn
        ours.Bcast([box, 1, kind])
        assert box[::length].tolist() == [turn, turn + 1, turn + 2]
        if RANK:
            assert set(np.delete(box, np.s_[::length])) == {-1}
        kind.Free()  # the next one may have its handle


def test_counts_and_displacements_are_part_of_a_call(ours):
    for _ in range(3):
        for count, first in ((2, 1), (1, 2), (2, 0)):
            x, y = np.arange(6.0) + RANK, np.full(6, -1.0)
            ours.Allreduce([x, (count, first), MPI.DOUBLE], [y, (count, 6 - count), MPI.DOUBLE])
            want = [P * (first + i) + P * (P - 1) / 2 for i in range(count)]
            assert y.tolist() == [-1.0] * (6 - count) + want


@pytest.mark.filterwarnings("ignore::mpicoll.errors.FallbackWarning")
def test_counts_beyond_the_memory_are_reported_each_time(ours):
    memory = np.full(8, RANK)
    for _ in range(3):
        ours.Bcast([memory[:6], 8, MPI.INT64_T])
    assert memory.tolist() == [0] * 8
    assert sum(ours.stats().fallbacks.values()) == 3


def test_memory_that_is_no_array(ours):
    for turn in range(4):
        mine, every = bytearray(b"%d" % (RANK % 10)) * 3, bytearray(3 * P)
        ours.Allgather(mine, every)
        assert every == b"".join(b"%d" % (rank % 10) * 3 for rank in range(P))
        ours.Iallgather(memoryview(mine), memoryview(every)).Wait()
        with pytest.raises(BufferError, match="read-only"):
            ours.Allgather(mine, bytes(every))
        mine.append(turn)  # nobody holds it any more


def test_tensors_go_the_fast_path(ours):
    torch = pytest.importorskip("torch")
    x, y = torch.full((5,), RANK + 1.0), torch.zeros(5)
    assert counted(ours, lambda comm: comm.Allreduce(x, y)) >= 2  # the class is met by the first
    assert counted(ours, lambda comm: comm.Iallreduce(x, y).Wait()) == 3
    assert y.tolist() == [P * (P + 1) / 2] * 5
    with pytest.raises(BufferError):
        ours.Allreduce(x.clone().requires_grad_(), y)


def test_a_request_of_the_library_keeps_what_was_passed(ours):
    y = np.zeros(2)
    for _ in range(3):
        x = np.ones(2)
        kept = weakref.ref(x)
        request = ours.Iallreduce(x, y)
        del x
        assert kept() is not None
        request.Wait()
        assert y.tolist() == [P, P]


def test_calls_by_an_algorithm_under_way_together(ours):
    path = ours._state.fast_path.path
    for turn in range(4):
        count = 20
        given = [np.full(7, RANK + i + turn) for i in range(count)]
        found = [np.zeros(7, int) for _ in range(count)]
        before = sum(path.calls().values())
        requests = [
            ours.Iallreduce(x, y, algorithm="ring") for x, y in zip(given, found, strict=True)
        ]
        if turn % 2:
            mpicoll.requests.Request.Waitall(requests)
        else:
            for request in requests[::-1]:
                request.Wait()
        for i, y in enumerate(found):
            assert y.tolist() == [P * (P - 1) // 2 + P * (i + turn)] * 7
        assert not any(requests)
        assert sum(path.calls().values()) - before == count - (turn == 0)
    assert not progress.under_way
    assert ours.stats().calls["allreduce", "ring"] == 4 * 20


def test_a_request_by_an_algorithm_is_one_of_mpicoll(ours):
    x, y = np.ones(3), np.zeros(3)
    for _ in range(3):
        request = ours.Iallreduce(x, y, algorithm="ring")
        assert isinstance(request, mpicoll.requests.Request)
        assert "ring" in repr(request)
        status = MPI.Status()
        while not request.Test(status):
            pass
        assert status.Get_count(MPI.BYTE) == 0
        assert request.wait() is None
        with pytest.raises(RuntimeError, match="cannot be cancelled"):
            request.Cancel()
        request.Free()
        assert y.tolist() == [P] * 3


def test_more_calls_than_lanes_wait_for_their_lane(ours):
    y = np.zeros((600, 1), int)
    x = np.arange(600).reshape(-1, 1) + RANK
    for _ in range(2):
        requests = [
            ours.Iallreduce(a, b, algorithm="recursive_doubling") for a, b in zip(x, y, strict=True)
        ]
        mpicoll.requests.Request.Waitall(requests)
        assert y.ravel().tolist() == [P * i + P * (P - 1) // 2 for i in range(600)]
