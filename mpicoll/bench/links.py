"""What the links between ranks take: pairs one after the other, then all ranks of a host at once.

A message goes one way and an empty one back.  The least of several times counts, since whatever
else is on the machine makes them longer; what a byte takes is the difference of two lengths of
message, both long enough to be sent the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
from mpi4py import MPI

from mpicoll.engine import transport
from mpicoll.files.measured_machines import Links

#: Bytes of the two lengths, and how often each is sent.
_SHORT, _LONG, _TIMES = 128 << 10, 384 << 10, 5
#: Empty messages that are sent one after the other.
_MANY = 50

Tick = Callable[[], object]


def measure(comm: MPI.Intracomm, tick: Tick = lambda: None) -> Links:
    """Measure all links between the ranks.  Collective; the same on all ranks.

    Args:
        comm: of plain mpi4py.
        tick: called after each pair.
    """
    size = comm.Get_size()
    control = comm.Dup()
    try:
        with transport.node_of(control) as node:
            hosts = tuple(control.allgather(node.bcast(control.Get_rank())))
        buffer = np.zeros(_LONG, np.uint8)
        latency, beta = np.zeros((size, size)), np.zeros((size, size))
        for a, b in permutations(range(size), 2):
            empty, short, long = (_sent(control, [(a, b)], buffer[:n]) for n in (0, _SHORT, _LONG))
            latency[a, b] = empty / 2
            beta[a, b] = max(0.0, long - short) / (_LONG - _SHORT)
            tick()
        latency = (latency + latency.T) / 2  # each has been there and back
        out: dict[int, float] = {}
        into: dict[int, float] = {}
        for host in dict.fromkeys(hosts):
            for found, away in ((out, True), (into, False)):
                pairs = _together(hosts, beta, host, away)
                if len(pairs) > 1:
                    short, long = (_sent(control, pairs, buffer[:n]) for n in (_SHORT, _LONG))
                    per_byte = max(0.0, long - short) / (_LONG - _SHORT)
                    found[host] = per_byte / len(pairs)
        overhead = _overhead(control) if size > 1 else 0.0
    finally:
        control.Free()
    rows = tuple(map(tuple, latency.tolist())), tuple(map(tuple, beta.tolist()))
    return Links(hosts, *rows, overhead, out, into)


def _sent(comm: MPI.Intracomm, pairs: Sequence[tuple[int, int]], message: np.ndarray) -> float:
    """Least seconds until messages of all pairs, sent at once, are there and answered."""
    rank, least = comm.Get_rank(), np.inf
    nothing = np.zeros(0, np.uint8)
    for _ in range(_TIMES):
        comm.Barrier()
        begun = time.perf_counter()
        taken = 0.0
        for a, b in pairs:  # a rank is in one of them at most
            if rank == a:
                comm.Send(message, b)
                comm.Recv(nothing, b)
                taken = time.perf_counter() - begun
            elif rank == b:
                comm.Recv(np.empty_like(message), a)
                comm.Send(nothing, a)
        least = min(least, comm.allreduce(taken, MPI.MAX))
    return float(least)


def _together(
    hosts: Sequence[int], beta: np.ndarray, host: int, away: bool
) -> list[tuple[int, int]]:
    """All ranks of a host, each with a rank of another host of its own, the fastest links first."""
    members = [rank for rank, other in enumerate(hosts) if other == host]
    pairs: list[tuple[int, int]] = []
    free = [rank for rank, other in enumerate(hosts) if other != host]
    for rank in members:
        ways = [(rank, other) if away else (other, rank) for other in free]
        if not ways:
            break
        pair = min(ways, key=lambda way: (round(float(beta[way]) * 1e12, -1), way))
        pairs.append(pair)
        free.remove(pair[1] if away else pair[0])
    return pairs


def _overhead(comm: MPI.Intracomm) -> float:
    """What a message costs its sender, from the first rank to the last."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    nothing, least = np.zeros(0, np.uint8), np.inf
    for _ in range(_TIMES):
        comm.Barrier()
        taken = 0.0
        if rank == 0:
            begun = time.perf_counter()
            MPI.Request.Waitall([comm.Isend(nothing, last) for _ in range(_MANY)])
            comm.Recv(nothing, last)
            taken = time.perf_counter() - begun
            begun = time.perf_counter()
            comm.Send(nothing, last)
            comm.Recv(nothing, last)
            taken = (taken - (time.perf_counter() - begun)) / (_MANY - 1)
        elif rank == last:
            for _ in range(_MANY):
                comm.Recv(nothing, 0)
            comm.Send(nothing, 0)
            comm.Recv(nothing, 0)
            comm.Send(nothing, 0)
        least = min(least, comm.allreduce(taken, MPI.MAX))
    return max(0.0, float(least))
