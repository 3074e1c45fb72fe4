"""Arrays that other ranks read where they lie."""

import gc
import warnings
import weakref

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI

import mpicoll
from mpicoll import Intracomm, algorithms
from mpicoll.base import caller
from mpicoll.engine import windows
from mpicoll.runtime import connections
from mpicoll.schedule.collectives import COLLECTIVES

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


@pytest.fixture(scope="module")
def ours():
    comm = Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


def near(comm):
    """Whether there are windows at all."""
    memory = comm.shared_memory()
    return memory is not None and P > 1


def window(comm, array):
    made = mpicoll.empty(array.shape, array.dtype, comm)
    made[...] = array
    return made


def opened(comm):
    return comm.shared_memory()["windows"] if near(comm) else 0


MOVING = [
    (collective, name)
    for collective in COLLECTIVES
    if collective != "barrier"
    for name in algorithms.names(collective)
    if algorithms.find(collective, name).runs_on(P)
]


@pytest.mark.parametrize(("collective", "name"), MOVING, ids=lambda text: text)
@pytest.mark.parametrize("count", [5, 3 * 1024 * P, 300_000], ids=["small", "inside", "slots"])
def test_the_same_bits_as_with_other_memory(ours, collective, name, count):
    definition = COLLECTIVES[collective]
    random = np.random.default_rng(RANK)
    length = P * -(-count // P) if any(_alone(collective)) or definition.block_per_rank else count
    lengths = [length // P if alone else length for alone in _alone(collective)]
    send, recv = random.standard_normal(lengths[0]), np.zeros(lengths[1])
    method = getattr(ours, definition.method)
    arguments = {"algorithm": name}
    results = []
    for make in (np.copy, lambda array: window(ours, array)):
        given, got = make(send), make(recv)
        for turn in range(3):
            given[:] = send + turn
            if collective == "bcast":
                method(given, **arguments)
                results.append(given.copy())
            else:
                method(given, got, **arguments)
                assert (given == send + turn).all()
                results.append(got.copy())
    for plain, from_window in zip(results[:3], results[3:], strict=True):
        if collective == "exscan" and RANK == 0:
            continue
        assert plain.tobytes() == from_window.tobytes()


def _alone(collective):
    """Whether the input, and the output, hold a rank's own block alone."""
    definition = COLLECTIVES[collective]
    return definition.input_alone, definition.output_alone


def test_in_place_and_a_repeated_call(ours):
    for name in algorithms.names("allreduce"):
        if not algorithms.find("allreduce", name).runs_on(P):
            continue
        data = mpicoll.empty(100_000, "f4", ours)
        for _ in range(3):
            data[:] = RANK + 1
            ours.Allreduce(MPI.IN_PLACE, data, algorithm=name)
            assert (data == P * (P + 1) / 2).all(), name


def test_what_comes_before_it_is_awaited(ours):
    data = window(ours, np.full(50_000, RANK + 1.0))
    total, other = np.zeros(50_000), np.zeros(20_000)
    request = ours.Iallreduce(data, total, algorithm="ring")
    ours.Allreduce(np.ones(20_000), other)  # its messages meet those of the ring on the way
    request.Wait()
    assert (total == P * (P + 1) / 2).all() and (other == P).all()


def test_a_window_of_another_communicator_is_ordinary_memory(ours):
    other = Intracomm(WORLD.Dup())
    data = window(other, np.full(70_000, 1.0))
    ours.Allreduce(MPI.IN_PLACE, data, algorithm="linear")
    assert (data == P).all()
    other.Free()
    assert (data == P).all()  # the memory stays as long as the array


def test_shapes_and_types():
    comm = Intracomm(WORLD.Dup())
    array = mpicoll.empty((RANK, 3), np.int16, comm)
    assert array.shape == (RANK, 3) and array.dtype == np.int16 and array.flags.c_contiguous
    assert mpicoll.empty((), "f8", comm).shape == ()
    assert mpicoll.empty(0, "f8", comm).size == 0
    assert mpicoll.empty(3, "V0", comm).shape == (3,)
    record = mpicoll.empty(2, [("a", "f4"), ("b", "i8")], comm)
    record["b"] = RANK
    assert record["b"].tolist() == [RANK] * 2
    del array, record
    comm.Free()


def test_memory_comes_back_when_all_ranks_have_dropped_theirs():
    comm = Intracomm(WORLD.Dup())
    kept = mpicoll.empty(10_000, "u1", comm)
    before = opened(comm)
    for turn in range(windows.MOST + 5):
        array = mpicoll.empty(100_000, "u1", comm)
        array[:] = turn
        out = np.zeros(100_000, "u1")
        comm.Allreduce(array, out, algorithm="ring")
        assert (out == turn * P % 256).all()
        view = array[5:]
        del array
        assert view[0] == turn
        del view
    gc.collect()
    last = mpicoll.empty(1, "u1", comm)
    # The one before the last was open until this call.
    assert opened(comm) <= before + 2 * P * (100_000 + 4096)
    del kept, last
    comm.Free()


def test_a_call_keeps_no_array_alive():
    comm = Intracomm(WORLD.Dup())
    for count in range(windows.MOST + 10):
        array = mpicoll.empty(5000 + count, "f8", comm)
        out = np.zeros(5000 + count)
        comm.Allreduce(array, out, algorithm="ring")
        comm.Iallreduce(array, out, algorithm="linear").Wait()
        last = weakref.ref(out)
        del array, out
        assert last() is None
    mpicoll.empty(1, "f8", comm)
    assert opened(comm) <= 3 * P * (1 << 17)
    comm.Free()


@pytest.mark.skipif(P != 2, reason="two ranks that wait in turn")
def test_what_is_under_way_moves_on_while_memory_is_shared():
    handle = WORLD.Dup()
    comm, out = connected(WORLD.Dup()), np.zeros(300_000)
    for make in (lambda: mpicoll.empty(10, "f8", comm), lambda: Intracomm(handle)):
        request = comm.Iallreduce(np.ones(300_000), out, algorithm="ring")
        if RANK == 0:
            made = make()
            request.Wait()
        else:
            request.Wait()
            made = make()
        assert (out == P).all()
        del made
    comm.Free()
    handle.Free()


def test_memory_that_nobody_has():
    comm = Intracomm(WORLD.Dup())
    for size in (1 << 62, 1 << 47):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mpicoll.errors.TransportWarning)
            with pytest.raises((MemoryError, ValueError)):
                mpicoll.empty(size, "u1", comm)
    comm.Barrier()
    comm.Free()


def test_a_freed_communicator_gives_its_memory_back():
    def mappings():
        with open("/proc/self/maps") as maps:
            return sum("memfd:mpicoll" in line for line in maps)

    connections.drain()
    gc.collect()
    before, kept = mappings(), []
    for _ in range(3):
        comm = Intracomm(WORLD.Dup())
        comm.Allreduce(MPI.IN_PLACE, mpicoll.empty(10_000, "f8", comm), algorithm="ring")
        comm.Free()
        kept.append(comm)
    gc.collect()
    assert mappings() == before


def test_more_windows_than_there_are():
    comm = Intracomm(WORLD.Dup())
    many = [mpicoll.empty(5000, "f8", comm) for _ in range(windows.MOST)]
    if near(comm):
        with pytest.warns(mpicoll.errors.TransportWarning) if RANK == 0 else _nothing():
            caller._WARNED.clear()
            many.append(mpicoll.empty(5000, "f8", comm))
    for array in many[-3:]:
        array[:] = 1
        comm.Allreduce(MPI.IN_PLACE, array, algorithm="recursive_doubling")
        assert (array == P).all()
    comm.Free()


def _nothing():
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("transport", ["mpi", "shm"])
def test_transports(monkeypatch, transport):
    monkeypatch.setenv("MPICOLL_TRANSPORT", transport)
    comm = Intracomm(WORLD.Dup())
    data = window(comm, np.full(200_000, 1.0))
    comm.Allreduce(MPI.IN_PLACE, data)
    assert (data == P).all()
    comm.Free()


def test_what_is_wrong_is_said(ours):
    with pytest.raises(TypeError, match=r"must be an mpicoll.Intracomm, not mpi4py.MPI.Intracomm"):
        mpicoll.empty(3, "f8", WORLD)
    with pytest.raises(TypeError, match="Python objects"):
        mpicoll.empty(3, object, ours)
    with pytest.raises(ValueError, match="negative"):
        mpicoll.empty(-3, "f8", ours)
    with pytest.raises(TypeError):
        mpicoll.empty(3, "no type", ours)
