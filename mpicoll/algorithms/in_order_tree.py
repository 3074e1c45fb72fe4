"""In-order binary trees: a subtree's ranks lie next to one another, so sums keep rank order."""

from __future__ import annotations

from functools import lru_cache

from mpicoll.algorithms.double_tree import reduce_tree
from mpicoll.registry import RANK_ORDER, register
from mpicoll.schedule import Channels, Recv, Send, pipelined
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import double_binary_tree


def reduce_in_order_tree(
    rank: int, size: int, root: int, segments: int = 1, window: int = 8
) -> Channels:
    """Reduce up an in-order binary tree with rank 0 on top; hand the sum to the root from there.

    ::

                 0
                 |
                 4            a rank adds: left subtree + own + right subtree
               /   \\
              2     6
             / \\   / \\
            1   3 5   7

    For operators that are not commutative.  2 log2(P)(alpha + n beta) + log2(P) n gamma, and one
    more message if the root is not rank 0.
    """

    def one_segment() -> Rounds:
        yield from reduce_tree(double_binary_tree(rank, size, 0), 0)
        if root != 0 and rank == 0:
            yield Send(root, 0)
        if root != 0 and rank == root:
            yield Recv(0, 0)

    return pipelined(one_segment(), segments, window)


@lru_cache(maxsize=1 << 16)
def _ready(rank: int, size: int) -> int:
    """Steps until a rank has its subtree's sum; two children share its port."""
    ends = sorted(_ready(child, size) for child in double_binary_tree(rank, size, 0).children)
    time = 0
    for end in ends:
        time = max(time, end) + 1
    return time


def _rounds(P: int, segments: int, root: int) -> int:
    if root:  # its own part of the tree, then the result
        return segments * (2 + bool(double_binary_tree(root, P, 0).children))
    return segments * min(P - 1, 2)


def _depth(P: int, segments: int, window: int, root: int) -> int:
    one = _ready(0, P) + (root != 0)
    # Two children, the parent and the root share ports; every window fills the tree anew.
    return one if segments == 1 else one * -(-segments // window) + 4 * segments


register(
    "reduce",
    "in_order_tree",
    reduce_in_order_tree,
    rounds=_rounds,
    depth=_depth,
    messages=lambda P, segments, root: segments * (P - 1 + (root != 0)),
    blocks_sent_max=lambda P, segments: segments * int(P > 1),
    fan_in=lambda P: min(P - 1, 2) if P != 3 else 1,
    textbook=lambda P, n, a, b, g, segments, window: (
        _depth(P, segments, window, 0) * (a + n / segments * b)
        + _depth(P, segments, window, 0) * (n / segments) * g
    ),
    order=(RANK_ORDER,),
    reference=(
        "J. Pjesivac-Grbovic et al., Performance analysis of MPI collective operations, Cluster "
        "Computing 10 (2007): in-order binary tree"
    ),
)
