"""Bruck's algorithms: log2(P) rounds for every P, at the price of moving blocks more than once."""

from __future__ import annotations

from functools import partial

from mpicoll.registry import EQUAL_BLOCKS, per_rank, register
from mpicoll.schedule import Copy, Recv, Send, given, scratch
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import ceil_log2, doubling

_REFERENCE = (
    "J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, Efficient algorithms for all-to-all "
    "communications in multiport message-passing systems, IEEE Transactions on Parallel and "
    "Distributed Systems 8 (1997)"
)


def allgather_bruck(rank: int, size: int) -> Rounds:
    """Every rank sends all it has to the rank 1, 2, 4, ... before it.

    ::

        round 1   1 -[1]-> 0     2 -[2]-> 1     3 -[3]-> 2     4 -[4]-> 3     0 -[0]-> 4
        round 2   2 -[2-3]-> 0   3 -[3-4]-> 1   4 -[4,0]-> 2   0 -[0-1]-> 3   1 -[1-2]-> 4
        round 3   4 -[4]-> 0     0 -[0]-> 1     1 -[1]-> 2     2 -[2]-> 3     3 -[3]-> 4

    ceil(log2 P) alpha + (P - 1)/P n beta, for every P.
    """
    for d in doubling(size):
        n = min(d, size - d)
        yield (
            Send((rank - d) % size, range(rank, rank + n)),
            Recv((rank + d) % size, range(rank + d, rank + d + n)),
        )


def alltoall_bruck(rank: int, size: int) -> Rounds:
    """Blocks travel 1, 2, 4, ... ranks, as the bits of their distance say.

    ::

        round 1   all blocks with an odd distance go 1 rank further
        round 2   all with bit 1 in their distance go 2 ranks further
        round 3   all with bit 2 go 4 ranks further

    ceil(log2 P) rounds of about n/2 bytes: log2(P)(alpha + n/2 beta).  All blocks must be equally
    long.
    """
    yield tuple(Copy(given(rank + distance), scratch(distance)) for distance in range(size))
    for d in doubling(size):
        moving = scratch(tuple(distance for distance in range(size) if distance & d))
        yield Send((rank + d) % size, moving), Recv((rank - d) % size, moving)
    yield tuple(Copy(scratch(distance), rank - distance) for distance in range(size))


def _moves(P: int) -> int:
    """Blocks that one rank sends: for each, the bits of its distance."""
    return sum(distance.bit_count() for distance in range(P))


_bruck = partial(
    register,
    rounds=ceil_log2,
    messages=lambda P: P * ceil_log2(P),
    symmetric=True,
    reference=_REFERENCE,
)
_bruck(
    "allgather",
    "bruck",
    allgather_bruck,
    blocks_sent=lambda P: P * (P - 1),
    blocks_sent_max=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: ceil_log2(P) * a + (P - 1) / P * n * b,
)
_bruck(
    "alltoall",
    "bruck",
    alltoall_bruck,
    blocks_sent=lambda P: P * _moves(P),
    blocks_sent_max=_moves,
    textbook=lambda P, n, a, b, g: ceil_log2(P) * (a + n / 2 * b),
    scratch=per_rank,
    needs=(EQUAL_BLOCKS,),
)
