"""Collectives through memory that GPUs map of each other, bit by bit as the host folds them."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
import subprocess
import time

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
from mpi4py import MPI  # noqa: E402

from mpicoll import ops  # noqa: E402
from mpicoll.cuda import keys  # noqa: E402
from mpicoll.cuda.ipc import Peers  # noqa: E402
from mpicoll.cuda.launches import Limits  # noqa: E402
from mpicoll.cuda.liveness import Watchdog  # noqa: E402

#: Lengths in elements: nothing to pack, one packet, ragged rows, several steps, both kernels.
LENGTHS = (1, 3, 60, 1000, 70_001, 1_500_007)
RNG = np.random.default_rng(7)
POISON = 0x5A
#: In place the receive buffer holds all of the input.
WHOLE_IN_PLACE = ("allreduce", "scan", "exscan", "alltoall", "reduce_scatter")


#: With these, what is short already goes the ways of what is long.
LOW = Limits(small_bytes=1 << 10, bulk_bytes=1 << 15, one_shot=1 << 9, direct=1 << 15)


@contextlib.contextmanager
def opened(world, seconds=60.0, limits=None):
    """The peers of all ranks, several of which may share a GPU."""
    private = world.Dup()
    shared = world.Get_size() > cupy.cuda.runtime.getDeviceCount()
    made, why = Peers.open(private, cupy.cuda.Device().id, seconds, shared, limits)
    if made is None:
        pytest.skip(why)
    yield made
    made.close()
    private.Free()


@pytest.fixture(scope="module")
def peers(world):
    with opened(world) as made:
        yield made


@pytest.fixture(scope="module")
def low(world):
    with opened(world, limits=LOW) as made:
        yield made


@pytest.fixture(scope="module", params=["peers", "low"])
def either(request):
    return request.getfixturevalue(request.param)


class Buffer:
    """A view of device memory as `Peers.run` wants it."""

    def __init__(self, array, dtype):
        self.ptr, self.nbytes, self.dtype = array.data.ptr, array.nbytes, np.dtype(dtype)


def numbers(dtype, length, rank):
    """Random elements of this rank that every rank can draw."""
    rng = np.random.default_rng((length, rank, 11))
    dtype = np.dtype(dtype)
    if dtype.names:
        made = np.zeros(length, dtype)
        for name in dtype.names:
            made[name] = rng.integers(-50, 50, length).astype(dtype[name])
        return made
    if dtype.kind == "b":
        return rng.integers(0, 2, length).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 200, length).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(length) + 1j * rng.standard_normal(length)).astype(dtype)
    return rng.standard_normal(length).astype(dtype)


def bytes_of(array):
    return np.ascontiguousarray(array).view(np.uint8)


def on_device(array, offset=0):
    """A copy in device memory, so many bytes from where the allocation begins."""
    raw = bytes_of(array)
    memory = cupy.full(raw.size + offset + 16, POISON, cupy.uint8)
    memory[offset : offset + raw.size] = cupy.asarray(raw)
    return memory[offset : offset + raw.size]


def poisoned(nbytes, offset=0):
    return cupy.full(nbytes + offset + 16, POISON, cupy.uint8)[offset : offset + nbytes]


def check_around(array):
    """What lies before and behind an array in its allocation is as it was."""
    memory = array.base
    start = array.data.ptr - memory.data.ptr
    host = cupy.asnumpy(memory)
    assert (host[:start] == POISON).all() and (host[start + array.nbytes :] == POISON).all()


def folded(op, dtype, arrays):
    out = np.empty_like(arrays[0])
    ops.reduction(op, dtype).fold(out, arrays)
    return out


def expected(collective, inputs, rank, root, op, dtype):
    """What a rank must have at the end, as an array; None where it gets nothing."""
    size = len(inputs)
    block = len(inputs[0]) // size

    def mine(array, r=rank):
        return array[r * block : (r + 1) * block]

    if collective == "allreduce":
        return folded(op, dtype, inputs)
    if collective == "reduce":
        return folded(op, dtype, inputs) if rank == root else None
    if collective == "scan":
        return folded(op, dtype, inputs[: rank + 1])
    if collective == "exscan":
        return folded(op, dtype, inputs[:rank]) if rank else None
    if collective == "reduce_scatter":
        return mine(folded(op, dtype, inputs))
    if collective == "bcast":
        return inputs[root]
    if collective == "allgather":
        return np.concatenate(inputs)
    if collective == "gather":
        return np.concatenate(inputs) if rank == root else None
    if collective == "scatter":
        return mine(inputs[root])
    assert collective == "alltoall"
    return np.concatenate([mine(array) for array in inputs])


def call(peers, world, collective, length, op, dtype, root, in_place, offsets, stream):
    """Run a collective; returns the bytes of this rank's output and what they must be."""
    rank, size = world.Get_rank(), world.Get_size()
    if collective in ("reduce_scatter", "alltoall", "scatter"):
        length *= size
    inputs = [numbers(dtype, length, r) for r in range(size)]
    want = expected(collective, inputs, rank, root, op, dtype)
    mine = inputs[rank]
    nbytes = 0 if want is None else want.nbytes
    at_root = rank == root
    if collective == "bcast":
        recv = on_device(mine if at_root else np.full_like(mine, 0), offsets[1])
        send = None
    elif in_place and collective in WHOLE_IN_PLACE:
        recv, send = on_device(mine, offsets[1]), None
    elif in_place and collective == "allgather":
        recv, send = poisoned(nbytes, offsets[1]), None
        recv[rank * mine.nbytes : (rank + 1) * mine.nbytes] = cupy.asarray(bytes_of(mine))
    elif in_place and at_root and collective == "reduce":
        recv, send = on_device(mine, offsets[1]), None
    elif in_place and at_root and collective == "gather":
        recv, send = poisoned(nbytes, offsets[1]), None
        recv[rank * mine.nbytes : (rank + 1) * mine.nbytes] = cupy.asarray(bytes_of(mine))
    elif collective == "scatter":
        send = on_device(mine, offsets[0]) if at_root else None
        recv = None if at_root and in_place else poisoned(nbytes, offsets[1])
    else:
        send = on_device(mine, offsets[0])
        whole = mine.nbytes if collective == "exscan" else nbytes
        recv = None if want is None and collective != "exscan" else poisoned(whole, offsets[1])
    cupy.cuda.get_current_stream().synchronize()
    peers.run(
        collective,
        None if send is None else Buffer(send, dtype),
        None if recv is None else Buffer(recv, dtype),
        op,
        root,
        stream,
    )
    stream.synchronize()
    peers.check()
    if recv is not None:
        check_around(recv)
    if want is None or recv is None:
        return np.empty(0, np.uint8), np.empty(0, np.uint8)
    return cupy.asnumpy(recv[:nbytes]), bytes_of(want)


def check(peers, world, collective, length, op=None, dtype="f4", root=0, in_place=False,
          offsets=(0, 0), stream=None):  # fmt: skip
    stream = stream or cupy.cuda.get_current_stream()
    got, want = call(peers, world, collective, length, op, dtype, root, in_place, offsets, stream)
    # Which NaN a sum has is not specified; there is none in what is drawn.
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, f"{wrong.size} of {want.size} bytes differ, the first at {wrong[:3]}"


REDUCING = sorted(keys.REDUCING)
MOVING = sorted(set(keys.COLLECTIVES) - keys.REDUCING)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", keys.COLLECTIVES)
def test_lengths(either, world, collective, in_place):
    op = "sum" if collective in keys.REDUCING else None
    for length in LENGTHS:
        for root in {0, world.Get_size() - 1}:
            check(either, world, collective, length, op, "f4", root, in_place)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
@pytest.mark.parametrize("collective", ["allreduce", "alltoall", "bcast"])
def test_any_alignment(either, world, collective, dtype):
    op = "sum" if collective in keys.REDUCING else None
    size = np.dtype(dtype).itemsize
    for offsets in ((size, 0), (0, size), (3 * size, 5 * size), (7 * size, 15 * size)):
        for length in (1, 5, 777, 100_003):
            check(either, world, collective, length, op, dtype, 0, False, offsets)


def types():
    import ml_dtypes

    pair = [
        np.dtype([("value", kind), ("index", "i4")], align=True)
        for kind in ("i2", "i4", "i8", "f4", "f8")
    ]
    return ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", ml_dtypes.bfloat16, "f4",
            "f8", "c8", "c16", *pair]  # fmt: skip


@pytest.mark.parametrize("op", keys.OPS)
def test_operators_and_types(either, world, op):
    served = 0
    for dtype in map(np.dtype, types()):
        if not either.supports("allreduce", op, dtype, 8):
            continue
        served += 1
        for collective, length in (("allreduce", 100), ("allreduce", 150_001), ("scan", 77)):
            check(either, world, collective, length, op, dtype)
    assert served >= 5


def test_special_values(peers, world):
    """Signed zeros, infinities and subnormals, in sums and extremes."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 3.4e38, 1.0], np.float32)
    a, b = (grid.ravel() for grid in np.meshgrid(special, special))
    for op in ("sum", "prod", "max", "min"):
        inputs = [(a, b)[r % 2] for r in range(world.Get_size())]
        with np.errstate(all="ignore"):
            want = folded(op, "f4", inputs)
        mine = cupy.asarray(inputs[world.Get_rank()])
        stream = cupy.cuda.get_current_stream()
        peers.run("allreduce", None, Buffer(mine, "f4"), op, 0, stream)
        got = cupy.asnumpy(mine)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), (op, a[~same], b[~same], got[~same], want[~same])


def test_registered_memory(low, world):
    """The same results where arrays are read and written where they lie, by some or all."""
    length = 1_000_000
    rank, size = world.Get_rank(), world.Get_size()
    stream = cupy.cuda.get_current_stream()
    # Not aligned, also what no peer needs: then all go through the window.
    cases = [(True, (0, 0)), (False, (0, 0)), (True, (4, 0)), (True, (0, 4))]
    for everywhere, offsets in cases:
        memory = [cupy.empty(4 * length * size + 16, cupy.uint8) for _ in range(2)]
        given = memory if everywhere or rank == 0 else [cupy.empty(1024, cupy.uint8)] * 2
        held = low.register([(array.data.ptr, array.nbytes) for array in given])
        assert held.direct
        for collective in sorted(keys.DIRECT):
            op = "sum" if collective in keys.REDUCING else None
            total = length - length % (4 * size)
            inputs = [numbers("f4", total, r) for r in range(size)]
            want = expected(collective, inputs, rank, 0, op, "f4")
            send = memory[0][offsets[0] :][: 4 * total]
            send[...] = cupy.asarray(bytes_of(inputs[rank]))
            recv = memory[1][offsets[1] :][: want.nbytes if want is not None else 0]
            recv[...] = POISON
            if collective == "bcast":
                recv, send = send, None
                if rank:
                    recv[...] = POISON
            stream.synchronize()
            low.run(
                collective,
                None if send is None else Buffer(send, "f4"),
                None if want is None else Buffer(recv, "f4"),
                op,
                0,
                stream,
            )
            stream.synchronize()
            low.check()
            if want is not None:
                assert np.array_equal(cupy.asnumpy(recv), bytes_of(want)), collective
        held.close()


@pytest.fixture(scope="module")
def around(world):
    """The peers as if their GPUs were linked in a ring alone."""
    size = world.Get_size()
    if size < 3:
        pytest.skip("two ranks are no ring")
    order = tuple(np.random.default_rng(size).permutation(size).tolist())
    with opened(world, limits=LOW._replace(ring=order)) as made:
        yield made


def folded_around(op, dtype, inputs, order, owner, part):
    """The block that belongs to a rank: its fold begins right of it and ends there."""
    first = order.index(owner) + 1
    travels = [order[(first + k) % len(order)] for k in range(len(order))]
    value = inputs[travels[0]][part]
    for before, rank in itertools.pairwise(travels):
        own = inputs[rank][part]
        value = folded(op, dtype, [value, own] if before < rank else [own, value])
    return value


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("op", "dtype"), [("sum", "f4"), ("sum", "f2"), ("prod", "c16"), ("max", "u1")]
)
@pytest.mark.parametrize("collective", sorted(keys.RING))
def test_around_a_ring(around, world, collective, op, dtype, in_place):
    rank, size = world.Get_rank(), world.Get_size()
    order, stream = around._limits.ring, cupy.cuda.get_current_stream()
    for length in (1, 60, 1000, 70_001, 300_007):
        reduces = collective in keys.REDUCING
        got, want = call(
            around, world, collective, length, op if reduces else None, dtype, 0, in_place,
            (0, 4) if length == 1000 else (0, 0), stream,
        )  # fmt: skip
        if reduces:
            total = length * (size if collective == "reduce_scatter" else 1)
            inputs = [numbers(dtype, total, r) for r in range(size)]
            width = length
            if collective == "allreduce":
                row = 512 // np.dtype(dtype).itemsize
                width = -(-length // (row * size)) * row
            blocks = [
                folded_around(op, dtype, inputs, order, r, slice(r * width, (r + 1) * width))
                for r in (range(size) if collective == "allreduce" else [rank])
            ]
            want = bytes_of(np.concatenate(blocks))
        assert np.array_equal(got, want), (length, np.flatnonzero(got != want)[:3])


def test_calls_around_a_ring_follow_each_other(around, world):
    """At once, of many lengths, also replayed by a graph."""
    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [cupy.ones(n, cupy.float64) for n in (1, 700, 90_000, 3, 400_000)]
    cupy.cuda.Device().synchronize()

    def all_of_them():
        for array in arrays:
            for op in ("sum", "max"):
                around.run("allreduce", None, Buffer(array, "f8"), op, 0, stream)

    all_of_them()
    stream.begin_capture()
    all_of_them()
    graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream)
        all_of_them()
    stream.synchronize()
    around.check()
    for array in arrays:
        assert bool((array == float(world.Get_size()) ** 7).all())
    assert not around.supports("alltoall", None, np.dtype("f8"), 8)
    assert not around.register([(arrays[4].data.ptr, arrays[4].nbytes)]).direct


def test_an_allocation_stays_while_it_is_mapped(peers, world):
    """A pool frees what is registered only when no peer has it mapped any more."""
    pool = cupy.cuda.MemoryPool()
    stream = cupy.cuda.get_current_stream()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.full(1 << 20, world.Get_rank() + 1, cupy.float32)
        held = peers.register([(x.data.ptr, x.nbytes)], x)
        again = peers.register([(x.data.ptr + 4096, 4096)], x)  # mapped once
        peers.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream)
        assert bool((x == world.Get_size() * (world.Get_size() + 1) / 2).all())
        del x
        pool.free_all_blocks()
        assert pool.total_bytes() > 0
        held.close()
        again.close()
        peers.register([(0, 0)])
        stream.synchronize()
        pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_memory_of_its_own(low, world):
    stream = cupy.cuda.get_current_stream()
    before = cupy.cuda.runtime.memGetInfo()[0]
    for _ in range(3):
        address, token = low.empty(64 << 20)
        memory = cupy.cuda.UnownedMemory(address, 64 << 20, token, low.device)
        x = cupy.ndarray(16 << 20, cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
        x[...] = 1
        low.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream)
        assert bool((x == world.Get_size()).all())
        del x, memory, token
    low.register([(0, 0)])
    assert before - cupy.cuda.runtime.memGetInfo()[0] < 64 << 20
    with pytest.raises(MemoryError, match=str(1 << 50)):
        low.empty(1 << 50)


def test_a_plan_reads_its_buffers_where_they_lie(low, world):
    rank, size = world.Get_rank(), world.Get_size()
    x = cupy.empty(1_000_003, cupy.float64)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        plan = low.bind("allreduce", None, Buffer(x, "f8"), "sum", 0)
        for number in range(3):
            x[...] = rank + number
            plan.start(stream)
            assert bool((x == size * (size - 1) / 2 + size * number).all())
        stream.begin_capture()
        plan.start(stream)
        graph = stream.end_capture()
        plan.close()
        low.register([(0, 0)])
        x[...] = 1
        graph.launch(stream)
        assert bool((x == size).all())
    stream.synchronize()


@pytest.mark.parametrize("warm", ["stream", "null"])
@pytest.mark.parametrize("non_blocking", [True, False])
def test_a_graph_among_other_calls(peers, world, non_blocking, warm):
    rank, size = world.Get_rank(), world.Get_size()
    stream = cupy.cuda.Stream(non_blocking=non_blocking)
    x = cupy.zeros(5000, cupy.float64)
    total = size * (size + 1) / 2
    first = stream if warm == "stream" else cupy.cuda.Stream.null
    peers.run("allreduce", None, Buffer(x, "f8"), "max", 0, first)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for _ in range(3):
            peers.run("allreduce", None, Buffer(x, "f8"), "sum", 0, stream)
        graph = stream.end_capture()
        for _ in range(5):
            x[...] = rank + 1
            graph.launch(stream)
            peers.run("allreduce", None, Buffer(x, "f8"), "sum", 0, stream)
            assert np.all(cupy.asnumpy(x, stream=stream) == total * size**3)


def test_a_graph_of_two_streams(peers, world):
    """Its calls are in the order in which they were made, also where nothing else says so."""
    rank, size = world.Get_rank(), world.Get_size()
    one, two = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.zeros(500_000, cupy.float64)
    cupy.cuda.Device().synchronize()
    peers.run("allreduce", None, Buffer(x, "f8"), "max", 0, one)
    one.begin_capture()
    two.wait_event(one.record())
    for stream in (one, two, two, one, two):
        peers.run("allreduce", None, Buffer(x, "f8"), "sum", 0, stream)
    one.wait_event(two.record())
    graph = one.end_capture()
    for _ in range(5):
        with one:
            x[...] = rank + 1
            graph.launch(one)
        peers.run("allreduce", None, Buffer(x, "f8"), "max", 0, one)
        assert np.all(cupy.asnumpy(x, stream=one) == size * (size + 1) / 2 * size**4)


def test_registered_buffers_of_a_graph_stay(low, world):
    """Also when they have been let go, and others are registered."""
    rank, size = world.Get_rank(), world.Get_size()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        given, wanted, other = (cupy.zeros(n, cupy.float32) for n in (8192, 8192 * size, 8192))
        held = low.register([(array.data.ptr, array.nbytes) for array in (given, wanted)])
        assert held.direct
        call = "allgather", Buffer(given, "f4"), Buffer(wanted, "f4"), None, 0, stream
        low.run(*call)
        stream.begin_capture()
        low.run(*call)
        graph = stream.end_capture()
        held.close()
        again = low.register([(other.data.ptr, other.nbytes)])
        given[...], wanted[...] = rank + 1, 0
        graph.launch(stream)
        assert np.array_equal(cupy.asnumpy(wanted), np.repeat(np.arange(1, size + 1), 8192))
        assert not other.any()
        again.close()
    low.check()


def test_arrays_on_the_default_stream_go_the_fast_path(world):
    import mpicoll

    comm = mpicoll.Intracomm(world.Dup())
    if comm.gpu_transport() == "cuda_ipc" and comm._state.fast_path.path is not None:
        x = cupy.ones(10, cupy.float32)
        comm.Allreduce(MPI.IN_PLACE, x)
        assert comm._state.gpus.peers.serve("allreduce", MPI.IN_PLACE, x, MPI.SUM, 0)
        assert bool((x == world.Get_size() ** 2).all())
    comm.Free()


def test_streams_are_chained(peers, world):
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    streams += [cupy.cuda.Stream.null, cupy.cuda.Stream.ptds]
    x = cupy.ones(3_000_000, cupy.float32)
    cupy.cuda.Device().synchronize()
    for i in range(20):
        peers.run("allreduce", None, Buffer(x, "f4"), "max", 0, streams[i % len(streams)])
        peers.run("allreduce", None, Buffer(x, "f4"), "sum", 0, streams[(i + 1) % len(streams)])
    cupy.cuda.Device().synchronize()
    peers.check()
    assert bool((x == float(world.Get_size()) ** 20).all())


def test_the_fast_path(peers, world):
    x = cupy.full(1000, world.Get_rank() + 1, cupy.int64)
    total = world.Get_size() * (world.Get_size() + 1) // 2
    arguments = "allreduce", MPI.IN_PLACE, x, MPI.SUM, 0
    if not peers.serve(*arguments):
        peers.learn(*arguments)
        assert peers.serve(*arguments)
    assert bool((x == total).all())
    assert not peers.serve("allreduce", MPI.IN_PLACE, x[::2], MPI.SUM, 0)
    assert not peers.serve("allreduce", MPI.IN_PLACE, np.ones(1000), MPI.SUM, 0)
    assert not peers.serve("allreduce", MPI.IN_PLACE, x, MPI.PROD, 0)


def test_memory_of_a_pool_of_the_stream_goes_through_the_window(peers, world):
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.ones(1 << 20, cupy.float32)
    held = peers.register([(x.data.ptr, x.nbytes)])
    assert not held.direct
    peers.run("allreduce", None, Buffer(x, "f4"), "sum", 0, cupy.cuda.get_current_stream())
    assert bool((x == world.Get_size()).all())
    del x
    pool.free_all_blocks()


def test_a_peer_that_does_not_come(world):
    """The wait ends, the error is raised by the next call, and by all after it."""
    x = cupy.ones(100, cupy.float32)
    stream = cupy.cuda.get_current_stream()
    with opened(world, seconds=1.0) as peers:
        if world.Get_rank() == 0 and world.Get_size() > 1:
            began = time.monotonic()
            peers.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream)
            stream.synchronize()
            assert time.monotonic() - began < 10
            for _ in range(2):
                with pytest.raises(RuntimeError, match=r"has waited on its GPU for rank \d"):
                    peers.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream)
        world.Barrier()


def test_a_peer_that_dies(world):
    """The GPU is not left spinning: who watches the processes ends the wait."""
    x = cupy.ones(100, cupy.float32)
    stream = cupy.cuda.get_current_stream()
    with opened(world) as peers, subprocess.Popen(["sleep", "100"]) as child:
        if world.Get_rank() == 0 and world.Get_size() > 1:
            peers._watchdog.close()
            peers._watchdog = Watchdog({1: child.pid}, peers._launcher.stop)
            peers.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream)
            began = time.monotonic()
            child.kill()
            stream.synchronize()
            assert time.monotonic() - began < 5
            with pytest.raises(RuntimeError, match="the process of rank 1 has died"):
                peers.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream)
        child.kill()
        world.Barrier()


@pytest.mark.parametrize("legacy", [False, True], ids=["stream", "default stream"])
@pytest.mark.parametrize("what", ["register", "plan", "open"])
def test_what_is_collective_does_not_wait_for_other_communicators(world, what, legacy):
    """One rank enqueues a call of another communicator before, the others after."""
    x, y = cupy.ones(1000, cupy.float32), cupy.ones(1 << 20, cupy.float32)
    stream = cupy.cuda.Stream.null if legacy else cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with (
        opened(world, seconds=5.0) as one,
        opened(world, seconds=5.0) as other,
        contextlib.ExitStack() as ends,
    ):
        steps = [
            lambda: other.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream),
            lambda: {
                "register": lambda: one.register([(y.data.ptr, y.nbytes)], y),
                "plan": lambda: one.bind("allreduce", None, Buffer(y, "f4"), "sum", 0),
                "open": lambda: ends.enter_context(opened(world, seconds=5.0)),
            }[what](),
        ]
        for step in steps if world.Get_rank() == 0 else steps[::-1]:
            step()
        stream.synchronize()
        other.check()
        assert bool((x == world.Get_size()).all())


def test_two_communicators_register_the_same_allocation(low, world):
    """A process maps it once; it is read where it lies as long as one of them has it registered."""
    total = world.Get_size() * (world.Get_size() + 1) // 2
    stream = cupy.cuda.get_current_stream()
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.empty(1 << 20, cupy.int32)
    with opened(world, limits=LOW) as other:
        held = [peers.register([(x.data.ptr, x.nbytes)], x) for peers in (low, other)]
        assert held[0].direct and held[1].direct
        for peers in (other, low):
            x[...] = world.Get_rank() + 1
            peers.run("allreduce", None, Buffer(x, "i4"), "sum", 0, stream)
            assert bool((x == total).all())
        held[1].close()
        other.register([(0, 0)])
        x[...] = world.Get_rank() + 1
        low.run("allreduce", None, Buffer(x, "i4"), "sum", 0, stream)
        assert bool((x == total).all())
    held[0].close()
    low.register([(0, 0)])
    del x, held
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@contextlib.contextmanager
def virtual_memory(nbytes, device):
    """The address of memory by virtual memory management, in whole multiples of 2 MiB."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(driver, name)(*arguments)
        assert not status, f"{name}: CUDA error {status}"

    size, nothing = ctypes.c_size_t(nbytes), ctypes.c_uint64(0)
    handle, address = ctypes.c_uint64(), ctypes.c_uint64()
    pinned_on_device = struct.pack("iiiiQQ", 1, 0, 1, device, 0, 0)
    readable_and_writable = struct.pack("iii", 1, device, 3)
    call("cuMemCreate", ctypes.byref(handle), size, pinned_on_device, nothing)
    call("cuMemAddressReserve", ctypes.byref(address), size, nothing, nothing, nothing)
    call("cuMemMap", address, size, nothing, handle, nothing)
    call("cuMemSetAccess", address, size, readable_and_writable, ctypes.c_size_t(1))
    try:
        yield address.value
    finally:
        call("cuMemUnmap", address, size)
        call("cuMemAddressFree", address, size)
        call("cuMemRelease", handle)


@pytest.mark.parametrize("kind", ["managed", "virtual"])
def test_memory_that_cannot_be_mapped_goes_through_the_window(low, world, kind):
    nbytes, device = 2 << 20, cupy.cuda.Device().id
    stream = cupy.cuda.get_current_stream()
    with contextlib.ExitStack() as memories:
        if kind == "managed":
            memory = cupy.cuda.malloc_managed(nbytes)
        else:
            address = memories.enter_context(virtual_memory(nbytes, device))
            owned = cupy.cuda.UnownedMemory(address, nbytes, memories, device)
            memory = cupy.cuda.MemoryPointer(owned, 0)
        x = cupy.ndarray(nbytes // 4, cupy.float32, memory)
        x[...] = world.Get_rank() + 1
        held = low.register([(x.data.ptr, x.nbytes)], x)
        assert not held.direct
        low.run("allreduce", None, Buffer(x, "f4"), "sum", 0, stream)
        assert bool((x == world.Get_size() * (world.Get_size() + 1) / 2).all())
        low.check()
        stream.synchronize()


def in_opposite_order(world, calls):
    """Make calls, on rank 0 in the order that is given."""
    for call_ in calls if world.Get_rank() == 0 else calls[::-1]:
        call_()


def failure(peers):
    """What `check` raises, in words; "" if nothing."""
    try:
        peers.check()
    except RuntimeError as error:
        return str(error)
    return ""


def test_communicators_in_opposite_order_on_streams_of_their_own(world):
    """Short ones find room on the GPU side by side, and finish."""
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    arrays = [cupy.ones(100, cupy.int64) for _ in streams]
    cupy.cuda.Device().synchronize()
    with opened(world, seconds=10.0) as one, opened(world, seconds=10.0) as other:
        for _ in range(3):
            in_opposite_order(
                world,
                [
                    lambda p=p, x=x, s=s: p.run("allreduce", None, Buffer(x, "i8"), "sum", 0, s)
                    for p, x, s in zip((one, other), arrays, streams, strict=True)
                ],
            )
        for peers, array, stream in zip((one, other), arrays, streams, strict=True):
            stream.synchronize()
            peers.check()
            assert bool((array == world.Get_size() ** 3).all())


def test_communicators_in_opposite_order_on_one_stream(world):
    """Which waits for itself: that ends by the limit, and every rank is told."""
    limits = Limits.of(world.Get_size())._replace(blocks=4)  # many steps of few warps
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.ones(1 << 20, cupy.float32)
    cupy.cuda.Device().synchronize()
    with (
        opened(world, seconds=2.0, limits=limits) as one,
        opened(world, seconds=2.0, limits=limits) as other,
    ):
        in_opposite_order(
            world,
            [
                lambda p=p: p.run("allreduce", None, Buffer(x, "f4"), "max", 0, stream)
                for p in (one, other)
            ],
        )
        stream.synchronize()
        told = [*filter(None, map(failure, (one, other)))]
        world.Barrier()
        assert bool(told) == (world.Get_size() > 1)
        assert all("has waited on its GPU for rank" in error for error in told)
