"""One tree over virtual shards, so that sums do not depend on how many ranks there are.

A global batch is cut into V shards, whatever the number of ranks, and what the shards give is added
along one binary tree. A rank has neighbouring shards; it adds up those whose sum is a node of the
tree, and no others: its largest whole subtrees are what it has to tell. The sums above them are
those of the same tree, wherever they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from mpicoll.schedule.layout import part

T = TypeVar("T")

#: First shard of a node of the tree, and the one after its last.
Node = tuple[int, int]


class Leaf(NamedTuple):
    """What a rank does with the value of one shard.

    Attributes:
        slot: Where it goes.
        folds: (target, source) of the sums that can be made then, in order: the source is added to
            the target, and free.
    """

    slot: int
    folds: tuple[tuple[int, int], ...]


def children(node: Node) -> tuple[Node, Node]:
    """The two halves of a node of at least two shards; the left one is longer, if any is."""
    first, end = node
    middle = first + (end - first + 1) // 2
    return (first, middle), (middle, end)


def shards_of(rank: int, size: int, shards: int) -> range:
    """The shards of a rank.

    Raises:
        ValueError: There are more ranks than shards.
    """
    if size > shards:
        raise ValueError(
            f"{shards} virtual shards are for at most as many ranks, and there are {size}: give "
            f"invariant={size} or more, or start fewer ranks"
        )
    start, length = part(shards, size, rank)
    return range(start, start + length)


def subtrees(own: range, shards: int) -> list[Node]:
    """The largest nodes of the tree that lie within some shards, from left to right."""

    def within(node: Node) -> list[Node]:
        if node[1] <= own.start or own.stop <= node[0]:
            return []
        if own.start <= node[0] and node[1] <= own.stop:
            return [node]
        left, right = children(node)
        return within(left) + within(right)

    return within((0, shards))


def program(own: range, shards: int) -> list[Leaf]:
    """What to do with the value of each of some shards, in order.

    At the end, slots 0, 1, ... hold the sums of `subtrees(own, shards)`.
    """
    steps: list[Leaf] = []

    def visit(node: Node, slot: int) -> None:
        if node[1] - node[0] == 1:
            steps.append(Leaf(slot, ()))
            return
        left, right = children(node)
        visit(left, slot)
        visit(right, slot + 1)
        last = steps.pop()
        steps.append(Leaf(last.slot, (*last.folds, (slot, slot + 1))))

    for slot, node in enumerate(subtrees(own, shards)):
        visit(node, slot)
    return steps


def slots(steps: Sequence[Leaf]) -> int:
    """How many slots a program needs."""
    return 1 + max(step.slot for step in steps)


def total(values: Mapping[Node, T], shards: int) -> T:
    """The sum over all shards, of those of nodes that together are all of them.

    Values are added by `+`, and not changed.
    """

    def of(node: Node) -> T:
        if node in values:
            return values[node]
        left, right = children(node)
        return of(left) + of(right)  # type: ignore[operator]

    return of((0, shards))


def total_of_shards(values: Iterable[float]) -> float:
    """The sum of one number of each shard."""
    leaves = {(k, k + 1): value for k, value in enumerate(values)}
    return total(leaves, len(leaves))
