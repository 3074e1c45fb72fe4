"""What recording adds to a call: mpi4py's methods, alone and under ``python -m mpicoll.profile``.

    cd benchmarks; python profile_overhead.py --json results/profile_overhead.jsonl

A row calls a method of a communicator of one rank, and the same of one that records, alternating in
one process: what recording adds is work of this rank alone, whatever the number of ranks.  A sample
is the mean of 200 calls, in time of the processor, which others may have meanwhile.  What counts is
the least of each, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from pairs import KEPT

from mpicoll.base.sizes import parse_size
from mpicoll.bench import environment
from mpicoll.profile.classes import Classes
from mpicoll.profile.recorder import Recorder

CALLS = 200  # of a sample

Call = Callable[[], object]


def calls(comm: MPI.Intracomm, nbytes: int) -> Iterator[tuple[str, Call]]:
    """Calls of a communicator by name, each with some bytes."""
    x, y = np.ones(max(1, nbytes // 8)), np.zeros(max(1, nbytes // 8))
    vector = [x, ([x.size], [0]), [MPI.DOUBLE]]
    received = [y, *vector[1:]]
    yield "Barrier", comm.Barrier
    yield "Allreduce", lambda: comm.Allreduce(x, y)
    yield "Allreduce [x, n, T]", lambda: comm.Allreduce([x, x.size, MPI.DOUBLE], y)
    yield "Bcast", lambda: comm.Bcast(x, root=0)
    yield "Allgather", lambda: comm.Allgather(x, y)
    yield "Alltoallw", lambda: comm.Alltoallw(vector, received)
    yield "Iallreduce, Wait", lambda: comm.Iallreduce(x, y).Wait()
    yield "allreduce (object)", lambda: comm.allreduce(1)
    yield "Sendrecv", lambda: comm.Sendrecv(x, 0, recvbuf=y, source=0)


def sample(call: Call) -> float:
    """Microseconds of a call."""
    begin = time.thread_time()
    for _ in range(CALLS):
        call()
    return 1e6 * (time.thread_time() - begin) / CALLS


def main() -> None:
    """Measure, print, and append to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file that lines are appended to")
    parser.add_argument("--samples", type=int, default=101)
    parser.add_argument("-b", "--bytes", default="8,64K")
    options = parser.parse_args()
    plain = MPI.COMM_SELF
    recorded = Classes(Recorder()).recorded(plain.Dup(), "Dup")
    recorded._profile.mask = -1  # of most calls times are not kept
    facts = environment.gather(plain)
    lines: list[dict[str, Any]] = [{name: facts[name] for name in KEPT if name in facts}]
    for size in options.bytes.split(","):
        nbytes = parse_size(size)
        pairs = zip(calls(plain, nbytes), calls(recorded, nbytes), strict=True)
        for (name, one), (_, other) in pairs:
            found = [(sample(one), sample(other)) for _ in range(options.samples)]
            least = {"plain": min(a for a, _ in found), "recorded": min(b for _, b in found)}
            lines.append({"method": name, "bytes": nbytes, **least})
            added = least["recorded"] - least["plain"]
            print(f"{name:22}{size:>6}{least['plain']:10.2f} us {added:+8.2f} us", flush=True)
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
