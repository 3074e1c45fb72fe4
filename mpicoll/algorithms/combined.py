"""Algorithms put together from those of other families."""

from __future__ import annotations

from functools import lru_cache

from mpicoll.algorithms.binomial import blocks_in_subtrees, gather_binomial, scatter_binomial
from mpicoll.algorithms.recursive import (
    log_blocks,
    log_messages,
    log_rounds,
    reduce_scatter_recursive_halving,
)
from mpicoll.registry import COMMUTATIVE, per_rank, register
from mpicoll.schedule import Recv, Send, within
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import binomial_tree, ceil_log2, floor_log2, sits_out, stands_in


def bcast_scatter_allgather(rank: int, size: int, root: int) -> Rounds:
    """Scatter the vector down a binomial tree, then gather it everywhere round a ring.

    ::

        root -[blocks]-> subtrees ...;   then every block goes round the ring

    (log2(P) + P - 1) alpha + 2(P - 1)/P n beta: for long vectors.  The root receives nothing, since
    it has all of it.
    """
    yield from scatter_binomial(rank, size, root)
    yield from _ring_from(rank, size, root)


def _ring_from(rank: int, size: int, root: int) -> Rounds:
    """An all-gather round a ring in which the root receives nothing."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for k in range(size - 1):
        sends = (Send(right, rank - k),) if right != root else ()
        receives = (Recv(left, rank - k - 1),) if rank != root else ()
        yield sends + receives


def reduce_reduce_scatter_gather(rank: int, size: int, root: int) -> Rounds:
    """Reduce-scatter by recursive halving, then gather the blocks at the root up a binomial tree.

    ::

        every rank r gets the sum of block r;   then subtrees -[blocks]-> root

    2 log2(P) alpha + 2(P - 1)/P n beta + (P - 1)/P n gamma: for long vectors.
    """
    from_root = _from_root(root, size)
    place = (rank - root) % size
    yield from within(
        reduce_scatter_recursive_halving(place, size), from_root, range(root, root + size)
    )
    yield from gather_binomial(rank, size, root)


@lru_cache(maxsize=8)
def _from_root(root: int, size: int) -> tuple[int, ...]:
    return (*range(root, size), *range(root))


def _busiest(P: int) -> int:
    """Rounds of the rank that takes part in most: halving, then its children and its parent."""
    return max(
        (2 if sits_out(v, P) else floor_log2(P) + 2 * stands_in(v, P))
        + len(binomial_tree(v, P, 0).children)
        + (v > 0)
        for v in range(P)
    )


def _sent_most(P: int) -> int:
    """Blocks that the rank sends which sends most: halving, then its subtree's."""
    return max(P - (not sits_out(v, P)) + min(v & -v, P - v) * (v > 0) for v in range(P))


register(
    "bcast",
    "scatter_allgather",
    bcast_scatter_allgather,
    rounds=lambda P: P - 1 + ceil_log2(P),
    messages=lambda P: P * (P - 1),
    blocks_sent=lambda P: (P - 1) ** 2 + blocks_in_subtrees(P),
    blocks_sent_max=lambda P: 2 * (P - 1),
    textbook=lambda P, n, a, b, g: (ceil_log2(P) + P - 1) * a + 2 * (P - 1) / P * n * b,
    blocks=per_rank,
    parts=(scatter_binomial, _ring_from),
    reference=(
        "E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, Collective communication: theory, "
        "practice, and experience, Concurrency and Computation 19 (2007)"
    ),
)
register(
    "reduce",
    "reduce_scatter_gather",
    reduce_reduce_scatter_gather,
    rounds=_busiest,
    depth=lambda P: log_rounds(P) + ceil_log2(P),
    messages=lambda P: log_messages(P) + P - 1,
    blocks_sent=lambda P: log_blocks(P) + blocks_in_subtrees(P),
    blocks_sent_max=_sent_most,
    textbook=lambda P, n, a, b, g: (
        (floor_log2(P) + ceil_log2(P)) * a + (P - 1) / P * n * (2 * b + g)
    ),
    blocks=per_rank,
    needs=(COMMUTATIVE,),
    reference=(
        "R. Rabenseifner, Optimization of collective reduction operations, ICCS 2004, Lecture "
        "Notes in Computer Science 3036"
    ),
)
