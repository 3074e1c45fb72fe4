"""Arrays of which each of several ranks owns an even piece."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from mpicoll.base.arrays import Array
from mpicoll.train.parallel.units import sendable
from mpicoll.train.ranks.workers import Workers

Key = TypeVar("Key", bound=Hashable)

#: Elements at most that go through a collective together, unless an array is longer.
_MOST = 1 << 22


class Pieces(Generic[Key]):
    """Who owns what, and the collectives that gather arrays and sum them.

    The pieces of an array are equally long, but for what is missing at its end.  Several arrays go
    through a collective together: in one vector, of each rank its pieces of all of them.

    Args:
        sizes: Elements of each array.
        workers: The ranks.

    Attributes:
        spans: Of each array the first element that this rank owns, and the one behind the last.
        longest: Elements of the longest of these vectors.
    """

    def __init__(self, sizes: Mapping[Key, int], workers: Workers) -> None:
        self._workers, self._sizes = workers, dict(sizes)
        self.spans: dict[Key, tuple[int, int]] = {}
        # Of each vector, where the pieces of an array are in the part of a rank.
        self._vectors: list[dict[Key, tuple[int, int]]] = []
        self._widths: list[int] = []
        for key, size in sizes.items():
            length = -(-size // workers.size)
            first = min(workers.rank * length, size)
            self.spans[key] = first, min(first + length, size)
            if not self._widths or (self._widths[-1] + length) * workers.size > _MOST:
                self._vectors.append({})
                self._widths.append(0)
            start = self._widths[-1]
            self._vectors[-1][key] = start, start + length
            self._widths[-1] += length
        self.longest = max(self._widths, default=0) * workers.size

    def lengths(self) -> list[int]:
        """Elements of the whole vector of each collective that `gather` or `sum` makes."""
        return [width * self._workers.size for width in self._widths if width]

    def gather(
        self, own: Mapping[Key, Array], targets: Mapping[Key, Array], dtype: DTypeLike
    ) -> None:
        """Fill in whole arrays; collective.

        Args:
            own: This rank's pieces, of one axis.
            targets: The arrays, contiguous.
            dtype: Type in which values travel.
        """
        for places, width in self._all():
            rows = np.zeros((self._workers.size, width), dtype)
            for key, (start, _) in places.items():
                rows[self._workers.rank, start : start + own[key].size] = own[key]
            self._workers.fill(sendable(rows.reshape(-1)))
            for key, (start, end) in places.items():
                for block, values in _pairs(rows[:, start:end], targets[key].reshape(-1)):
                    values[...] = block

    def sum(self, arrays: Mapping[Key, Array], dtype: DTypeLike) -> dict[Key, Array]:
        """This rank's pieces of the sums over the ranks, of one axis; collective.

        Args:
            arrays: Whole ones, contiguous.
            dtype: Their type.
        """
        found: dict[Key, Array] = {}
        for places, width in self._all():
            rows = np.zeros((self._workers.size, width), dtype)
            for key, (start, end) in places.items():
                for block, values in _pairs(rows[:, start:end], arrays[key].reshape(-1)):
                    block[...] = values
            own = np.empty(width, dtype)
            self._workers.sum_parts(rows.reshape(-1), own)
            for key, (start, _) in places.items():
                first, last = self.spans[key]
                found[key] = own[start : start + last - first]
        empty = np.empty(0, dtype)
        return {key: found.get(key, empty) for key in self._sizes}

    def _all(self) -> Iterator[tuple[dict[Key, tuple[int, int]], int]]:
        """The vectors of which something has to be sent."""
        for places, width in zip(self._vectors, self._widths, strict=True):
            if width:
                yield places, width


def _pairs(rows: Array, vector: Array) -> Iterator[tuple[Array, Array]]:
    """Views of rows, and of the vector that fills one after the other, as far as it goes."""
    length = rows.shape[1]
    whole = vector.size // length if length else len(rows)
    yield rows[:whole], vector[: whole * length].reshape(whole, length)
    if whole < len(rows):
        rest = vector[whole * length :]
        yield rows[whole, : rest.size], rest
