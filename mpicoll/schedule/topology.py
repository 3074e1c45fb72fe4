"""Trees and other shapes among ranks.  Pure integer functions: no blocks, no messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple


class Node(NamedTuple):
    """One rank's place in a tree."""

    parent: int | None
    children: tuple[int, ...]


def floor_log2(n: int) -> int:
    """The largest k with 2^k <= n."""
    return n.bit_length() - 1


def ceil_log2(n: int) -> int:
    """The smallest k with 2^k >= n."""
    return (n - 1).bit_length()


def doubling(size: int) -> Iterator[int]:
    """1, 2, 4, ... below ``size``."""
    distance = 1
    while distance < size:
        yield distance
        distance *= 2


class Nodes:
    """Which ranks share a node.

    ``ranks`` are the ranks of each node, in ascending order; the node of the lowest rank is first.
    The least number of ranks of a node is the number of *columns*: column j is the rank with number
    j in its node, of all nodes.
    """

    def __init__(self, ranks: tuple[tuple[int, ...], ...]) -> None:
        self.ranks = ranks

    @cached_property
    def lengths(self) -> list[int]:
        """Ranks of each node."""
        return [len(node) for node in self.ranks]

    @cached_property
    def columns(self) -> int:
        """The least number of ranks of a node."""
        return min(self.lengths)

    def column(self, number: int) -> list[int]:
        """The rank with a number in its node, of all nodes."""
        return [node[number] for node in self.ranks]

    def place(self, rank: int) -> tuple[int, int]:
        """The number of a rank's node, and the rank's number in it."""
        return self._places[rank]

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {
            rank: (number, local)
            for number, node in enumerate(self.ranks)
            for local, rank in enumerate(node)
        }


def nodes_of(labels: tuple[int, ...]) -> Nodes:
    """The nodes, from a label for each rank that is the same for the ranks of one node.

    ``nodes_of((7, 2, 7)).ranks`` is ``((0, 2), (1,))``.
    """
    # To hash labels takes as long as there are many, and every rank of a simulation asks.
    latest = _latest[0]
    if latest[0] is not labels:
        latest = _latest[0] = labels, _nodes_of(labels)
    return latest[1]


def known_nodes(size: int, nodes: Sequence[int]) -> Nodes:
    """The nodes of the ranks; without any named, every rank is one by itself."""
    return nodes_of(tuple(nodes)) if len(nodes) else _alone(size)


@lru_cache(maxsize=8)
def _alone(size: int) -> Nodes:
    return nodes_of(tuple(range(size)))


@lru_cache(maxsize=64)
def _nodes_of(labels: tuple[int, ...]) -> Nodes:
    found: dict[int, list[int]] = {}
    for rank, label in enumerate(labels):
        found.setdefault(label, []).append(rank)
    return Nodes(tuple(map(tuple, found.values())))


_latest: list[tuple[tuple[int, ...], Nodes]] = [((), Nodes(()))]


# -- 2^k of the ranks take part; of the others, each hands its part to the next rank -----------


def power_of_two(size: int) -> int:
    """The number of ranks that take part."""
    return 1 << floor_log2(size)


def sitting_out(size: int) -> int:
    """The number of ranks that sit out, each handing its part to the next rank."""
    return size - power_of_two(size)


def sits_out(rank: int, size: int) -> bool:
    """Whether a rank hands its part to the next one."""
    return rank < 2 * sitting_out(size) and rank % 2 == 0


def stands_in(rank: int, size: int) -> bool:
    """Whether a rank takes part for the previous one as well."""
    return rank < 2 * sitting_out(size) and rank % 2 == 1


def place_of(rank: int, size: int) -> int:
    """The place of a rank that takes part."""
    pairs = sitting_out(size)
    return rank // 2 if rank < 2 * pairs else rank - pairs


def rank_of(place: int, size: int) -> int:
    """The rank at a place."""
    pairs = sitting_out(size)
    return 2 * place + 1 if place < pairs else place + pairs


def binomial_tree(rank: int, size: int, root: int) -> Node:
    """One rank's node in the binomial tree on top of which ``root`` stands, nearest child first.

    Counted from the root, a rank's parent lacks its lowest set bit, and its children add each lower
    bit.  Depth is at most ceil(log2(size)).
    """
    place = (rank - root) % size
    height = place & -place if place else 1 << ceil_log2(size)
    children = tuple((root + place + bit) % size for bit in doubling(height) if place + bit < size)
    return Node((root + place - height) % size if place else None, children)


def double_binary_tree(rank: int, size: int, tree: int) -> Node:
    """One rank's node in tree 0 or tree 1 of a double binary tree.

    Tree 0 has rank 0 on top of an in-order binary tree of the others, in which a rank's lowest
    set bit is its height; so every odd rank is a leaf.  Tree 1 is tree 0 mirrored (even ``size``)
    or turned by one place (odd ``size``), so that its leaves are tree 0's interior ranks; both are
    drawn in :func:`mpicoll.algorithms.double_tree.allreduce_double_binary_tree`.

    Depth is at most ceil(log2(size)); no rank but rank 0 (odd sizes) has children in both trees.

    Source: P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth broadcast,
    reduction and scan", Parallel Computing 35 (2009).
    """
    if tree == 0:
        return _in_order_tree(rank, size)
    if size % 2 == 0:
        return renamed(_in_order_tree(size - 1 - rank, size), lambda place: size - 1 - place)
    return renamed(_in_order_tree((rank - 1) % size, size), lambda place: (place + 1) % size)


def renamed(node: Node, name: Callable[[int], int]) -> Node:
    """A node of the same tree among other ranks."""
    parent = None if node.parent is None else name(node.parent)
    return Node(parent, tuple(map(name, node.children)))


def double_binary_tree_top(size: int, tree: int) -> int:
    """The rank on top of tree 0 or tree 1 of a double binary tree."""
    if tree == 0:
        return 0
    return size - 1 if size % 2 == 0 else 1 % size


def _in_order_tree(rank: int, size: int) -> Node:
    if rank == 0:
        return Node(None, (1 << floor_log2(size - 1),) if size > 1 else ())
    height = rank & -rank
    above = (rank ^ height) | (height << 1)
    parent = above if above < size else rank ^ height
    children = []
    if height > 1:
        children.append(rank - height // 2)
        # The right subtree holds the ranks between rank and rank + height that exist; its top is
        # the tallest of them that fits.
        step = height // 2
        while step and rank + step >= size:
            step //= 2
        if step:
            children.append(rank + step)
    return Node(parent, tuple(children))
