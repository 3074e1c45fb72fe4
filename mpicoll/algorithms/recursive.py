"""Recursive algorithms: partners at distance 1, 2, 4, ..."""

from __future__ import annotations

from mpicoll.registry import RANK_ORDER, SAME_BITS, register
from mpicoll.schedule import Recv, RecvReduce, Rounds, Send
from mpicoll.topology import doubling, floor_log2


def allreduce_recursive_doubling(rank: int, size: int) -> Rounds:
    """Partners at distance 1, 2, 4, ... exchange and add whole vectors.

    ::

        round 1   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7
        round 2   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7
        round 3   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7

    log2(P)(alpha + n beta + n gamma): the fewest rounds, but whole vectors.  Where P is not a power
    of two, the first ranks pair up: the even one of a pair hands its vector to the odd one, sits
    out, and gets the result at the end; two more rounds.
    """
    power = 1 << floor_log2(size)
    pairs = size - power  # ranks 0 .. 2 * pairs - 1 pair up, so that 2^k take part
    if rank < 2 * pairs and rank % 2 == 0:
        yield Send(rank + 1, 0)
        yield Recv(rank + 1, 0)
        return
    if rank < 2 * pairs:
        yield RecvReduce(rank - 1, 0)
    place = rank // 2 if rank < 2 * pairs else rank - pairs
    for distance in doubling(power):
        partner = place ^ distance
        peer = 2 * partner + 1 if partner < pairs else partner + pairs
        yield Send(peer, 0), RecvReduce(peer, 0)
    if rank < 2 * pairs:
        yield Send(rank - 1, 0)


def _extra(P: int) -> int:
    """Ranks that sit out."""
    return P - (1 << floor_log2(P))


register(
    "allreduce",
    "recursive_doubling",
    allreduce_recursive_doubling,
    rounds=lambda P: floor_log2(P) + 2 * int(_extra(P) > 0),
    depth=lambda P: floor_log2(P) + 2 * int(_extra(P) > 0),
    messages=lambda P: (1 << floor_log2(P)) * floor_log2(P) + 2 * _extra(P),
    blocks_sent=lambda P: (1 << floor_log2(P)) * floor_log2(P) + 2 * _extra(P),
    blocks_sent_max=lambda P: floor_log2(P) + int(_extra(P) > 0),
    fan_in=lambda P: int(P > 1),
    lecture=lambda P, n, a, b, g: floor_log2(P) * (a + n * b + n * g),
    order=(RANK_ORDER, SAME_BITS),
    reference=(
        "R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations "
        "in MPICH, International Journal of High Performance Computing Applications 19 (2005)"
    ),
)
