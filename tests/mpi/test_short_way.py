"""No repeated call leaves the fast path, whatever its kind and spelling: counted, not timed."""

import importlib
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from connected import counted, on_fast_path
from mpi4py import MPI

import mpicoll
from mpicoll.engine import progress
from mpicoll.schedule.methods import METHODS

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
    yield from on_fast_path()


def made(method, *given, **more):
    """A call of a method."""
    return lambda comm: getattr(comm, method)(*given, **more)


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


KINDS = {
    "vector": lambda: MPI.FLOAT.Create_vector(5, 1, 2),
    "blocks": lambda: MPI.FLOAT.Create_vector(3, 3, 4),
    "bytes": lambda: MPI.BYTE.Create_hvector(7, 1, 3),
    "shorts": lambda: MPI.SHORT.Create_vector(2, 1, 5).Create_hvector(3, 1, 40),
    "pairs": lambda: MPI.DOUBLE.Create_vector(3, 2, 5),
    "subarray": lambda: MPI.DOUBLE.Create_subarray([3, 4, 3], [2, 2, 2], [1, 1, 0]),
    "fortran": lambda: MPI.INT.Create_subarray([4, 5], [2, 3], [1, 1], MPI.ORDER_FORTRAN),
    "indexed": lambda: MPI.INT.Create_indexed([1, 3], [5, 0]),
    "structure": lambda: MPI.Datatype.Create_struct([2, 1], [0, 24], [MPI.INT, MPI.DOUBLE]),
    "pair with a hole": lambda: MPI.DOUBLE_INT.Dup(),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("algorithm", ["binomial", "native"])
def test_elements_of_derived_datatypes(ours, name, count, algorithm):
    """Each call is made again; every second time the handle is a new one."""
    numbers = np.random.default_rng(5)
    for turn in range(6):
        if turn % 2 == 0:
            kind = KINDS[name]().Commit()
        sent, box = numbers.integers(0, 256, (2, count * kind.extent), np.uint8)
        expected = box.copy()
        whole = np.zeros(count * kind.size, np.uint8)
        kind.Pack(sent, whole, 0, WORLD)
        kind.Unpack(whole, 0, expected, WORLD)
        found = sent.copy() if RANK == 0 else box
        message = [found, count, kind]
        assert counted(ours, made("Bcast", message, algorithm=algorithm)) == 3
        np.testing.assert_array_equal(found, sent if RANK == 0 else expected)
        ours.Ibcast(message, algorithm=algorithm).Wait()
        np.testing.assert_array_equal(found, sent if RANK == 0 else expected)
        if turn % 2:
            kind.Free()


def test_datatypes_of_empty_blocks_are_not_those_of_others(ours):
    """Those of rank 0 are of another datatype than the rest."""
    holes = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    other = MPI.DOUBLE.Create_vector(2, 1, 3).Commit()
    kinds = [other] + [holes] * (P - 1)
    counts, places = [0] + [1] * (P - 1), [32 * rank for rank in range(P)]
    counts = counts if RANK else [0] * P
    for algorithm in ("native", "linear"):
        for turn in range(4):
            sent, found = np.arange(4.0 * P) + 100 * RANK + turn, np.full(4 * P, -1.0)
            given = [[x, (counts, places), kinds] for x in (sent, found)]
            ours.Alltoallw(*given, algorithm=algorithm)
            blocks = found.reshape(P, 4)
            for rank in range(P):
                want = [-1.0] * 4
                if rank and RANK:
                    want[::2] = [4.0 * RANK + 100 * rank + turn, 4.0 * RANK + 2 + 100 * rank + turn]
                assert blocks[rank].tolist() == want
    holes.Free()
    other.Free()


@pytest.mark.parametrize("way", ["", "I"])
@pytest.mark.parametrize("method", METHODS)
def test_the_librarys_own_gives_what_it_gives_mpi4py(api_cost, ours, method, way):
    numbers = np.random.default_rng(RANK)
    for spelling in ("array", "[x, T]"):
        for turn in range(4):
            given = api_cost.arguments(method, api_cost.SPELLINGS[spelling], 5, ours)
            again = api_cost.arguments(method, api_cost.SPELLINGS[spelling], 5, ours)
            for mine, its in zip(memory(given), memory(again), strict=True):
                mine[:] = its[:] = numbers.integers(0, 100, mine.size) + turn
            name = f"I{method.lower()}" if way else method
            for comm, arguments in ((WORLD, again), (ours, given)):
                more = {"algorithm": "native"} if comm is ours else {}
                request = getattr(comm, name)(*arguments, **more)
                if way:
                    request.Wait()
            for mine, its in zip(memory(given), memory(again), strict=True):
                np.testing.assert_array_equal(mine, its)


IN_PLACE = [name for name in METHODS if name not in ("Barrier", "Bcast")]


@pytest.mark.parametrize("way", ["", "I"])
@pytest.mark.parametrize("method", IN_PLACE)
def test_in_place_by_the_library(api_cost, ours, method, way):
    numbers = np.random.default_rng(RANK)
    definition = METHODS[method].definition
    for turn in range(4):
        pair = [api_cost.arguments(method, api_cost.SPELLINGS["array"], 5, ours) for _ in "12"]
        for given in pair:
            if definition.name == "reduce_scatter":
                given[1] = given[0]
            if not definition.rooted or RANK == 0:
                given[definition.name == "scatter"] = MPI.IN_PLACE
        for mine, its in zip(*map(memory, pair), strict=True):
            mine[:] = its[:] = numbers.integers(0, 100, mine.size) + turn
        name = f"I{method.lower()}" if way else method
        for comm, given, more in ((WORLD, pair[0], {}), (ours, pair[1], {"algorithm": "native"})):
            request = getattr(comm, name)(*given, **more)
            if way:
                request.Wait()
        for mine, its in zip(*map(memory, pair), strict=True):
            end = 5 if definition.name == "reduce_scatter" else mine.size
            np.testing.assert_array_equal(mine[:end], its[:end])


def memory(given):
    """The arrays in the arguments of a call."""
    owners = [each[0] if isinstance(each, list) else each for each in given]
    return [each for each in owners if isinstance(each, np.ndarray)]


@pytest.mark.parametrize("way", ["", "I"])
@pytest.mark.parametrize("root", {0, P - 1})
def test_blocks_of_other_lengths_by_the_library(ours, way, root):
    """Rank r has r + 1 numbers, which lie two apart from the next one's."""
    counts = [rank + 1 for rank in range(P)]
    places = [sum(counts[:rank]) + 2 * rank for rank in range(P)]
    end = places[-1] + P
    for turn in range(4):
        mine, every = np.full(RANK + 1, RANK + turn), np.full(end, -1)
        vector = [every, (counts, places), MPI.INT64_T]
        whole = np.full(end, -1)
        for rank in range(P):
            whole[places[rank] :][: counts[rank]] = rank + turn

        def run(method, *given):
            made = getattr(ours, f"I{method.lower()}" if way else method)
            request = made(*given, algorithm="native")
            if way:
                request.Wait()

        run("Allgatherv", mine, vector)
        assert every.tolist() == whole.tolist()
        every[:] = -1
        run("Gatherv", mine, vector if RANK == root else None, root)
        assert every.tolist() == (whole.tolist() if RANK == root else [-1] * end)
        got = np.zeros(RANK + 1, int)
        run("Scatterv", [whole, (counts, places), MPI.INT64_T] if RANK == root else None, got, root)
        assert got.tolist() == mine.tolist()
        every[:] = -1
        sent = [whole, ([RANK + 1] * P, [places[RANK]] * P), MPI.INT64_T]
        run("Alltoallv", sent, vector)
        assert every.tolist() == whole.tolist()
        run("Reduce_scatter", np.arange(sum(counts)), got, counts)
        first = sum(counts[:RANK])
        assert got.tolist() == [P * (first + i) for i in range(RANK + 1)]


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
