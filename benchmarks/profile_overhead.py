"""What recording adds to a call: mpi4py's methods, alone and under ``python -m mpicoll.profile``.

    cd benchmarks; mpirun -n 2 python profile_overhead.py --json results/profile_overhead.jsonl

A row calls a method of MPI.COMM_WORLD and the same of a communicator that records, alternating in
one process.  A sample is the mean of calls that take about a millisecond.  Recorded are the least
time of both, in microseconds, and what lies between: on a busy machine the least says most.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from pairs import CALLS, KEPT, SECONDS

from mpicoll.base.sizes import parse_size
from mpicoll.bench import environment
from mpicoll.profile.classes import Classes
from mpicoll.profile.recorder import Recorder, clock

Call = Callable[[], object]


def calls(comm: MPI.Intracomm, nbytes: int) -> Iterator[tuple[str, Call]]:
    """Calls of a communicator by name, each with some bytes."""
    size, rank = comm.Get_size(), comm.Get_rank()
    x, y = np.ones(max(1, nbytes // 8)), np.zeros(max(1, nbytes // 8))
    whole = np.ones(x.size * size)
    counts = [x.size] * size
    places = [x.nbytes * each for each in range(size)]
    vector = [whole, (counts, places), [MPI.DOUBLE] * size]
    right, left = (rank + 1) % size, (rank - 1) % size
    yield "Allreduce", lambda: comm.Allreduce(x, y)
    yield "Allreduce [x, n, T]", lambda: comm.Allreduce([x, x.size, MPI.DOUBLE], y)
    yield "Bcast", lambda: comm.Bcast(x, root=0)
    yield "Allgather", lambda: comm.Allgather(x, whole)
    yield "Alltoallw", lambda: comm.Alltoallw(vector, vector_like(vector))
    yield "Iallreduce, Wait", lambda: comm.Iallreduce(x, y).Wait()
    yield "allreduce (object)", lambda: comm.allreduce(rank)
    yield "Sendrecv", lambda: comm.Sendrecv(x, right, recvbuf=y, source=left)


def vector_like(vector: list[Any]) -> list[Any]:
    """What is received where a vector is sent."""
    return [np.empty_like(vector[0]), *vector[1:]]


def compared(plain: Call, recorded: Call, world: MPI.Intracomm, samples: int) -> dict[str, float]:
    """Microseconds of both, the least and the medians."""
    times: dict[str, list[float]] = {"plain": [], "recorded": []}
    count = repetitions(plain, world)
    for _ in range(samples):
        for name, call in (("plain", plain), ("recorded", recorded)):
            world.Barrier()
            begin = clock()
            for _ in range(count):
                call()
            times[name].append((clock() - begin) / count)
    least = {name: 1e6 * world.allreduce(min(each), MPI.MAX) for name, each in times.items()}
    middle = {
        f"{name}_median": 1e6 * world.allreduce(statistics.median(each), MPI.MAX)
        for name, each in times.items()
    }
    return least | middle


def repetitions(call: Call, world: MPI.Intracomm) -> int:
    """Calls that take about a sample's time; the same on all ranks."""
    for _ in range(10):
        call()
    begin = clock()
    for _ in range(10):
        call()
    wanted = int(10 * SECONDS / max(clock() - begin, 1e-9))
    return world.allreduce(max(1, min(CALLS, wanted)), MPI.MIN)


def main() -> None:
    """Measure, print, and append to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file that lines are appended to")
    parser.add_argument("--samples", type=int, default=101)
    parser.add_argument("-b", "--bytes", default="8,64K,1M")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    classes = Classes(Recorder())
    recorded = classes.recorded(world.Dup(), "Dup")
    facts = environment.gather(world)
    lines: list[dict[str, Any]] = [{name: facts[name] for name in KEPT if name in facts}]
    for size in options.bytes.split(","):
        nbytes = parse_size(size)
        pairs = zip(calls(world, nbytes), calls(recorded, nbytes), strict=True)
        for (name, plain), (_, other) in pairs:
            found = compared(plain, other, world, options.samples)
            added = found["recorded"] - found["plain"]
            lines.append({"ranks": world.Get_size(), "method": name, "bytes": nbytes, **found})
            if world.Get_rank() == 0:
                share = 100 * added / found["plain"]
                print(
                    f"{name:22}{size:>6}{found['plain']:10.2f} us {added:+8.2f} us {share:+7.1f} %",
                    flush=True,
                )
    if options.json and world.Get_rank() == 0:
        with open(options.json, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
