"""mpicoll's collectives of arrays in GPU memory against NCCL, in one launch.

    mpirun -n 2 python benchmarks/gpu.py [--collectives allreduce bcast] [--dtypes float32 float16]
        [--smallest 8] [--largest 1G] [--rounds 5] [--torch] [--json results.jsonl]

NCCL is called through CuPy's binding and, with ``--torch``, through torch.distributed.  Three
figures of each, the longest of any rank: ``graph``, device time of a call in a captured graph of
20; ``stream``, device time of a call among 20 that are enqueued one by one; ``host``, from the call
to its end as the host sees it.  In every round each library takes its turn at each figure, the
order changing from round to round; the ratio is that of the medians, its interval (95 %) is found
by resampling the rounds.  All-reduce is in place, the others are not.

Inputs are random and drawn anew for every point; ``wrong`` counts the elements of the result that
differ from those folded in rank order on this GPU.  ``copy`` is what two ranks reach that copy from
each other's memory at the same time, one way, in GB/s (1e9 bytes).  Every finished point is written
at once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy.cuda import nccl
from mpi4py import MPI

import mpicoll
from mpicoll.bench import environment
from mpicoll.bench.sizes import parse_size
from mpicoll.bench.stats import median

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
#: Calls in a graph, and between two events.
CALLS = 20
FIGURES = ("graph", "stream", "host")
DTYPES = ("float32", "float16", "bfloat16")
NCCL_TYPES = {"float32": 7, "float16": 6, "bfloat16": 9}
#: Seeds of the generator that every rank can follow.
SEED = 20_000

Run = Callable[[], object]


class Point(NamedTuple):
    """What is measured: a collective, a type, bytes of the whole vector."""

    collective: str
    dtype: str
    nbytes: int

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def count(self) -> int:
        """Elements of the whole vector."""
        return self.nbytes // self.itemsize

    @property
    def block(self) -> int:
        """Elements of one rank's block."""
        return self.count // SIZE


def element_type(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def drawn(point: Point, rank: int, count: int) -> Any:
    """Random elements of a rank, as the unsigned integers that their bits are."""
    generator = cupy.random.Generator(cupy.random.XORWOW(SEED + point.nbytes % 9973 + rank))
    values = generator.random(count, dtype=cupy.float32)
    values -= cupy.float32(0.5)
    return narrowed(values, point.dtype)


def narrowed(values: Any, dtype: str) -> Any:
    """float32 rounded to a type, to the nearest even."""
    if dtype == "float32":
        return values.view(cupy.uint32)
    if dtype == "float16":
        return values.astype(cupy.float16).view(cupy.uint16)
    bits = values.view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def widened(bits: Any, dtype: str) -> Any:
    """The same as float32."""
    if dtype == "float32":
        return bits.view(cupy.float32)
    if dtype == "float16":
        return bits.view(cupy.float16).astype(cupy.float32)
    return (bits.astype(cupy.uint32) << 16).view(cupy.float32)


class Case:
    """The buffers of a point, and what must be in them at the end."""

    def __init__(self, point: Point) -> None:
        self.point = point
        count, block = point.count, point.block
        sent = block if point.collective == "allgather" else count
        got = block if point.collective == "reduce_scatter" else count
        self.input = drawn(point, RANK, sent)
        self.in_place = point.collective in ("allreduce", "bcast")
        self.send = self.input.copy()
        self.recv = self.send if self.in_place else cupy.empty(got, self.send.dtype)

    def refresh(self) -> None:
        """Put the input back, and something else where the output will be."""
        self.recv.view(cupy.uint8).fill(0xA5)
        self.send[...] = self.input

    def wrong(self) -> int:
        """Elements that are not what they must be."""
        point, block = self.point, self.point.block
        mine = slice(RANK * block, (RANK + 1) * block)
        if point.collective == "bcast":
            return int((self.recv != drawn(point, 0, point.count)).sum())
        if point.collective == "allgather":
            return sum(
                int((self.recv[r * block : (r + 1) * block] != drawn(point, r, block)).sum())
                for r in range(SIZE)
            )
        if point.collective == "alltoall":
            return sum(
                int((self.recv[r * block : (r + 1) * block] != drawn(point, r, point.count)[mine])
                    .sum())
                for r in range(SIZE)
            )  # fmt: skip
        total = widened(drawn(point, 0, point.count), point.dtype)
        for rank in range(1, SIZE):
            total = total + widened(drawn(point, rank, point.count), point.dtype)
        total = narrowed(total, point.dtype)
        return int((self.recv != (total if self.in_place else total[mine])).sum())


# ---- The libraries: each makes of a case what runs it on CuPy's current stream ----


class Ours:
    """mpicoll, through the communicator's methods."""

    def __init__(self, comm: mpicoll.Intracomm) -> None:
        self.comm = comm

    def bind(self, case: Case) -> Run:
        dtype = element_type(case.point.dtype)
        send, recv = (a.view(dtype) for a in (case.send, case.recv))
        comm, place = self.comm, MPI.IN_PLACE
        return {
            "allreduce": lambda: comm.Allreduce(place, recv, MPI.SUM),
            "bcast": lambda: comm.Bcast(recv),
            "allgather": lambda: comm.Allgather(send, recv),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(send, recv, MPI.SUM),
            "alltoall": lambda: comm.Alltoall(send, recv),
        }[case.point.collective]


class Nccl:
    """NCCL through CuPy's binding."""

    def __init__(self) -> None:
        identity = WORLD.bcast(nccl.get_unique_id() if RANK == 0 else None)
        self.comm = nccl.NcclCommunicator(SIZE, identity, RANK)

    def bind(self, case: Case) -> Run:
        point, comm = case.point, self.comm
        kind, add = NCCL_TYPES[point.dtype], nccl.NCCL_SUM
        send, recv = case.send.data.ptr, case.recv.data.ptr
        stream = cupy.cuda.get_current_stream().ptr
        step = point.block * point.itemsize

        def alltoall() -> None:
            nccl.groupStart()
            for k in range(SIZE):
                to, source = (RANK + k) % SIZE, (RANK - k) % SIZE
                comm.send(send + to * step, point.block, kind, to, stream)
                comm.recv(recv + source * step, point.block, kind, source, stream)
            nccl.groupEnd()

        return {
            "allreduce": lambda: comm.allReduce(send, recv, point.count, kind, add, stream),
            "bcast": lambda: comm.broadcast(recv, recv, point.count, kind, 0, stream),
            "allgather": lambda: comm.allGather(send, recv, point.block, kind, stream),
            "reduce_scatter": lambda: comm.reduceScatter(
                send, recv, point.block, kind, add, stream
            ),
            "alltoall": alltoall,
        }[point.collective]


class Torch:
    """NCCL through torch.distributed."""

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
        self.stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)
        torch.cuda.set_stream(self.stream)

    def bind(self, case: Case) -> Run:
        point, dist = case.point, self.dist
        kind = getattr(self.torch, point.dtype)
        width = cupy.int32 if point.itemsize == 4 else cupy.int16
        send, recv = (
            self.torch.from_dlpack(array.view(width)).view(kind) for array in (case.send, case.recv)
        )
        return {
            "allreduce": lambda: dist.all_reduce(recv),
            "bcast": lambda: dist.broadcast(recv, 0),
            "allgather": lambda: dist.all_gather_into_tensor(recv, send),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(recv, send),
            "alltoall": lambda: dist.all_to_all_single(recv, send),
        }[point.collective]


# ---- Measuring ----


def meet() -> None:
    """All ranks and GPUs begin together."""
    cupy.cuda.get_current_stream().synchronize()
    WORLD.Barrier()


class Timer:
    """Takes samples of one library on one case, in seconds a call, the longest of any rank."""

    def __init__(self, case: Case, run: Run) -> None:
        self.case, self.run = case, run
        self.stream = cupy.cuda.get_current_stream()
        self.events = cupy.cuda.Event(), cupy.cuda.Event()
        self.graph: Any = None

    def capture(self) -> None:
        self.stream.begin_capture()
        for _ in range(CALLS):
            self.run()
        self.graph = self.stream.end_capture()
        self.graph.upload(self.stream)

    def between_events(self, enqueue: Run) -> float:
        self.case.refresh()
        meet()
        self.events[0].record(self.stream)
        enqueue()
        self.events[1].record(self.stream)
        self.events[1].synchronize()
        return cupy.cuda.get_elapsed_time(*self.events) * 1e-3 / CALLS

    def stream_once(self) -> None:
        for _ in range(CALLS):
            self.run()

    def host_once(self) -> float:
        """One call after another, each waited for."""
        self.case.refresh()
        meet()
        began = time.perf_counter()
        for _ in range(CALLS):
            self.run()
            self.stream.synchronize()
        return (time.perf_counter() - began) / CALLS

    def sample(self, figure: str) -> float:
        if figure == "graph":
            taken = self.between_events(lambda: self.graph.launch(self.stream))
        elif figure == "stream":
            taken = self.between_events(self.stream_once)
        else:
            taken = self.host_once()
        return float(WORLD.allreduce(taken, MPI.MAX))


def interval(
    ours: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[float, ...]:
    """The ratio of the medians, and its 95 % interval by resampling rounds, then samples."""
    rng = random.Random(1)

    def ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
        flat = [sorted(time for turn in turns for time in turn) for turns in (a, b)]
        return median(flat[0]) / median(flat[1])

    rounds = len(ours)
    again = []
    for _ in range(400):
        picked = [rng.randrange(rounds) for _ in range(rounds)]
        again.append(
            ratio(
                [rng.choices(ours[r], k=len(ours[r])) for r in picked],
                [rng.choices(other[r], k=len(other[r])) for r in picked],
            )
        )
    again.sort()
    return ratio(ours, other), again[9], again[389]


def measure(point: Point, libraries: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One point: all figures of all libraries."""
    case = Case(point)
    timers = {name: Timer(case, library.bind(case)) for name, library in libraries.items()}
    wrong = {}
    for name, timer in timers.items():
        case.refresh()
        meet()
        timer.run()
        meet()
        wrong[name] = WORLD.allreduce(case.wrong())
        for _ in range(3):
            timer.run()
        meet()
        if "graph" in options.figures and name != "torch":
            timer.capture()
            timer.graph.launch(timer.stream)
        meet()
    samples = 1 if point.nbytes >= 1 << 30 else 2 if point.nbytes >= 1 << 26 else options.samples
    taken: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(options.rounds):
        names = sorted(timers, reverse=bool(number % 2))
        for figure in options.figures:
            for name in names:
                if name == "torch" and figure == "graph":
                    continue
                turn = [timers[name].sample(figure) for _ in range(samples)]
                taken.setdefault((name, figure), []).append(turn)
    record: dict[str, Any] = {**point._asdict(), "ranks": SIZE, "wrong": wrong}
    for (name, figure), turns in taken.items():
        record[f"{name}_{figure}_us"] = round(
            1e6 * median(sorted(t for turn in turns for t in turn)), 3
        )
        if name != "mpicoll":
            found = interval(taken["mpicoll", figure], turns)
            record[f"ratio_{name}_{figure}"] = [round(x, 4) for x in found]
    record["samples"] = {
        f"{name}_{figure}": [[round(1e6 * t, 3) for t in turn] for turn in turns]
        for (name, figure), turns in taken.items()
    }
    return record


def copies(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """What two ranks reach that copy from each other at the same time, or one of them alone."""
    if SIZE != 2 or not sizes:
        return []
    runtime = cupy.cuda.runtime
    most = max(sizes)
    here, there = cupy.empty(most, cupy.uint8), cupy.empty(most, cupy.uint8)
    here.fill(RANK + 1)
    cupy.cuda.Device().synchronize()
    base = here.data.mem.ptr
    offsets = WORLD.allgather(here.data.ptr - base)
    handles = WORLD.allgather(runtime.ipcGetMemHandle(base))
    peer = runtime.ipcOpenMemHandle(handles[1 - RANK]) + offsets[1 - RANK]
    stream = cupy.cuda.get_current_stream()
    events = cupy.cuda.Event(), cupy.cuda.Event()
    found = []
    for nbytes in sizes:
        for both in (True, False):
            rates = []
            for _ in range(7):
                meet()
                events[0].record(stream)
                if both or RANK == 0:
                    for _ in range(4):
                        runtime.memcpyAsync(there.data.ptr, peer, nbytes, 4, stream.ptr)
                events[1].record(stream)
                events[1].synchronize()
                taken = WORLD.allreduce(cupy.cuda.get_elapsed_time(*events) * 1e-3 / 4, MPI.MAX)
                rates.append(nbytes / taken / 1e9)
            name = "two-way copy" if both else "one-way copy"
            found.append({"collective": name, "nbytes": nbytes, "gbps": median(sorted(rates[1:]))})
    meet()
    runtime.ipcCloseMemHandle(peer - offsets[1 - RANK])
    WORLD.Barrier()
    return found


def shown(record: dict[str, Any]) -> str:
    """One line of the table."""
    words = [f"{record['collective']:14s} {record.get('dtype', ''):9s} {record['nbytes']:>11d}"]
    if "gbps" in record:
        return f"{words[0]} {record['gbps']:.1f} GB/s"
    for figure in FIGURES:
        mine = record.get(f"mpicoll_{figure}_us")
        for name in ("nccl", "torch"):
            ratio = record.get(f"ratio_{name}_{figure}")
            if ratio:
                words.append(
                    f"{figure} {mine:.2f}/{record[f'{name}_{figure}_us']:.2f}={ratio[0]:.3f}"
                    f"[{ratio[1]:.3f},{ratio[2]:.3f}]"
                )
    wrong = record["wrong"]["mpicoll"]
    return " ".join([*words, f"wrong {wrong}"])


def sizes_between(smallest: int, largest: int) -> list[int]:
    """Powers of two, every third one below 256 KiB and every one or second above."""
    wanted = [8, 64, 512, 4096, 16384, 65536, 262144, *(1 << k for k in range(20, 25))]
    wanted += [1 << 26, 1 << 28, 1 << 30, 1 << 32]
    return [nbytes for nbytes in wanted if smallest <= nbytes <= largest]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = ["allreduce", "allgather", "reduce_scatter", "bcast", "alltoall"]
    parser.add_argument("--collectives", nargs="+", default=known, choices=known)
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=DTYPES)
    parser.add_argument("--figures", nargs="+", default=list(FIGURES), choices=FIGURES)
    parser.add_argument("--smallest", type=parse_size, default=8)
    parser.add_argument("--largest", type=parse_size, default=1 << 30)
    parser.add_argument("--sizes", nargs="+", type=parse_size)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=5, help="of a round, for short vectors")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no point later")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    began = time.monotonic()
    options = arguments()
    cupy.cuda.Device(RANK % cupy.cuda.runtime.getDeviceCount()).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    libraries: dict[str, Any] = {"mpicoll": Ours(mpicoll.Intracomm(WORLD)), "nccl": Nccl()}
    if options.torch:
        libraries["torch"] = Torch()

    def write(record: dict[str, Any]) -> None:
        if RANK == 0:
            print(shown(record) if "nbytes" in record else json.dumps(record), flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                    file.flush()
                    os.fsync(file.fileno())

    write(described())
    sizes = options.sizes or sizes_between(options.smallest, options.largest)
    for record in copies([n for n in sizes if 1 << 26 <= n <= 1 << 30]):
        write(record)
    for collective in options.collectives:
        for dtype in options.dtypes:
            for nbytes in sizes:
                point = Point(collective, dtype, nbytes)
                if point.block == 0:
                    continue
                if WORLD.bcast(time.monotonic() - began > options.seconds):
                    continue
                write(measure(point, libraries, options))
                cupy.get_default_memory_pool().free_all_blocks()
    if options.torch:
        libraries["torch"].dist.destroy_process_group()


def described() -> dict[str, Any]:
    """Machine and versions."""
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "gpu": device["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "nccl": nccl.get_version(),
        "environment": environment.gather(WORLD),
        "variables": {k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "MPICOLL_"))},
    }


if __name__ == "__main__":
    main()
