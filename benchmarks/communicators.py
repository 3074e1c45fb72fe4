"""What new communicators cost: the MPI library's against mpicoll's.

    mpirun -n 2 python benchmarks/communicators.py [--repeats 40] [--live 500] [--made 500]

Prints a table: microseconds of each, least of many repetitions of 20, taken in turn, and their
ratio; bytes and files of live communicators that are not used; processor time of the first
`Intracomm`, without the imports of NumPy and mpi4py. Rank 0's.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

AT_A_TIME, PARTS = 20, 20
_X, _Y = np.ones(2, "f4"), np.zeros(2, "f4")


def dup(comm: Any) -> None:
    comm.Dup().Free()


def split(comm: Any) -> None:
    comm.Split(0, comm.rank).Free()


def create(comm: Any) -> None:
    group = comm.Get_group()
    comm.Create(group).Free()
    group.Free()


def used(times: int) -> Callable[[Any], None]:
    def run(comm: Any) -> None:
        made = comm.Dup()
        for _ in range(times):
            made.Allreduce(_X, _Y)
        made.Free()

    return run


CASES = {
    "Dup, Free": dup,
    "Split, Free": split,
    "Create, Free": create,
    "Dup, Allreduce, Free": used(1),
    "Dup, 2 Allreduce, Free": used(2),
    "Dup, 10 Allreduce, Free": used(10),
}


def least(work: Callable[[Any], None], comms: list[Any], repeats: int) -> list[float]:
    """Seconds of a piece of work on each communicator, in turn."""
    best = [float("inf")] * len(comms)
    for _ in range(repeats):
        for number, comm in enumerate(comms):
            MPI.COMM_WORLD.Barrier()
            start = time.perf_counter()
            for _ in range(AT_A_TIME):
                work(comm)
            best[number] = min(best[number], (time.perf_counter() - start) / AT_A_TIME)
    return best


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kept(comm: Any, count: int) -> tuple[float, int]:
    """Bytes of each of many live communicators, and the files that all of them keep open."""
    files, before = len(os.listdir("/proc/self/fd")), resident()
    live = [comm.Dup() for _ in range(count)]
    found = (resident() - before) / count, len(os.listdir("/proc/self/fd")) - files
    for made in live:
        made.Free()
    return found


def made_and_freed(comms: list[Any], count: int) -> list[tuple[float, float]]:
    """Seconds, and those of the processor, of as many communicators of each, made, used once and
    freed: a part of them at a time, in turn."""
    spent = [(0.0, 0.0)] * len(comms)
    for _ in range(PARTS):
        for number, comm in enumerate(comms):
            MPI.COMM_WORLD.Barrier()
            before = time.perf_counter(), time.process_time()
            for _ in range(count // PARTS):
                used(1)(comm)
            after = time.perf_counter(), time.process_time()
            now = [sum(each) for each in zip(spent[number], after, strict=True)]
            spent[number] = now[0] - before[0], now[1] - before[1]
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=40, help="of each measurement (40)")
    parser.add_argument("--live", type=int, default=500, help="communicators alive together (500)")
    parser.add_argument("--made", type=int, default=500, help="made, used and freed (500)")
    options = parser.parse_args()

    world = MPI.COMM_WORLD
    start = time.process_time()
    import mpicoll

    comms = [world, mpicoll.Intracomm(world)]
    first = time.process_time() - start
    rows = [(name, least(work, comms, options.repeats)) for name, work in CASES.items()]
    memory = [kept(comm, options.live) for comm in comms]
    spent = made_and_freed(comms, options.made)
    if world.rank:
        return
    print(f"{world.size} ranks, {MPI.Get_library_version().split(',')[0].splitlines()[0]}")
    for name, (native, ours) in rows:
        print(f"{name:26} {native * 1e6:9.1f} us {ours * 1e6:9.1f} us {ours / native:6.2f}")
    for name, (nbytes, files) in zip(("the library's", "mpicoll's"), memory, strict=True):
        print(f"{options.live} live, {name:14} {nbytes:9.0f} bytes each, {files} files")
    for kind, (native, ours) in zip(("", ", CPU"), zip(*spent, strict=True), strict=True):
        name = f"{options.made} made and freed{kind}"
        print(f"{name:26} {native:9.2f} s  {ours:9.2f} s  {ours / native:6.2f}")
    print(f"first Intracomm            {first * 1e3:9.1f} ms of processor")


if __name__ == "__main__":
    main()
