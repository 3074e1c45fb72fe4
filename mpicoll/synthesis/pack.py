"""Packing trees: whole ones that load the ports and links of a machine as evenly as can be.

A tree grows from its root edge by edge, each time by the edge that adds least to the sum over all
resources of (load / bound) to the power p; a deep rank costs more by ``depth`` for each level.
Loads are those of all trees, so each edge sees what the ones before have taken.  When all trees
stand, each part of the vector is taken up in turn and grown again, as long as the sum falls.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpicoll.synthesis.bound import DOWN, UP, Bound, ways
from mpicoll.synthesis.edges import Edges

Array = Any

#: Times that all parts are grown again at most; roots that a part tries besides its own.
_ROUNDS, _OTHERS = 8, 2

#: The parent of each rank; the root's is itself.
Tree = tuple[int, ...]


class Part(NamedTuple):
    """A part of a block, its root, and the trees that it goes up and down."""

    block: int
    root: int
    up: Tree | None
    down: Tree | None


@dataclass(frozen=True)
class Forest:
    """The trees of a whole vector.

    Attributes:
        collective: its name.
        strands: of each strand the parts, one of each block.
        load: of the busiest resource, as a multiple of the bound.
        loads: of each resource, as multiples of the bound.
    """

    collective: str
    strands: tuple[tuple[Part, ...], ...]
    load: float
    loads: tuple[float, ...]


@dataclass(frozen=True)
class Taste:
    """What trees are grown by.

    Attributes:
        strands: how many there are.
        power: of the loads in the sum, a power of two.
        depth: what a level costs.
    """

    strands: int
    power: int = 8
    depth: float = 0.05


def pack(
    collective: str, edges: Edges, bound: Bound, taste: Taste, root: int = 0, seed: int = 0
) -> Forest:
    """Trees for a collective."""
    return Packer(collective, edges, bound, taste, root, seed).forest()


class Packer:
    """Grows the trees of one collective on one machine; see :func:`pack`."""

    def __init__(
        self,
        collective: str,
        edges: Edges,
        bound: Bound,
        taste: Taste,
        root: int,
        seed: int,
    ) -> None:
        self.collective, self.edges, self.taste = collective, edges, taste
        self.ways = ways(collective)
        self.dice = random.Random(f"{seed} {taste}")
        self.blocks = edges.ranks if collective in ("allgather", "reduce_scatter") else 1
        # The part of a vector that goes along one tree, in units of what the bound lets pass.
        weight = edges.unit / max(bound.per_byte, 1e-12) / (self.blocks * taste.strands)
        self.betas = edges.betas * weight
        self.loads = np.zeros(len(edges.names) + 1)
        self.fixed_root = root if collective in ("bcast", "reduce") else None
        self.shares = bound.shares

    def forest(self) -> Forest:
        parts = [self._grow(block, root) for block, root in self._places()]
        for _ in range(_ROUNDS):
            better = [self._again(parts, number) for number in range(len(parts))]
            if not any(better):
                break
        return self._of(parts)

    def _of(self, parts: Sequence[Part]) -> Forest:
        loads = self.loads[:-1]
        strands = tuple(
            tuple(parts[first : first + self.blocks]) for first in range(0, len(parts), self.blocks)
        )
        return Forest(self.collective, strands, float(loads.max(initial=0)), tuple(loads.tolist()))

    def _places(self) -> list[tuple[int, int]]:
        """The block and the root of each part, strand after strand."""
        count = self.taste.strands
        if self.blocks > 1:
            return [(block, block) for _ in range(count) for block in range(self.blocks)]
        if self.fixed_root is not None:
            return [(0, self.fixed_root)] * count
        return [(0, root) for root in _apportioned(self.shares, count)]

    def _sum(self) -> float:
        return float(_power(self.loads, self.taste.power).sum())

    def regrown(self, forest: Forest, number: int, taste: Taste, root: int) -> Forest:
        """A forest with one of its parts grown again, by another taste and from another root."""
        parts = [part for strand in forest.strands for part in strand]
        self.loads[:-1], self.loads[-1] = forest.loads, 0
        self.taste = taste
        self._take(parts[number])
        parts[number] = self._grow(parts[number].block, root)
        return self._of(parts)

    def _again(self, parts: list[Part], number: int) -> bool:
        """Grow a part again; whether that was better."""
        before, old = self._sum(), parts[number]
        kept = self.loads.copy()
        self._take(old)
        bare = self.loads.copy()
        roots = [old.root]
        if self.blocks == 1 and self.fixed_root is None:
            roots += self.dice.sample(range(self.edges.ranks), min(_OTHERS, self.edges.ranks))
        best, found, loads = before * (1 - 1e-9), old, kept
        for root in dict.fromkeys(roots):
            self.loads = bare.copy()
            tried = self._grow(old.block, root)
            total = self._sum()
            if total < best:
                best, found, loads = total, tried, self.loads
        self.loads, parts[number] = loads, found
        return found is not old

    def _take(self, part: Part) -> None:
        """Take away the load of a part."""
        for edge in edges_of(part, self.edges):
            np.subtract.at(self.loads, self.edges.resources[edge], self.betas[edge])
        np.maximum(self.loads, 0, out=self.loads)

    def _grow(self, block: int, root: int) -> Part:
        trees = {way: self._tree(root, way) for way in (UP, DOWN) if way in self.ways}
        return Part(block, root, trees.get(UP), trees.get(DOWN))

    def _tree(self, root: int, way: str) -> Tree:
        edges, ranks = self.edges, self.edges.ranks
        inner, outer = edges.source, edges.target
        if way == UP:
            inner, outer = outer, inner
        parent, level = [root] * ranks, np.zeros(ranks)
        reached = np.zeros(ranks, bool)
        reached[root] = True
        for _ in range(ranks - 1):
            open_edges = np.flatnonzero(reached[inner] & ~reached[outer])
            used = self.loads[edges.resources[open_edges]]
            power = self.taste.power
            more = _power(used + self.betas[open_edges], power) - _power(used, power)
            cost = more.sum(axis=1) * (1 + self.taste.depth * level[inner[open_edges]])
            # Of equally good ones the quickest, then the first.
            least = cost.min()
            good = open_edges[cost <= least * (1 + 1e-9)]
            edge = int(good[np.argmin(edges.latency[good])])
            near, far = int(inner[edge]), int(outer[edge])
            parent[far], level[far], reached[far] = near, level[near] + 1, True
            np.add.at(self.loads, edges.resources[edge], self.betas[edge])
        return tuple(parent)


def _power(values: Array, exponent: int) -> Array:
    """Values to a power of two, which squares find many times as fast."""
    while exponent > 1:
        values, exponent = np.square(values), exponent // 2
    return values


def edges_of(part: Part, edges: Edges) -> list[int]:
    """The edges that a part goes along."""
    found = []
    for tree, up in ((part.up, True), (part.down, False)):
        for rank, parent in enumerate(tree or ()):
            if rank != parent:
                pair = (rank, parent) if up else (parent, rank)
                found.append(int(edges.number[pair]))
    return found


def _apportioned(shares: Sequence[float], count: int) -> list[int]:
    """Roots in number as the shares have it, by largest remainders."""
    exact = [share * count for share in shares]
    numbers = [int(value + 1e-9) for value in exact]
    order = sorted(range(len(shares)), key=lambda rank: (numbers[rank] - exact[rank], rank))
    for rank in order[: count - sum(numbers)]:
        numbers[rank] += 1
    return [rank for rank, number in enumerate(numbers) for _ in range(number)]
