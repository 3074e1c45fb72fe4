"""mpicoll's collectives of arrays in GPU memory against NCCL, in one launch.

    mpirun -n 2 python benchmarks/gpu.py [--collectives allreduce bcast] [--dtypes float32 float16]
        [--smallest 8] [--largest 4G] [--dense] [--ways plain persistent] [--rounds 5] [--torch]
        [--json results.jsonl]

NCCL is called through CuPy's binding and, with ``--torch``, through torch.distributed.  Three
figures of each, the longest of any rank: ``graph``, device time of a call in a captured graph of
20; ``stream``, device time of a call among 20 that are enqueued one by one; ``host``, from the call
to its end as the host sees it.  In every round each library takes its turn at each figure, the
order changing from round to round; the ratio is that of the medians, its interval (95 %) is found
by resampling the rounds.  All-reduce and broadcast are in place, the others are not.

Ways: ``plain`` arrays on a stream that does not block; on the ``default-stream``; ``persistent``
operations of mpicoll, started and waited for, against NCCL's calls; arrays that mpicoll has
``registered``; ``unaligned`` ones, an element beyond where an allocation begins.

Sizes are of the whole vector, rounded to whole elements for every rank.  Points of all-reduce or of
float32 come first, so that a limit of time leaves out what matters least.

Inputs are random, other ones in every run; ``wrong`` counts the elements of a result that differ
from those folded in rank order on this GPU, after the first call and after the last sample of each
figure.  Sums of other libraries among more than two ranks may be in another order.  ``two-way
copy`` is what two ranks reach that copy from each other's memory at the same time, one way, in GB/s
(1e9 bytes); with more ranks each copies from the next one (``ring copy``).  Every finished point is
written at once.  The exit status is 1 if any element of mpicoll's was wrong.
"""

from __future__ import annotations

import argparse
import math
import random
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any

import cupy
import gpu_records
from cupy.cuda import nccl
from gpu_cases import COLLECTIVES, DTYPES, RANK, SIZE, Case, Point
from gpu_libraries import WAYS, Bound, Nccl, Ours, Run, Torch, allocator
from mpi4py import MPI

import mpicoll
from mpicoll.base.sizes import parse_size
from mpicoll.bench.stats import median

WORLD = MPI.COMM_WORLD
#: Calls in a graph, and between two events.
CALLS = 20
FIGURES = ("graph", "stream", "host")


def meet() -> None:
    """All ranks and GPUs begin together."""
    cupy.cuda.get_current_stream().synchronize()
    WORLD.Barrier()


class Timer:
    """Takes samples of one library on one case, in seconds a call, the longest of any rank."""

    def __init__(self, case: Case, library: Any) -> None:
        self.case, self.library = case, library
        self.bound: Bound = library.bind(case, CALLS)
        self.stream = cupy.cuda.get_current_stream()
        self.events = cupy.cuda.Event(), cupy.cuda.Event()
        self.graph: Any = None
        self.wrong: int | None = 0

    def takes(self, figure: str) -> bool:
        return figure != "graph" or self.library.captured

    def warm_up(self, graph: bool) -> None:
        """Make the first calls, and look at the result of the very first one."""
        self.case.refresh()
        meet()
        self.bound.run()
        meet()
        self.check(1, "the first call")
        self.bound.settle()
        self.many()
        meet()
        self.bound.settle()
        if graph and self.library.captured:
            self.stream.begin_capture()
            self.many()
            self.graph = self.stream.end_capture()
            self.graph.upload(self.stream)
            self.graph.launch(self.stream)
        meet()

    def many(self) -> None:
        run = self.bound.run
        for _ in range(CALLS):
            run()

    def between_events(self, enqueue: Run) -> float:
        self.case.refresh()
        meet()
        self.events[0].record(self.stream)
        enqueue()
        self.events[1].record(self.stream)
        self.events[1].synchronize()
        self.bound.settle()
        return cupy.cuda.get_elapsed_time(*self.events) * 1e-3 / CALLS

    def host_once(self) -> float:
        """One call after another, each waited for."""
        self.case.refresh()
        meet()
        run, wait = self.bound.run, self.bound.wait
        began = time.perf_counter()
        for _ in range(CALLS):
            run()
            wait()
        return (time.perf_counter() - began) / CALLS

    def sample(self, figure: str) -> float:
        if figure == "graph":
            taken = self.between_events(lambda: self.graph.launch(self.stream))
        elif figure == "stream":
            taken = self.between_events(self.many)
        else:
            taken = self.host_once()
        return float(WORLD.allreduce(taken, MPI.MAX))

    def check(self, calls: int, what: str) -> None:
        """Count what is wrong after so many calls; None: nobody can say."""
        found = self.case.wrong(calls, self.library.exact)
        if found and self.library.exact:
            words = f"{type(self.library).__name__}, {what}: {self.case.first_wrong(calls)}"
            print(f"{self.case.point}: {words}; {found} are wrong", file=sys.stderr, flush=True)
        if found is not None:
            self.wrong += WORLD.allreduce(found)


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


def measure(
    point: Point, libraries: dict[str, Any], options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """One point: all figures of all libraries."""
    figures = [figure for figure in options.figures if figure in WAYS[point.way].figures]
    case = Case(point, seed, allocator(point.way, libraries["mpicoll"].comm))
    timers = {name: Timer(case, library) for name, library in libraries.items()}
    for timer in timers.values():
        timer.warm_up("graph" in figures)
    taken = samples_of(point, timers, figures, options)
    for timer in timers.values():
        timer.bound.close()
    record: dict[str, Any] = {
        **point._asdict(),
        "ranks": SIZE,
        "seed": seed,
        "wrong": {name: timer.wrong for name, timer in timers.items()},
    }
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


def samples_of(
    point: Point, timers: dict[str, Timer], figures: Sequence[str], options: argparse.Namespace
) -> dict[tuple[str, str], list[list[float]]]:
    """Samples of each library and figure, by rounds; the last ones leave a result to look at."""
    samples = 1 if point.nbytes >= 1 << 30 else 2 if point.nbytes >= 1 << 26 else options.samples
    taken: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(options.rounds):
        names = sorted(timers, reverse=bool(number % 2))
        for figure in figures:
            for name in names:
                timer = timers[name]
                if not timer.takes(figure):
                    continue
                turn = [timer.sample(figure) for _ in range(samples)]
                taken.setdefault((name, figure), []).append(turn)
                if number == options.rounds - 1:
                    timer.check(CALLS, figure)
    return taken


def copies(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """What ranks reach that copy from the next one, all at the same time or the first one alone."""
    if SIZE == 1 or not sizes:
        return []
    runtime = cupy.cuda.runtime
    most = max(sizes)
    here, there = cupy.empty(most, cupy.uint8), cupy.empty(most, cupy.uint8)
    here.fill(RANK + 1)
    cupy.cuda.Device().synchronize()
    base = here.data.mem.ptr
    offsets = WORLD.allgather(here.data.ptr - base)
    handles = WORLD.allgather(runtime.ipcGetMemHandle(base))
    next_one = (RANK + 1) % SIZE
    peer = runtime.ipcOpenMemHandle(handles[next_one]) + offsets[next_one]
    stream = cupy.cuda.Stream(non_blocking=True)
    events = cupy.cuda.Event(), cupy.cuda.Event()
    found = []
    for nbytes in sizes:
        for all_at_once in (True, False):
            rates = []
            for _ in range(7):
                stream.synchronize()
                WORLD.Barrier()
                events[0].record(stream)
                if all_at_once or RANK == 0:
                    for _ in range(4):
                        runtime.memcpyAsync(there.data.ptr, peer, nbytes, 4, stream.ptr)
                events[1].record(stream)
                events[1].synchronize()
                taken = WORLD.allreduce(cupy.cuda.get_elapsed_time(*events) * 1e-3 / 4, MPI.MAX)
                rates.append(nbytes / taken / 1e9)
            several = "two-way copy" if SIZE == 2 else "ring copy"
            name = several if all_at_once else "one-way copy"
            gbps = median(sorted(rates[1:]))
            found.append({"collective": name, "nbytes": nbytes, "ranks": SIZE, "gbps": gbps})
    WORLD.Barrier()
    runtime.ipcCloseMemHandle(peer - offsets[next_one])
    WORLD.Barrier()
    return found


def shown(record: dict[str, Any]) -> str:
    """One line of the table."""
    words = [f"{record['collective']:14s} {record.get('dtype', ''):9s} {record['nbytes']:>11d}"]
    if "gbps" in record:
        return f"{words[0]} {record['gbps']:.1f} GB/s"
    if record["way"] != "plain":
        words.append(record["way"])
    for figure in FIGURES:
        mine = record.get(f"mpicoll_{figure}_us")
        for name in ("nccl", "torch"):
            ratio = record.get(f"ratio_{name}_{figure}")
            if ratio:
                words.append(
                    f"{figure} {mine:.2f}/{record[f'{name}_{figure}_us']:.2f}={ratio[0]:.3f}"
                    f"[{ratio[1]:.3f},{ratio[2]:.3f}]"
                )
    wrong = record["wrong"]
    others = "".join(f", {name} {n}" for name, n in wrong.items() if n and name != "mpicoll")
    return " ".join([*words, f"wrong {wrong['mpicoll']}{others}"])


def sizes_between(smallest: int, largest: int, dense: bool) -> list[int]:
    """Powers of two: some of them, or all from 16 KiB on."""
    wanted = [8, 64, 512, 4096, *(1 << k for k in range(14, 33))]
    left_out = () if dense else (15, 17, 19, 25, 27, 29, 31)
    return [n for n in wanted if smallest <= n <= largest and n not in [1 << k for k in left_out]]


def points_of(options: argparse.Namespace, sizes: Sequence[int]) -> list[Point]:
    """What to measure: all-reduces and float32 first."""
    every = [
        Point.near(collective, dtype, nbytes, way)
        for way in options.ways
        for collective in options.collectives
        for dtype in options.dtypes
        for nbytes in sizes
    ]
    return sorted(
        dict.fromkeys(every),
        key=lambda point: point.collective != "allreduce" and point.dtype != "float32",
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    choice = {"nargs": "+"}
    parser.add_argument("--collectives", **choice, default=COLLECTIVES, choices=COLLECTIVES)
    parser.add_argument("--dtypes", **choice, default=["float32"], choices=DTYPES)
    parser.add_argument("--figures", **choice, default=FIGURES, choices=FIGURES)
    parser.add_argument("--ways", **choice, default=["plain"], choices=WAYS)
    parser.add_argument("--smallest", type=parse_size, default=8)
    parser.add_argument("--largest", type=parse_size, default=1 << 30, help="4G takes 10 s a point")
    parser.add_argument("--dense", action="store_true", help="all powers of two from 16 KiB on")
    parser.add_argument("--sizes", nargs="+", type=parse_size, help="these alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=5, help="of a round, for short vectors")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no point later")
    parser.add_argument("--seed", type=int, help="of the inputs; default: another one each time")
    parser.add_argument("--torch", action="store_true")
    gpu_records.options(parser)
    return parser.parse_args()


def main() -> int:
    began = time.monotonic()
    options = arguments()
    gpu_records.use_own_gpu()
    comm = mpicoll.Intracomm(WORLD)
    libraries: dict[str, Any] = {"mpicoll": Ours(comm), "nccl": Nccl()}
    if options.torch:
        libraries["torch"] = Torch()
    records = gpu_records.Records(options, shown)
    records.describe(nccl=nccl.get_version(), transport=comm.gpu_transport())
    sizes = options.sizes or sizes_between(options.smallest, options.largest, options.dense)
    points = points_of(options, sizes)
    for record in copies([nbytes for nbytes in sizes if 1 << 26 <= nbytes <= 1 << 30]):
        records.write(record)
    seed = WORLD.bcast(secrets.randbelow(1 << 30) if options.seed is None else options.seed)
    streams = {way: WAYS[way].stream() for way in options.ways}
    wrong = 0
    for number, point in enumerate(points):
        if WORLD.bcast(time.monotonic() - began > options.seconds):
            if RANK == 0:
                left = f"{len(points) - number} of {len(points)} points"
                print(f"{left} not measured: the time is over", file=sys.stderr, flush=True)
            break
        with streams[point.way]:
            record = measure(point, libraries, options, seed + number)
        wrong += record["wrong"]["mpicoll"]
        records.write(record)
        cupy.get_default_memory_pool().free_all_blocks()
    if options.torch:
        libraries["torch"].close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
