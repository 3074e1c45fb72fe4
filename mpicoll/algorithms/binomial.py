"""Binomial trees: the minimum spanning tree of the literature.

Ranks are counted from the root.  A rank's parent is the rank without its lowest set bit, and its
subtree is the ranks up to the next multiple of that bit::

    P = 8          0
              /    |   \\
             4     2    1
            / \\    |
           6   5   3
           |
           7
"""

from __future__ import annotations

from functools import partial

from mpicoll.registry import COMMUTATIVE, EQUAL_BLOCKS, RANK_ORDER, SAME_BITS, register
from mpicoll.schedule import Recv, RecvReduce, Send
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import binomial_tree, ceil_log2

_REFERENCE = (
    "E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, Collective communication: theory, "
    "practice, and experience, Concurrency and Computation 19 (2007)"
)


def reduce_binomial(rank: int, size: int, root: int) -> Rounds:
    """Partial sums go up a binomial tree, nearest child first.

    ::

        round 1   1 -> 0   3 -> 2   5 -> 4   7 -> 6
        round 2   2 -> 0   6 -> 4
        round 3   4 -> 0

    log2(P)(alpha + n beta + n gamma).
    """
    node = binomial_tree(rank, size, root)
    for child in node.children:
        yield RecvReduce(child, 0)
    if node.parent is not None:
        yield Send(node.parent, 0)


def bcast_binomial(rank: int, size: int, root: int) -> Rounds:
    """The vector goes down a binomial tree, farthest child first.

    ::

        round 1   0 -> 4
        round 2   0 -> 2   4 -> 6
        round 3   0 -> 1   2 -> 3   4 -> 5   6 -> 7

    log2(P)(alpha + n beta).
    """
    node = binomial_tree(rank, size, root)
    if node.parent is not None:
        yield Recv(node.parent, 0)
    for child in reversed(node.children):
        yield Send(child, 0)


def allreduce_binomial(rank: int, size: int) -> Rounds:
    """Reduce to rank 0 up a binomial tree, then broadcast down the same tree.

    ::

        up:    1 -> 0   3 -> 2     2 -> 0
        down:  0 -> 2              0 -> 1   2 -> 3

    2 log2(P)(alpha + n beta) + log2(P) n gamma.
    """
    yield from reduce_binomial(rank, size, 0)
    yield from bcast_binomial(rank, size, 0)


def _subtree(rank: int, size: int, root: int) -> range:
    """The blocks of the ranks in a rank's subtree."""
    place = (rank - root) % size
    length = min(place & -place, size - place) if place else size
    return range(rank, rank + length)


def gather_binomial(rank: int, size: int, root: int) -> Rounds:
    """Blocks collect up a binomial tree.

    ::

        round 1   1 -[1]-> 0   3 -[3]-> 2   5 -[5]-> 4   7 -[7]-> 6
        round 2   2 -[2-3]-> 0   6 -[6-7]-> 4
        round 3   4 -[4-7]-> 0

    log2(P) alpha + (P - 1)/P n beta.
    """
    node = binomial_tree(rank, size, root)
    for child in node.children:
        yield Recv(child, _subtree(child, size, root))
    if node.parent is not None:
        yield Send(node.parent, _subtree(rank, size, root))


def scatter_binomial(rank: int, size: int, root: int) -> Rounds:
    """Blocks spread down a binomial tree, farthest child first.

    ::

        round 1   0 -[4-7]-> 4
        round 2   0 -[2-3]-> 2   4 -[6-7]-> 6
        round 3   0 -[1]-> 1   2 -[3]-> 3   4 -[5]-> 5   6 -[7]-> 7

    log2(P) alpha + (P - 1)/P n beta.
    """
    node = binomial_tree(rank, size, root)
    if node.parent is not None:
        yield Recv(node.parent, _subtree(rank, size, root))
    for child in reversed(node.children):
        yield Send(child, _subtree(child, size, root))


def barrier_tree(rank: int, size: int) -> Rounds:
    """Arrivals are reported up a binomial tree, the release goes down it.

    ::

        up:    1 -> 0   3 -> 2     2 -> 0
        down:  0 -> 2              0 -> 1   2 -> 3

    2 log2(P) alpha, and P - 1 messages each way only.
    """
    node = binomial_tree(rank, size, 0)
    for child in node.children:
        yield Recv(child, ())
    if node.parent is not None:
        yield Send(node.parent, ())
        yield Recv(node.parent, ())
    for child in reversed(node.children):
        yield Send(child, ())


def blocks_in_subtrees(P: int) -> int:
    """Blocks that travel in a binomial gather: each rank but the root sends its subtree's."""
    return sum(min(place & -place, P - place) for place in range(1, P))


def _largest_subtree(P: int) -> int:
    return max((min(place & -place, P - place) for place in range(1, P)), default=0)


_one_way = partial(
    register,
    rounds=ceil_log2,
    messages=lambda P: P - 1,
    reference=_REFERENCE,
)
_up_and_down = partial(
    register,
    rounds=lambda P: 2 * ceil_log2(P),
    messages=lambda P: 2 * (P - 1),
    reference=_REFERENCE,
)
_of_blocks = partial(
    _one_way,
    blocks_sent=blocks_in_subtrees,
    textbook=lambda P, n, a, b, g: ceil_log2(P) * a + (P - 1) / P * n * b,
    needs=(EQUAL_BLOCKS,),
)
_one_way(
    "reduce",
    "binomial",
    reduce_binomial,
    blocks_sent_max=lambda P: int(P > 1),
    textbook=lambda P, n, a, b, g: ceil_log2(P) * (a + n * b + n * g),
    needs=(COMMUTATIVE,),
)
_one_way(
    "bcast",
    "binomial",
    bcast_binomial,
    blocks_sent_max=ceil_log2,
    textbook=lambda P, n, a, b, g: ceil_log2(P) * (a + n * b),
)
_of_blocks("gather", "binomial", gather_binomial, blocks_sent_max=_largest_subtree)
_of_blocks("scatter", "binomial", scatter_binomial, blocks_sent_max=lambda P: P - 1)
_up_and_down(
    "allreduce",
    "binomial",
    allreduce_binomial,
    blocks_sent_max=ceil_log2,
    textbook=lambda P, n, a, b, g: ceil_log2(P) * (2 * a + 2 * n * b + n * g),
    order=(RANK_ORDER, SAME_BITS),
)
_up_and_down(
    "barrier",
    "tree",
    barrier_tree,
    blocks_sent=lambda P: 0,
    blocks_sent_max=lambda P: 0,
    textbook=lambda P, n, a, b, g: 2 * ceil_log2(P) * a,
    blocks=lambda P: 0,
)
