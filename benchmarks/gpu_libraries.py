"""Whose collectives benchmarks/gpu.py measures: each library makes of a case what runs it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
from cupy.cuda import nccl
from gpu_cases import RANK, SIZE, Allocate, Case, element_type
from mpi4py import MPI

import mpicoll.cuda

WORLD = MPI.COMM_WORLD
NCCL_TYPES = {"float32": 7, "float16": 6, "bfloat16": 9}

Run = Callable[[], object]


def nothing() -> None:
    """There is nothing to do."""


class Bound(NamedTuple):
    """A collective on the buffers of a case, on the current stream.

    Attributes:
        run: enqueues it.
        wait: until the last one is complete.
        settle: makes ready for the next ones, once all are complete.
        close: there are no next ones.
    """

    run: Run
    wait: Run
    settle: Run = nothing
    close: Run = nothing


class Way(NamedTuple):
    """How collectives are called.

    Attributes:
        figures: what can be measured of it.
        stream: makes the stream that all is on.
        persistent: whether mpicoll's are persistent ones; NCCL has none.
    """

    figures: tuple[str, ...] = ("graph", "stream", "host")
    stream: Callable[[], Any] = lambda: cupy.cuda.Stream(non_blocking=True)
    persistent: bool = False


#: By name.  The default stream cannot be captured; the host waits for what is persistent.
WAYS = {
    "plain": Way(),
    "default-stream": Way(("stream", "host"), lambda: cupy.cuda.Stream.null),
    "persistent": Way(("stream", "host"), persistent=True),
    "registered": Way(),
    "unaligned": Way(),
}


def allocator(way: str, comm: mpicoll.Intracomm) -> Allocate:
    """What makes the buffers of all libraries; collective where they are registered."""
    if way == "registered":
        return lambda count, dtype: mpicoll.cuda.empty(count, dtype, comm)
    if way == "unaligned":
        return lambda count, dtype: cupy.empty(count + 1, dtype)[1:]
    return cupy.empty


class Ours:
    """mpicoll, through the communicator's methods."""

    captured = True

    def __init__(self, comm: mpicoll.Intracomm) -> None:
        self.comm = comm
        #: Whether sums have the bits of those in rank order.
        self.exact = SIZE <= 2 or comm.gpu_transport() == "cuda_ipc"

    def bind(self, case: Case, calls: int) -> Bound:
        """Args: case: what to call it on.  calls: enqueued at most before they are waited for."""
        dtype = element_type(case.point.dtype)
        send, recv = (a.view(dtype) for a in (case.send, case.recv))
        comm, place, name = self.comm, MPI.IN_PLACE, case.point.collective
        if WAYS[case.point.way].persistent:
            make: Callable[[], Any] = {
                "allreduce": lambda: comm.Allreduce_init(place, recv, MPI.SUM),
                "bcast": lambda: comm.Bcast_init(recv),
                "allgather": lambda: comm.Allgather_init(send, recv),
                "reduce_scatter": lambda: comm.Reduce_scatter_block_init(send, recv, MPI.SUM),
                "alltoall": lambda: comm.Alltoall_init(send, recv),
            }[name]
            return started([make() for _ in range(calls)])
        run: Run = {
            "allreduce": lambda: comm.Allreduce(place, recv, MPI.SUM),
            "bcast": lambda: comm.Bcast(recv),
            "allgather": lambda: comm.Allgather(send, recv),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(send, recv, MPI.SUM),
            "alltoall": lambda: comm.Alltoall(send, recv),
        }[name]
        return Bound(run, cupy.cuda.get_current_stream().synchronize)


def started(plans: list[Any]) -> Bound:
    """Persistent operations, each started in turn: one cannot be before it has been waited for."""
    turn = itertools.cycle(plans)
    last = plans[-1]

    def run() -> None:
        nonlocal last
        last = next(turn)
        last.Start()

    def settle() -> None:
        for plan in plans:
            plan.Wait()

    def close() -> None:
        for plan in plans:
            plan.Free()

    return Bound(run, lambda: last.Wait(), settle, close)


class Nccl:
    """NCCL through CuPy's binding."""

    #: Of two values there is one sum.
    exact = SIZE <= 2
    captured = True

    def __init__(self) -> None:
        identity = WORLD.bcast(nccl.get_unique_id() if RANK == 0 else None)
        self.comm = nccl.NcclCommunicator(SIZE, identity, RANK)

    def bind(self, case: Case, calls: int) -> Bound:
        """As `Ours.bind`."""
        point, comm = case.point, self.comm
        kind, add = NCCL_TYPES[point.dtype], nccl.NCCL_SUM
        send, recv = case.send.data.ptr, case.recv.data.ptr
        current = cupy.cuda.get_current_stream()
        stream = current.ptr
        step = point.block * point.itemsize

        def alltoall() -> None:
            nccl.groupStart()
            for k in range(SIZE):
                to, source = (RANK + k) % SIZE, (RANK - k) % SIZE
                comm.send(send + to * step, point.block, kind, to, stream)
                comm.recv(recv + source * step, point.block, kind, source, stream)
            nccl.groupEnd()

        run: Run = {
            "allreduce": lambda: comm.allReduce(send, recv, point.count, kind, add, stream),
            "bcast": lambda: comm.broadcast(recv, recv, point.count, kind, 0, stream),
            "allgather": lambda: comm.allGather(send, recv, point.block, kind, stream),
            "reduce_scatter": lambda: comm.reduceScatter(
                send, recv, point.block, kind, add, stream
            ),
            "alltoall": alltoall,
        }[point.collective]
        return Bound(run, current.synchronize)


class Torch:
    """NCCL through torch.distributed."""

    exact = SIZE <= 2
    captured = False

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        torch.cuda.set_device(cupy.cuda.Device().id)
        store = None
        if RANK == 0:
            store = dist.TCPStore("127.0.0.1", 0, SIZE, is_master=True, wait_for_workers=False)
        port = WORLD.bcast(store.port if store else None)
        if store is None:
            store = dist.TCPStore("127.0.0.1", port, SIZE, is_master=False)
        dist.init_process_group("nccl", store=store, rank=RANK, world_size=SIZE)

    def bind(self, case: Case, calls: int) -> Bound:
        """As `Ours.bind`."""
        point, dist, cuda = case.point, self.dist, self.torch.cuda
        current = cupy.cuda.get_current_stream()
        cuda.set_stream(cuda.ExternalStream(current.ptr) if current.ptr else cuda.default_stream())
        kind = getattr(self.torch, point.dtype)
        width = cupy.int32 if point.itemsize == 4 else cupy.int16
        send, recv = (
            self.torch.from_dlpack(array.view(width)).view(kind) for array in (case.send, case.recv)
        )
        run: Run = {
            "allreduce": lambda: dist.all_reduce(recv),
            "bcast": lambda: dist.broadcast(recv, 0),
            "allgather": lambda: dist.all_gather_into_tensor(recv, send),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(recv, send),
            "alltoall": lambda: dist.all_to_all_single(recv, send),
        }[point.collective]
        return Bound(run, current.synchronize)

    def close(self) -> None:
        self.dist.destroy_process_group()
