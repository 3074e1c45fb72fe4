"""Memory that GPUs map of each other: what is registered, graphs, streams, and peers that fail."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import subprocess
import time

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
from gpu_peers import LOW, Buffer, opened  # noqa: E402
from mpi4py import MPI  # noqa: E402

from mpicoll.cuda.launches import Limits  # noqa: E402
from mpicoll.cuda.liveness import Watchdog  # noqa: E402


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
        peers.learn(*arguments, x.dtype)
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
