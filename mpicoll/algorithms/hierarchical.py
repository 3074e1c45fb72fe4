"""Algorithms for nodes of several ranks: most of the work within nodes, the least between them.

``nodes`` names the node of each rank, in any placement: ``nodes=(0, 0, 1, 1)`` are two nodes of two
ranks, ``(0, 1, 0, 1)`` as many in turn, and nodes may differ in size.  A communicator knows where
its ranks are; elsewhere, without ``nodes``, every rank is a node by itself.

The least number k of ranks of a node is the number of *columns*.  The first k ranks of a node own
one each: the vector is cut into k parts, and part j crosses from node to node among the owners of
column j, so that k ranks of a node use the network side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from mpicoll.algorithms.binomial import bcast_binomial
from mpicoll.algorithms.ring import allreduce_ring
from mpicoll.registry import COMMUTATIVE, LABELS, SAME_BITS, per_rank, register
from mpicoll.schedule import Channels, Recv, RecvReduce, Send, pipelined, within
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import Nodes, binomial_tree, ceil_log2, known_nodes

REFERENCE = (
    "M. Cho, U. Finkler, M. Serrano, D. Kung, H. Hunter, BlueConnect: decomposing all-reduce for "
    "deep learning on heterogeneous network hierarchy, IBM Journal of Research and Development 63 "
    "(2019); parts: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication "
    "operations in MPICH, International Journal of High Performance Computing Applications 19 "
    "(2005)"
)


def push(local: int, size: int, owners: int) -> Rounds:
    """Ranks of one node send part j to owner j, which reduces it."""
    away = range(1, size)
    sources = [(local - k) % size for k in away if local < owners]
    targets = [(local + k) % size for k in away]
    # Receives come first, so that sends of ranks without any go first: size - 1 steps on one port.
    yield (
        *(RecvReduce(source, local) for source in sources),
        *(Send(owner, owner) for owner in targets if owner < owners),
    )


def pull(local: int, size: int, owners: int) -> Rounds:
    """Owner j sends part j to all other ranks of its node."""
    away = range(1, size)
    sources = [(local - k) % size for k in away]
    targets = [(local + k) % size for k in away if local < owners]
    yield (
        *(Send(target, local) for target in targets),
        *(Recv(owner, owner) for owner in sources if owner < owners),
    )


def _pieces(size: int, columns: int, nodes: int) -> list[list[range]]:
    """``size`` blocks cut as evenly as they can be: for each column, a piece for each node."""
    cuts = [size * number // (columns * nodes) for number in range(columns * nodes + 1)]
    pieces = [range(lo, hi) for lo, hi in pairwise(cuts)]
    return [pieces[column * nodes :][:nodes] for column in range(columns)]


def allreduce_hierarchical(
    rank: int, size: int, nodes: Sequence[int] = (), segments: int = 1, window: int = 8
) -> Channels:
    """Reduce-scatter within each node, all-reduce of each part between nodes, all-gather within.

    ::

        nodes 0 1 | 2 3

        within     0 -[2-3]-> 1   1 -[0-1]-> 0   2 -[2-3]-> 3   3 -[0-1]-> 2    reduced
        between    0 <-[0-1]-> 2  1 <-[2-3]-> 3                                 a ring a column
        within     0 -[0-1]-> 1   1 -[2-3]-> 0   2 -[0-1]-> 3   3 -[2-3]-> 2

    N nodes of L ranks: 2(L - 1)(alpha + n/L beta) + (L - 1)/L n gamma within them,
    2(N - 1)(alpha + n/P beta) + (N - 1)/P n gamma between them.  2(N - 1)/N n bytes leave a node,
    the least possible.
    """
    known = known_nodes(size, nodes)
    number, local = known.place(rank)
    node, owners = known.ranks[number], known.columns
    pieces = _pieces(size, owners, len(known.ranks))
    parts = [range(column[0].start, column[-1].stop) for column in pieces]

    def one_segment() -> Rounds:
        yield from within(push(local, len(node), owners), node, parts)
        if local < owners:
            ring = allreduce_ring(number, len(known.ranks))
            yield from within(ring, known.column(local), pieces[local])
        yield from within(pull(local, len(node), owners), node, parts)

    return pipelined(one_segment(), segments, window)


def bcast_hierarchical(
    rank: int, size: int, root: int, nodes: Sequence[int] = (), segments: int = 1, window: int = 8
) -> Channels:
    """Down a binomial tree of one rank a node, then down a binomial tree within each node.

    ::

        root 0, nodes 0 1 2 | 3 4 5 | 6 7 8

        between    0 -> 6   0 -> 3
        within     0 -> 2   0 -> 1    3 -> 5   3 -> 4    6 -> 8   6 -> 7

    N nodes of L ranks: (log2(N) + log2(L))(alpha + n beta), and the vector enters each node once.
    """
    known = known_nodes(size, nodes)
    number, local = known.place(rank)
    top, _ = known.place(root)
    node, leaders = known.ranks[number], _leaders(known, root)
    leader = leaders[number]

    def one_segment() -> Rounds:
        if rank == leader:
            between = bcast_binomial(number, len(leaders), top)
            yield from within(between, leaders, [0])
        yield from within(bcast_binomial(local, len(node), node.index(leader)), node, [0])

    return pipelined(one_segment(), segments, window)


@lru_cache(maxsize=8)
def _leaders(known: Nodes, root: int) -> tuple[int, ...]:
    """The rank of each node that stands for it: the root, or the first."""
    leaders = known.column(0)
    leaders[known.place(root)[0]] = root
    return tuple(leaders)


def waits(known: Nodes) -> int:
    """Steps that owners may keep each other waiting, where some are ready before others.

    A bound found by trying, and tested.
    """
    return known.columns - 1 if known.columns < max(known.lengths) else 0


def most_received(P: int, nodes: Sequence[int]) -> int:
    """Messages at once: those of an owner's node, or one of the ring's."""
    return max(max(known_nodes(P, nodes).lengths) - 1, int(P > 1))


def _steps(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    once = 2 * (max(known.lengths) - 1 + len(known.ranks) - 1)
    return segments * once + (segments - 1) * waits(known)


def _rounds(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    return segments * 2 * (int(max(known.lengths) > 1) + len(known.ranks) - 1)


def _messages(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    N = len(known.ranks)
    return segments * 2 * known.columns * (P - N + N * (N - 1))


def _sent_max(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    N = len(known.ranks)
    sent = []
    for pieces in _pieces(P, known.columns, N):
        part, lengths = sum(map(len, pieces)), [*map(len, pieces)]
        for node, length in enumerate(known.lengths):
            ring = 2 * part - lengths[node] - lengths[(node + 1) % N]
            sent.append((P - part) * (length > 1) + ring + (length - 1) * part)
    return segments * max(sent)


def _time(
    P: int, n: float, a: float, b: float, g: float, nodes: Sequence[int], segments: int
) -> float:
    known = known_nodes(P, nodes)
    part, others, N = n / segments / known.columns, max(known.lengths) - 1, len(known.ranks)
    within, between = others * (2 * a + part * (2 * b + g)), 2 * a + part / N * (2 * b + g)
    return segments * (within + (N - 1) * between)


register(
    "allreduce",
    "hierarchical",
    allreduce_hierarchical,
    rounds=_rounds,
    depth=_steps,
    messages=_messages,
    blocks_sent=lambda P, segments: segments * 2 * P * (P - 1),
    blocks_sent_max=_sent_max,
    fan_in=most_received,
    textbook=_time,
    blocks=per_rank,
    needs=(COMMUTATIVE,),
    order=(SAME_BITS,),
    kinds={"nodes": LABELS},
    reference=REFERENCE,
)


def _tree(P: int, nodes: Sequence[int], root: int) -> list[tuple[int, int, int]]:
    """For each node: when its leader has the vector, its messages to other nodes, and within."""
    known = known_nodes(P, nodes)
    N, top = len(known.ranks), known.place(root)[0]
    had, found = [0] * N, []
    for place in range(N):  # counted from the root's; parents come first
        children = binomial_tree(place, N, 0).children
        for sent, child in enumerate(reversed(children), 1):
            had[child] = had[place] + sent
        found.append((had[place], len(children), ceil_log2(known.lengths[(top + place) % N])))
    return found


def _bcast_steps(P: int, nodes: Sequence[int], segments: int, root: int = 0) -> int:
    return segments * max(map(sum, _tree(P, nodes, root)))


register(
    "bcast",
    "hierarchical",
    bcast_hierarchical,
    rounds=lambda P, root, nodes, segments: (
        segments * max((had > 0) + out + inside for had, out, inside in _tree(P, nodes, root))
    ),
    depth=_bcast_steps,
    messages=lambda P, segments: segments * (P - 1),
    blocks_sent_max=lambda P, root, nodes, segments: (
        segments * max(out + inside for _, out, inside in _tree(P, nodes, root))
    ),
    textbook=lambda P, n, a, b, g, nodes, segments: (
        _bcast_steps(P, nodes, segments) * (a + n / segments * b)
    ),
    kinds={"nodes": LABELS},
    reference=REFERENCE,
)
