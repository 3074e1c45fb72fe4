"""Neighbour exchange: ranks talk to their two neighbours only, by turns."""

from __future__ import annotations

from mpicoll.registry import EVEN_SIZE, register
from mpicoll.schedule import Recv, Send
from mpicoll.schedule.steps import Rounds


def allgather_neighbor_exchange(rank: int, size: int) -> Rounds:
    """Neighbours exchange what they learnt last, to one side and to the other by turns.

    ::

        round 1   0 <-> 1   2 <-> 3   4 <-> 5     own block
        round 2   1 <-> 2   3 <-> 4   5 <-> 0     the pair's two blocks
        round 3   0 <-> 1   2 <-> 3   4 <-> 5     the two blocks of the last round

    P/2 rounds: P/2 alpha + (P - 1)/P n beta.  For an even number of ranks.
    """
    if size == 1:
        return
    step = 1 if rank % 2 == 0 else -1
    first = (rank + step) % size
    yield Send(first, rank), Recv(first, first)
    pair = rank - rank % 2  # the pair of blocks learnt last begins here
    for k in range(1, size // 2):
        # Even ranks turn left first, odd ranks right; what comes is the next pair on that side.
        step = -step
        peer = (rank + step) % size
        coming = _pair_at(peer, k, size)
        yield Send(peer, range(pair, pair + 2)), Recv(peer, range(coming, coming + 2))
        pair = coming


def _pair_at(rank: int, k: int, size: int) -> int:
    """Where the two blocks begin that a rank sends in round k, from 1 on.

    They lie 0, 2, 2, 4, 4, ... ranks from its own pair, to either side by turns.
    """
    distance = 2 * (k // 2)
    away = -distance if k % 2 == 0 else distance
    return (rank - rank % 2 + (away if rank % 2 == 0 else -away)) % size


register(
    "allgather",
    "neighbor_exchange",
    allgather_neighbor_exchange,
    rounds=lambda P: P // 2,
    messages=lambda P: P * (P // 2),
    blocks_sent=lambda P: P * (P - 1),
    blocks_sent_max=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: P // 2 * a + (P - 1) / P * n * b,
    needs=(EVEN_SIZE,),
    reference=(
        "J. Chen, L. Zhang, Y. Zhang, W. Yuan, Performance evaluation of allgather algorithms on "
        "terascale Linux cluster with fast Ethernet, HPC Asia 2005"
    ),
)
