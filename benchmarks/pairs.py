"""Two ways to call a collective, measured in pairs: what the programs beside it share.

A sample is the time of one call, averaged over as many back-to-back calls as take about a
millisecond, at most 1,000, from a common start to the end of the slowest rank; in rooted
collectives a barrier follows the last call.  Samples of the two alternate.  Reported are
medians over the samples, their ratio (below 1 mpicoll is faster) with the 95 % interval of the
ratios of neighbours (order statistics), what mpicoll chose, and how many elements were wrong.

Every launch also records probes of the machine, so that a disturbed one can be told, in
microseconds: a round trip of an empty message, and a copy of 16 MiB.  Before and after each size
follows a copy of 256 KiB that the other rank has just written.  That tells how far apart the two
cores are: in a virtual machine it changes while a program runs, and with it everything that goes
from core to core.  The larger of the two is recorded.  And while a size is measured, the share of
the processors' time is recorded that went to others, other programs and other virtual machines.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.base.json_lines import Appender, Attempt
from mpicoll.base.sizes import parse_size
from mpicoll.bench import environment, stats
from mpicoll.bench.pattern import element_type
from mpicoll.bench.start import Barrier
from mpicoll.bench.workload import Workload, elements, prepare, symmetric

SECONDS = 1e-3  # of a sample, about
CALLS = 1000  # of a sample, at most
#: What is recorded of a launch.
KEPT = (
    *("started", "mpicoll", "python", "numpy", "mpi4py", "mpi"),
    *("ranks", "processor", "cpus", "system"),
)


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


def compare(
    comm: MPI.Intracomm,
    ours: mpicoll.Intracomm,
    start: Barrier,
    work: Workload,
    ways: Sequence[Callable[[], object]],
    samples: int,
) -> dict[str, Any]:
    """Times of one collective at one size, called in two ways; the same on all ranks."""
    end = not symmetric(work.collective)
    others = Others(ours)
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
    apart = max(apart, handover(ours))
    mine, other = np.median(slowest, axis=0)
    return {
        "collective": work.collective,
        "size": work.size,
        "type": work.type,
        "calls": calls,
        "samples": samples,
        "mpicoll_us": 1e6 * float(mine),
        "other_us": 1e6 * float(other),
        "ratio": float(mine / other),
        "handover_us": 1e6 * apart,
        "others": others.share(),
        "low": ratios.low,
        "high": ratios.high,
        "wrong": wrong,
    }


class Others:
    """What else runs on the host of rank 0, from now on."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.begin = self._times()

    def _times(self) -> np.ndarray:
        """Seconds of its processors that were used, by anybody, by this rank, and that have passed.

        Linux counts them in the first line of /proc/stat, of which the fourth and fifth are idle.
        """
        with open("/proc/stat", encoding="utf-8") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        used = sum(ticks) - ticks[3] - ticks[4]
        tick = os.sysconf("SC_CLK_TCK")
        return np.array([used / tick, time.process_time(), sum(ticks) / tick])

    def share(self) -> float:
        """The share of the processors' time that went to others; the same on all ranks."""
        anybody, mine, passed = self._times() - self.begin
        here = self.comm.bcast(MPI.Get_processor_name()) == MPI.Get_processor_name()
        ours = self.comm.allreduce(mine if here else 0.0)
        return float(self.comm.bcast(max(0.0, anybody - ours) / passed if passed else 0.0))


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


def parser(text: str | None, collectives: Sequence[str]) -> argparse.ArgumentParser:
    """The options that all have."""
    made = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    made.add_argument("--collectives", nargs="+", choices=collectives, default=collectives)
    made.add_argument("--largest", type=parse_size, default=64 << 20, help="bytes, as 64M")
    made.add_argument("--type", type=element_type, default=np.dtype("f4"), help="as float, half")
    made.add_argument("--samples", type=int, default=15, help="pairs of each size")
    made.add_argument("--json", help="append a line for the launch, and one a size, to this file")
    return made


def run(
    options: argparse.Namespace,
    ours: mpicoll.Intracomm,
    facts: dict[str, Any],
    ways: Callable[[Workload, str], Sequence[Callable[[], object]]],
) -> None:
    """Measure all that the options ask for, print it, and keep it on rank 0.

    Args:
        options: what :func:`parser` has read.
        ours: mpicoll's communicator, of all ranks.
        facts: what to keep of every point.
        ways: mpicoll's call and the other one, for a workload and mpicoll's choice in words.
    """
    comm, start = MPI.COMM_WORLD, Barrier(MPI.COMM_WORLD.Dup())
    found = environment.gather(comm)
    launch = {**{key: found[key] for key in KEPT}, **probes(comm)}
    first = comm.Get_rank() == 0
    if first:
        keep(launch, options.json)
        print(f"{launch['mpi'].split(',')[0]}, {comm.Get_size()} ranks, {launch['processor']}")
        print(f"round trip {launch['round_trip_us']:.2f} us, 16 MiB {launch['copy_us']:.0f} us")
    for collective in options.collectives:
        points = []
        for size in sizes(collective, options.largest):
            count = elements(collective, size, options.type.itemsize, comm.Get_size())
            in_place = collective == "allreduce"
            work = prepare(comm, collective, count, options.type, in_place=in_place)
            words = ours.explain(collective, work.size).split(": ", 1)[1].split(" (")[0]
            measured = compare(comm, ours, start, work, ways(work, words), options.samples)
            points.append({"launch": launch["started"], **facts, "choice": words, **measured})
            if first:
                report(points[-1])
                keep(points[-1], options.json)
        if first:
            print(f"{collective:15} geometric mean {mean(points):.2f}", flush=True)


def report(point: dict[str, Any]) -> None:
    """Print a point."""
    interval = "" if point["low"] is None else f"{point['low']:.2f}-{point['high']:.2f}"
    print(
        f"{point['collective']:15} {point['size']:>10} {point['mpicoll_us']:10.2f} "
        f"{point['other_us']:10.2f} us {point['ratio']:6.2f} {interval:>10} "
        f"{point['handover_us']:6.1f} us  {point['choice']}"
        + (f"  wrong {point['wrong']}" if any(point["wrong"]) else ""),
        flush=True,
    )


def keep(line: dict[str, Any], path: str | None) -> None:
    """Append a line to a file, if there is one."""
    if path:
        with Appender(path) as file:
            file.append(Attempt(line.get("launch", line.get("started", ""))), line)
