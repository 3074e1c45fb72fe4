"""Where the values between two sharded layers are: whole on every rank, cut, or still to be summed.

Pure shapes and integers; the ranks of a group are counted from 0.
"""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import NamedTuple

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part

Shape = tuple[int, ...]


class Cut(NamedTuple):
    """How an array is cut along one of its axes, which has `outer * length * inner` values.

    The axis is seen as (outer, length, inner), and the items of `length` are divided among the
    ranks: their numbers differ by at most one, longer parts first.

    Attributes:
        axis: Of the array, from its end (-1 is the last), as it is of a sample and of a batch.
        length: Items that are divided.
        outer, inner: As channels of flattened images (pixels, channels, 1), or queries, keys and
            values of heads (3, heads, values of a head).
    """

    axis: int
    length: int
    outer: int = 1
    inner: int = 1

    def part_shape(self, shape: Shape, ranks: int, rank: int) -> Shape:
        """Shape of a rank's part of an array of this shape."""
        return self._with_items(shape, part(self.length, ranks, rank)[1])

    def whole_shape(self, shape: Shape) -> Shape:
        """Shape of an array of which a part has this one."""
        return self._with_items(shape, self.length)

    def items(self, array: Array) -> Array:
        """The whole array, or a copy, as (before, length, behind).

        Raises:
            ValueError: The axis has another length.
        """
        shape = array.shape
        if shape[self.axis] != self.outer * self.length * self.inner:
            raise ValueError(
                f"layers are cut for an axis of {self.outer * self.length * self.inner} values and "
                f"got {shape[self.axis]}: give samples of the shape that they were sharded for"
            )
        axis = len(shape) + self.axis
        behind = self.inner * prod(shape[axis + 1 :])
        return array.reshape(prod(shape[:axis]) * self.outer, self.length, behind)

    def take(self, array: Array, ranks: int, rank: int) -> Array:
        """A rank's part of the whole array, as a new one."""
        start, count = part(self.length, ranks, rank)
        own = self.items(array)[:, start : start + count]
        return np.copy(own).reshape(self.part_shape(array.shape, ranks, rank))

    def _with_items(self, shape: Shape, items: int) -> Shape:
        axis = len(shape) + self.axis
        return (*shape[:axis], self.outer * items * self.inner, *shape[axis + 1 :])


class Kind(Enum):
    """Of the values between two layers, and of the slopes by them."""

    #: Values and slopes are whole and the same on every rank.
    WHOLE = "whole"
    #: Values are whole; the slopes of the ranks are to be summed.
    SHARED = "shared"
    #: The values of the ranks are to be summed; slopes are whole.
    PARTIAL = "partial"
    #: Each rank has its part of values and slopes.
    CUT = "cut"


class Placement(NamedTuple):
    """Where the values between two layers are.

    Attributes:
        kind: What each rank has.
        cut: How they are cut; None unless they are.
    """

    kind: Kind
    cut: Cut | None = None


WHOLE, SHARED, PARTIAL = (Placement(kind) for kind in (Kind.WHOLE, Kind.SHARED, Kind.PARTIAL))


def cut_placement(axis: int, length: int, outer: int = 1, inner: int = 1) -> Placement:
    """Values that are cut; see `Cut`."""
    return Placement(Kind.CUT, Cut(axis, length, outer, inner))


class Pair(Enum):
    """Two conjugate operations of a group: of values forward, and of slopes backward.

    Each is the transpose of the other.  The value is (forward, backward); `sum` is an all-reduce,
    `gather` an all-gather, `scatter` a reduce-scatter, `take` a rank's own part, `same` nothing.
    """

    COPY = "same", "sum"
    SUM = "sum", "same"
    GATHER = "gather", "take"
    TAKE = "take", "gather"
    GATHER_SHARED = "gather", "scatter"
    SCATTER = "scatter", "gather"


def conversion(source: Placement, target: Placement) -> list[tuple[Pair, Cut | None]] | None:
    """The pairs that lead from one placement to another, in order; None where none do."""
    have, want = source.kind, target.kind
    if source == target:
        return []
    match have, want:
        case Kind.WHOLE, Kind.SHARED:
            return [(Pair.COPY, None)]
        case Kind.WHOLE, Kind.CUT:
            return [(Pair.TAKE, target.cut)]
        case Kind.PARTIAL, Kind.WHOLE:
            return [(Pair.SUM, None)]
        case Kind.PARTIAL, Kind.SHARED:
            return [(Pair.SUM, None), (Pair.COPY, None)]
        case Kind.PARTIAL, Kind.CUT:
            return [(Pair.SCATTER, target.cut)]
        case Kind.CUT, Kind.WHOLE:
            return [(Pair.GATHER, source.cut)]
        case Kind.CUT, Kind.SHARED:
            return [(Pair.GATHER_SHARED, source.cut)]
        case Kind.CUT, Kind.CUT:
            return [(Pair.GATHER, source.cut), (Pair.TAKE, target.cut)]
    return None
