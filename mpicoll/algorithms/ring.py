"""Ring algorithms: every rank sends to its right neighbour and receives from its left one.

Each link carries the least that is possible, (P - 1)/P n bytes a pass, in P - 1 rounds.

``order`` names the ranks in the order in which the ring visits them, so that neighbours in the ring
can be neighbours in the machine: ``order=(0, 2, 1, 3)`` is the ring 0 -> 2 -> 1 -> 3 -> 0.  Without
it the ring is 0 -> 1 -> 2 -> ...
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mpicoll.registry import COMMUTATIVE, PERMUTATION, SAME_BITS, per_rank, register
from mpicoll.schedule import Channels, Recv, RecvReduce, Send, channels, within
from mpicoll.schedule.steps import Rounds

_REFERENCE = (
    "P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, "
    "Journal of Parallel and Distributed Computing 69 (2009)"
)


def reduce_scatter_ring(rank: int, size: int, order: Sequence[int] = ()) -> Rounds:
    """Partial sums travel round the ring; after P - 1 rounds block r is complete at rank r.

    ::

        round 1   0 -[3]-> 1 -[0]-> 2 -[1]-> 3 -[2]-> 0
        round 2   0 -[2]-> 1 -[3]-> 2 -[0]-> 3 -[1]-> 0
        round 3   0 -[1]-> 1 -[2]-> 2 -[3]-> 3 -[0]-> 0

    Each rank adds its own contribution to what passes: (P - 1)(alpha + n/P (beta + gamma)).
    """
    ring = order or range(size)
    place = ring.index(rank)
    right, left = ring[(place + 1) % size], ring[place - 1]
    for k in range(1, size):
        yield Send(right, ring[place - k]), RecvReduce(left, ring[place - k - 1])


def allgather_ring(rank: int, size: int, order: Sequence[int] = ()) -> Rounds:
    """Every block travels round the ring, one neighbour a round.

    ::

        round 1   0 -[0]-> 1 -[1]-> 2 -[2]-> 3 -[3]-> 0
        round 2   0 -[3]-> 1 -[0]-> 2 -[1]-> 3 -[2]-> 0
        round 3   0 -[2]-> 1 -[3]-> 2 -[0]-> 3 -[1]-> 0

    (P - 1)(alpha + n/P beta).
    """
    ring = order or range(size)
    place = ring.index(rank)
    right, left = ring[(place + 1) % size], ring[place - 1]
    for k in range(size - 1):
        yield Send(right, ring[place - k]), Recv(left, ring[place - k - 1])


def allreduce_ring(rank: int, size: int, order: Sequence[int] = ()) -> Rounds:
    """Reduce-scatter round the ring, then all-gather round the ring.

    ::

        3 --> 0        block r is summed up while it travels to rank r,
        ^     |        then its sum travels once more round the ring
        |     v
        2 <-- 1

    2(P - 1) rounds, 2(P - 1)/P n bytes per rank, the least possible:
    2(P - 1)(alpha + n/P beta) + (P - 1)/P n gamma.
    """
    yield from reduce_scatter_ring(rank, size, order)
    yield from allgather_ring(rank, size, order)


def allreduce_ring_bidirectional(rank: int, size: int) -> Channels:
    """Two rings in opposite directions, each with half of the vector.

    ::

        0 <-> 1 <-> 2 <-> 3 <-> 0      blocks 0 .. P - 1 to the right, P .. 2P - 1 to the left

    2(P - 1) rounds of n/2P bytes each way: it uses both directions of every link.
    """

    onward, mirrored = range(size), range(size - 1, -1, -1)
    return channels(
        within(allreduce_ring(rank, size), onward, range(size)),
        within(allreduce_ring(mirrored[rank], size), mirrored, range(size, 2 * size)),
    )


_round_the_ring = partial(
    register,
    rounds=lambda P: P - 1,
    messages=lambda P: P * (P - 1),
    blocks_sent_max=lambda P: P - 1,
    kinds={"order": PERMUTATION},
    symmetric=True,
    reference=_REFERENCE,
)
_round_the_ring(
    "reduce_scatter",
    "ring",
    reduce_scatter_ring,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * (b + g)),
    needs=(COMMUTATIVE,),
)
_round_the_ring(
    "allgather",
    "ring",
    allgather_ring,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * b),
)
_round_the_ring(
    "allreduce",
    "ring",
    allreduce_ring,
    rounds=lambda P: 2 * (P - 1),
    messages=lambda P: 2 * P * (P - 1),
    blocks_sent_max=lambda P: 2 * (P - 1),
    textbook=lambda P, n, a, b, g: 2 * (P - 1) * (a + n / P * b) + (P - 1) / P * n * g,
    blocks=per_rank,
    needs=(COMMUTATIVE,),
    order=(SAME_BITS,),
)
register(
    "allreduce",
    "ring_bidirectional",
    allreduce_ring_bidirectional,
    rounds=lambda P: 4 * (P - 1),
    # The two directions share a port, and may get in each other's way at the start.
    depth=lambda P: 4 * (P - 1) + int(P > 1),
    messages=lambda P: 4 * P * (P - 1),
    blocks_sent_max=lambda P: 4 * (P - 1),
    textbook=lambda P, n, a, b, g: (4 * P - 3) * (a + n / (2 * P) * b) + (P - 1) / P * n * g,
    blocks=lambda P: 2 * P,
    needs=(COMMUTATIVE,),
    order=(SAME_BITS,),
    reference=_REFERENCE + "; run in both directions",
)
