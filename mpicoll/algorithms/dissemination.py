"""Dissemination: in round k every rank tells the rank 2^k further on."""

from __future__ import annotations

from mpicoll.registry import register
from mpicoll.schedule import Recv, Send
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import ceil_log2, doubling


def barrier_dissemination(rank: int, size: int) -> Rounds:
    """In round k every rank tells the rank 2^k further on that 2^k ranks have arrived.

    ::

        round 1   0 -> 1   1 -> 2   2 -> 3   3 -> 0
        round 2   0 -> 2   1 -> 3   2 -> 0   3 -> 1

    ceil(log2 P) rounds for every P, each of an empty message.
    """
    for distance in doubling(size):
        yield Send((rank + distance) % size, ()), Recv((rank - distance) % size, ())


register(
    "barrier",
    "dissemination",
    barrier_dissemination,
    rounds=ceil_log2,
    messages=lambda P: P * ceil_log2(P),
    blocks_sent=lambda P: 0,
    blocks_sent_max=lambda P: 0,
    textbook=lambda P, n, a, b, g: ceil_log2(P) * a,
    blocks=lambda P: 0,
    symmetric=True,
    reference=(
        "D. Hensgen, R. Finkel, U. Manber, Two algorithms for barrier synchronization, "
        "International Journal of Parallel Programming 17 (1988)"
    ),
)
