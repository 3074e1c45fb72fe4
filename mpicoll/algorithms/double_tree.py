"""Double binary trees: two trees share the work so that no rank is interior in both."""

from __future__ import annotations

from functools import partial

from mpicoll.registry import COMMUTATIVE, SAME_BITS, register
from mpicoll.schedule import Channels, Recv, RecvReduce, Send, channels, pipelined, then
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import (
    Node,
    ceil_log2,
    double_binary_tree,
    double_binary_tree_top,
    renamed,
)

_REFERENCE = (
    "P. Sanders, J. Speck, J. L. Traff, Two-tree algorithms for full bandwidth broadcast, "
    "reduction and scan, Parallel Computing 35 (2009)"
)


def reduce_tree(node: Node, block: int) -> Rounds:
    """Reduce one block towards the top of a tree."""
    yield tuple(RecvReduce(child, block) for child in node.children)
    if node.parent is not None:
        yield Send(node.parent, block)


def bcast_tree(node: Node, block: int) -> Rounds:
    """Broadcast one block from the top of a tree."""
    if node.parent is not None:
        yield Recv(node.parent, block)
    yield tuple(Send(child, block) for child in node.children)


def allreduce_double_binary_tree(
    rank: int, size: int, segments: int = 1, window: int = 8
) -> Channels:
    """Half of the vector is reduced and broadcast by each of two binary trees, in segments.

    ::

        block 0:   0           block 1:      7
                   |                         |
                   4                         3
                 /   \\                     /   \\
                2     6                   1     5
               / \\   / \\                 / \\   / \\
              1   3 5   7               0   2 4   6

    A leaf of one tree is interior in the other, so with k segments a tree every rank sends and
    receives about the same.  Rounds grow with log P.  With one port at least 4k rounds of n/2k
    bytes plus O(log P); with a port per edge and tree, and a window of at least twice the depth,
    2 depth + k - 1.
    """
    trees = [(double_binary_tree(rank, size, tree), tree) for tree in (0, 1)]
    up = channels(*(reduce_tree(node, block) for node, block in trees))
    down = channels(*(bcast_tree(node, block) for node, block in trees))
    return pipelined(then(up, down), segments, window)


def bcast_double_binary_tree(
    rank: int, size: int, root: int, segments: int = 1, window: int = 8
) -> Channels:
    """The root gives half of the vector to each of two binary trees of the other ranks.

    ::

        root 0, P = 8   block 0:   0            block 1:   0
                                   |                       |
                                   1                       2
                                  ...                     ...

    A leaf of one tree is interior in the other.  With k segments a tree about (2k + 2 log2 P) steps
    of n/2k bytes on one port.
    """

    def other(place: int) -> int:
        """The other ranks, counted from the root's right neighbour."""
        return (root + 1 + place) % size

    def node(tree: int) -> Node:
        if rank == root:
            top = double_binary_tree_top(size - 1, tree) if size > 1 else 0
            return Node(None, (other(top),) if size > 1 else ())
        node = renamed(double_binary_tree((rank - root) % size - 1, size - 1, tree), other)
        return node._replace(parent=root) if node.parent is None else node

    return pipelined(channels(*(bcast_tree(node(t), t) for t in (0, 1))), segments, window)


def _nodes(P: int) -> list[tuple[Node, Node]]:
    return [(double_binary_tree(r, P, 0), double_binary_tree(r, P, 1)) for r in range(P)]


def _rounds(P: int, segments: int) -> int:
    # Interior and leaf take part in 2 rounds per neighbour side: children, parent, both ways.
    return segments * max(
        sum(2 * (bool(n.children) + (n.parent is not None)) for n in pair) for pair in _nodes(P)
    )


def _blocks_sent_max(P: int, segments: int) -> int:
    # Up: one to the parent.  Down: one to each child.
    return segments * max(
        sum(len(n.children) + (n.parent is not None) for n in pair) for pair in _nodes(P)
    )


def _steps(P: int, segments: int, window: int) -> int:
    # One port: four messages of a segment pass it (each tree's up and down), and a message may be
    # kept waiting by both its ports; every window of segments fills and empties the trees, up and
    # down, two children a level.  A bound found by trying, and tested.
    return 0 if P == 1 else 8 * segments + 4 * ceil_log2(P) * -(-segments // window)


_double_binary_tree = partial(register, blocks=lambda P: 2, reference=_REFERENCE)
_double_binary_tree(
    "allreduce",
    "double_binary_tree",
    allreduce_double_binary_tree,
    rounds=_rounds,
    depth=_steps,
    messages=lambda P, segments: 4 * segments * (P - 1),
    blocks_sent_max=_blocks_sent_max,
    fan_in=lambda P: min(2, P - 1) if P != 3 else 1,
    textbook=lambda P, n, a, b, g, segments, window: (
        _steps(P, segments, window) * (a + n / (2 * segments) * b)
        + _steps(P, segments, window) / 2 * (n / (2 * segments)) * g
    ),
    needs=(COMMUTATIVE,),
    order=(SAME_BITS,),
)


def _bcast_nodes(P: int) -> list[tuple[Node, Node]]:
    return _nodes(P - 1) if P > 1 else []


def _bcast_rounds(P: int, segments: int) -> int:
    # Everybody but the root receives in both trees, and sends where it is interior.
    inner = max((sum(2 if n.children else 1 for n in pair) for pair in _bcast_nodes(P)), default=0)
    return segments * max(inner, 2 * int(P > 1))


def _bcast_sent_max(P: int, segments: int) -> int:
    inner = max((sum(len(n.children) for n in pair) for pair in _bcast_nodes(P)), default=0)
    return segments * max(inner, 2 * int(P > 1))


def _bcast_steps(P: int, segments: int, window: int) -> int:
    # Two messages of a segment leave and two enter a port; windows fill the trees one by one.
    windows = -(-segments // window)
    return 0 if P == 1 else 4 * segments + (2 * ceil_log2(P) + 1) * windows


_double_binary_tree(
    "bcast",
    "double_binary_tree",
    bcast_double_binary_tree,
    rounds=_bcast_rounds,
    depth=_bcast_steps,
    messages=lambda P, segments: 2 * segments * (P - 1),
    blocks_sent_max=_bcast_sent_max,
    textbook=lambda P, n, a, b, g, segments, window: (
        _bcast_steps(P, segments, window) * (a + n / (2 * segments) * b)
    ),
)
