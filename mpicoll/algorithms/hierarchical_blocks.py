"""Reduce-scatter and all-gather for nodes of several ranks; see :mod:`.hierarchical`.

Block r belongs to rank r, so a column carries the blocks of its owners.  Where a node has more
ranks than there are columns, its owner j also stands in for the ranks with numbers j + k, j + 2k,
... in their node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mpicoll.algorithms.hierarchical import REFERENCE, most_received, pull, push, waits
from mpicoll.algorithms.ring import allgather_ring, reduce_scatter_ring
from mpicoll.registry import COMMUTATIVE, LABELS, register
from mpicoll.schedule import Channels, Recv, Send, pipelined, within
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import Nodes, known_nodes


def _shares(known: Nodes) -> list[tuple[tuple[int, ...], ...]]:
    """For each column, the blocks that it carries of each node."""
    columns = known.columns
    return [tuple(node[column::columns] for node in known.ranks) for column in range(columns)]


def reduce_scatter_hierarchical(
    rank: int, size: int, nodes: Sequence[int] = (), segments: int = 1, window: int = 8
) -> Channels:
    """Reduce-scatter within each node, then between the nodes, column by column.

    ::

        nodes 0 1 | 2 3

        within     0 -[1,3]-> 1   1 -[0,2]-> 0   2 -[1,3]-> 3   3 -[0,2]-> 2
        between    0 -[2]-> 2     2 -[0]-> 0     1 -[3]-> 3     3 -[1]-> 1

    N nodes of L ranks: (L - 1)(alpha + n/L (beta + gamma)) within them,
    (N - 1)(alpha + n/P (beta + gamma)) between them.
    """
    known = known_nodes(size, nodes)
    number, local = known.place(rank)
    node, owners, shares = known.ranks[number], known.columns, _shares(known)

    def one_segment() -> Rounds:
        yield from within(push(local, len(node), owners), node, shares)
        if local < owners:
            ring = reduce_scatter_ring(number, len(known.ranks))
            yield from within(ring, known.column(local), shares[local])
            yield tuple(Send(other, other) for other in node[local + owners :: owners])
        else:
            yield Recv(node[local % owners], rank)

    return pipelined(one_segment(), segments, window)


def allgather_hierarchical(
    rank: int, size: int, nodes: Sequence[int] = (), segments: int = 1, window: int = 8
) -> Channels:
    """All-gather between the nodes, column by column, then within each node.

    ::

        nodes 0 1 | 2 3

        between    0 -[0]-> 2     2 -[2]-> 0     1 -[1]-> 3     3 -[3]-> 1
        within     0 -[0,2]-> 1   1 -[1,3]-> 0   2 -[0,2]-> 3   3 -[1,3]-> 2

    N nodes of L ranks: (N - 1)(alpha + n/P beta) between them, (L - 1)(alpha + n/L beta) within
    them.
    """
    known = known_nodes(size, nodes)
    number, local = known.place(rank)
    node, owners, shares = known.ranks[number], known.columns, _shares(known)

    def one_segment() -> Rounds:
        if local < owners:
            yield tuple(Recv(other, other) for other in node[local + owners :: owners])
            ring = allgather_ring(number, len(known.ranks))
            yield from within(ring, known.column(local), shares[local])
        else:
            yield Send(node[local % owners], rank)
        yield from within(pull(local, len(node), owners), node, shares)

    return pipelined(one_segment(), segments, window)


def _stood_in_for(known: Nodes) -> int:
    """The most ranks that an owner stands in for."""
    return (max(known.lengths) - 1) // known.columns


def _scatter_steps(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    once = max(known.lengths) - 1 + len(known.ranks) - 1 + _stood_in_for(known)
    return segments * once + (segments - 1) * waits(known)


def _gather_steps(P: int, nodes: Sequence[int], segments: int) -> int:
    # Owners that collect one block more begin the last part later than others of their node.
    return _scatter_steps(P, nodes, segments) + waits(known_nodes(P, nodes))


def _rounds(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    most = max(known.lengths)
    return segments * (int(most > 1) + len(known.ranks) - 1 + int(most > known.columns))


def _messages(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    N, k = len(known.ranks), known.columns
    return segments * (k * (P - N + N * (N - 1)) + P - k * N)


def _sent(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    return segments * (P * (P - 1) + P - known.columns * len(known.ranks))


def _gathered_max(P: int, nodes: Sequence[int], segments: int) -> int:
    known = known_nodes(P, nodes)
    # Round the ring all of a column but the right neighbour's share; within the node all of it.
    return segments * max(
        length * sum(map(len, shares)) - len(shares[(number + 1) % len(shares)])
        for shares in _shares(known)
        for number, length in enumerate(known.lengths)
    )


def _gathered_at_once(P: int, nodes: Sequence[int]) -> int:
    known = known_nodes(P, nodes)
    owners = known.columns - (known.columns == max(known.lengths))
    return max(_stood_in_for(known), int(len(known.ranks) > 1), owners)


def _time(
    P: int, n: float, a: float, b: float, g: float, nodes: Sequence[int], segments: int
) -> float:
    known = known_nodes(P, nodes)
    part, N = n / segments / known.columns, len(known.ranks)
    within, between = a + part * (b + g), a + part / N * (b + g)
    return segments * ((max(known.lengths) - 1) * within + (N - 1) * between)


_of_blocks = partial(
    register,
    rounds=_rounds,
    messages=_messages,
    blocks_sent=_sent,
    kinds={"nodes": LABELS},
    reference=REFERENCE,
)
_of_blocks(
    "reduce_scatter",
    "hierarchical",
    reduce_scatter_hierarchical,
    depth=_scatter_steps,
    blocks_sent_max=lambda P, nodes, segments: (
        segments * (P - (_stood_in_for(known_nodes(P, nodes)) == 0))
    ),
    fan_in=most_received,
    textbook=_time,
    needs=(COMMUTATIVE,),
)
_of_blocks(
    "allgather",
    "hierarchical",
    allgather_hierarchical,
    depth=_gather_steps,
    blocks_sent_max=_gathered_max,
    fan_in=_gathered_at_once,
    textbook=lambda P, n, a, b, g, nodes, segments: _time(P, n, a, b, 0, nodes, segments),
    depth_bound=True,
)
