"""mpicoll's default choices against the MPI library's own collectives, in one launch.

    mpirun -n 2 python benchmarks/vs_native.py [--collectives allreduce bcast] [--largest 64M]
        [--type half] [--persistent] [--samples 15] [--json results.jsonl]

Both are called through mpi4py's spelling, in the same process, on the same buffers (float32 if no
type is named; sums; the root is rank 0; all-reduce in place). With --persistent a call is the start
of a persistent one and the wait for its end; mpicoll's names the algorithm that is its default. A
sample is the time of one call, averaged over as many back-to-back calls as take about a
millisecond, at most 1,000, from a common start to the end of the slowest rank; in rooted
collectives a barrier follows the last call. Samples of the two alternate. Reported are
medians over the samples, their ratio (below 1 mpicoll is faster) with the 95 % interval of the
ratios of neighbours (order statistics), what mpicoll chose, and how many elements were wrong. A
size where the choice is the library's own counts as 1 in the geometric mean.

Every launch also records probes of the machine, so that a disturbed one can be told, in
microseconds: a round trip of an empty message, and a copy of 16 MiB. Before and after each size
follows a copy of 256 KiB that the other rank has just written. That tells how far apart the two
cores are: in a virtual machine it changes while a program runs, and with it everything that goes
from core to core. The larger of the two is recorded.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll import tuning
from mpicoll.bench import environment, stats
from mpicoll.bench.pattern import element_type
from mpicoll.bench.sizes import parse_size
from mpicoll.bench.start import Barrier
from mpicoll.bench.workload import Workload, elements, prepare, symmetric
from mpicoll.collectives import COLLECTIVES

SECONDS = 1e-3  # of a sample, about
CALLS = 1000  # of a sample, at most
#: What is recorded of a launch.
KEPT = ("started", "mpicoll", "python", "numpy", "mpi4py", "mpi", "ranks", "processor", "system")


def sizes(collective: str, largest: int) -> list[int]:
    """Powers of four from 8 bytes on, and the largest."""
    if collective == "barrier":
        return [0]
    powers = [8 << (2 * k) for k in range(32) if 8 << (2 * k) < largest]
    return [*powers, largest]


def sample(call: Callable[[], object], start: Barrier, calls: int, end: bool) -> float:
    """Seconds of one call on this rank."""
    start()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    if end:
        start()
    return (time.perf_counter() - begin) / calls


def persistent(comm: MPI.Intracomm, call: Any, **choice: Any) -> Callable[[], object]:
    """The start and the end of a persistent call, for a blocking one of a communicator's."""
    init = getattr(comm, f"{call.func.__name__}_init")
    plan = init(*call.args, **call.keywords, **choice)

    def run() -> None:
        plan.Barrier()
        plan.Wait()

    weakref.finalize(run, plan.Free)  # MPICH complains of those that are not freed
    return run


def compare(
    comm: MPI.Intracomm,
    ours: mpicoll.Intracomm,
    start: Barrier,
    work: Workload,
    samples: int,
    plans: bool,
) -> dict[str, Any]:
    """Times of one collective at one size; the same on all ranks."""
    words = ours.explain(work.collective, work.size).split(": ", 1)[1].split(" (")[0]
    ways = [work.bind(ours), work.bind(comm)]
    if plans:
        choice = tuning.parse(work.collective, words, tuning.ARGUMENT)
        named = {"algorithm": choice.algorithm, **dict(choice.parameters)}
        ways = [persistent(ours, ways[0], **named), persistent(comm, ways[1])]
    end = not symmetric(work.collective)
    wrong = []
    for call in ways:
        work.poison()
        call()
        wrong.append(comm.allreduce(work.check(comm.Get_rank())[0]))
    apart = handover(ours)
    once = comm.allreduce(max(sample(call, start, 3, end) for call in ways), MPI.MAX)
    calls = max(1, min(CALLS, int(SECONDS / once)))
    times = np.array(
        [[sample(call, start, calls, end) for call in ways] for _ in range(samples + 2)][2:]
    )
    slowest = np.empty_like(times)
    comm.Allreduce(times, slowest, MPI.MAX)
    ratios = stats.summarise(list(slowest[:, 0] / slowest[:, 1]))
    mine, native = np.median(slowest, axis=0)
    return {
        "collective": work.collective,
        "size": work.size,
        "type": work.type,
        "persistent": plans,
        "choice": words,
        "calls": calls,
        "samples": samples,
        "mpicoll_us": 1e6 * float(mine),
        "native_us": 1e6 * float(native),
        "ratio": float(mine / native),
        "handover_us": 1e6 * max(apart, handover(ours)),
        "low": ratios.low,
        "high": ratios.high,
        "wrong": wrong,
    }


def handover(ours: mpicoll.Intracomm) -> float:
    """Seconds in which rank 1 copies 256 KiB that rank 0 has just written."""
    rank, times = ours.Get_rank(), []
    shared, sums = np.empty(256 << 10, np.uint8), np.empty(256 << 10, np.uint8)
    for turn in range(21):
        if rank == 0:
            shared[:] = turn
        ours.Barrier()
        begin = time.perf_counter()
        ours.Bcast(shared if rank == 0 else sums)
        times.append(time.perf_counter() - begin)
        ours.Barrier()
    return float(ours.bcast(np.median(times), root=min(1, ours.Get_size() - 1)))


def probes(comm: MPI.Intracomm) -> dict[str, float]:
    """See above."""
    rank, nothing = comm.Get_rank(), bytearray(1)
    source = np.ones(4 << 20, np.float32)
    target = source.copy()
    trips, copies = [], []
    for _ in range(21):
        begin = time.perf_counter()
        for _ in range(100):
            if rank == 0 and comm.Get_size() > 1:
                comm.Send(nothing, 1)
                comm.Recv(nothing, 1)
            elif rank == 1:
                comm.Recv(nothing, 0)
                comm.Send(nothing, 0)
        trips.append((time.perf_counter() - begin) / 100)
    comm.Barrier()
    for _ in range(11):
        begin = time.perf_counter()
        target[:] = source
        copies.append(time.perf_counter() - begin)
    found = {
        "round_trip_us": 1e6 * float(np.median(trips)),
        "copy_us": 1e6 * float(np.median(copies)),
    }
    return comm.bcast(found)


def mean(points: list[dict[str, Any]]) -> float:
    """Geometric mean of the ratios."""
    logs = [0.0 if p["choice"] == "native" else math.log(p["ratio"]) for p in points]
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--collectives", nargs="+", choices=list(COLLECTIVES), default=list(COLLECTIVES)
    )
    parser.add_argument("--largest", type=parse_size, default=64 << 20, help="bytes, as 64M")
    parser.add_argument("--type", type=element_type, default=np.dtype("f4"), help="as float, half")
    parser.add_argument("--persistent", action="store_true", help="measure Start and Wait")
    parser.add_argument("--samples", type=int, default=15, help="pairs of each size")
    parser.add_argument("--json", help="append a line for the launch, and one a size, to this file")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    ours, start = mpicoll.Intracomm(comm.Dup()), Barrier(comm.Dup())
    found = environment.gather(comm)
    run = {**{key: found[key] for key in KEPT}, **probes(comm)}
    if comm.Get_rank() == 0:
        keep(run, options.json)
        print(f"{run['mpi'].split(',')[0]}, {comm.Get_size()} ranks, {run['processor']}")
        print(f"round trip {run['round_trip_us']:.2f} us, copy of 16 MiB {run['copy_us']:.0f} us")
    for collective in options.collectives:
        points = []
        for size in sizes(collective, options.largest):
            count = elements(collective, size, options.type.itemsize, comm.Get_size())
            in_place = collective == "allreduce"
            work = prepare(comm, collective, count, options.type, in_place=in_place)
            point = compare(comm, ours, start, work, options.samples, options.persistent)
            points.append(point)
            if comm.Get_rank() == 0:
                report(point)
                keep({"launch": run["started"], **point}, options.json)
        if comm.Get_rank() == 0:
            print(f"{collective:15} geometric mean {mean(points):.2f}", flush=True)


def report(point: dict[str, Any]) -> None:
    """Print a point."""
    interval = "" if point["low"] is None else f"{point['low']:.2f}-{point['high']:.2f}"
    print(
        f"{point['collective']:15} {point['size']:>10} {point['mpicoll_us']:10.2f} "
        f"{point['native_us']:10.2f} us {point['ratio']:6.2f} {interval:>10} "
        f"{point['handover_us']:6.1f} us  {point['choice']}"
        + (f"  wrong {point['wrong']}" if any(point["wrong"]) else ""),
        flush=True,
    )


def keep(line: dict[str, Any], path: str | None) -> None:
    """Append a line to a file, if there is one."""
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
