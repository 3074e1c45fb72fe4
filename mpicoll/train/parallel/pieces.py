"""Arrays of which each of several ranks owns a piece, and the collectives that move them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from mpicoll.base.arrays import Array
from mpicoll.train.parallel.units import sendable
from mpicoll.train.ranks.workers import Running, Workers

Key = TypeVar("Key", bound=Hashable)
#: Of each array in a vector, where its pieces are in a row.
_Places = dict[Key, tuple[int, int]]

#: Elements at most that go through a collective together, unless an array is longer.
MOST = 1 << 22


class Gathering(Generic[Key]):
    """Arrays that are being gathered.

    Args:
        running: The collective.
        rows: What it fills in.
        places: Where the arrays are in it.
    """

    def __init__(self, running: Running, rows: Array, places: _Places[Key]) -> None:
        self._running, self._rows, self._places = running, rows, places

    def Test(self) -> bool:
        """Make progress; whether it is complete."""
        return self._running.Test()

    def finish(self, targets: Mapping[Key, Array]) -> None:
        """Wait, and fill in whole arrays, which are contiguous."""
        self._running.Wait()
        for key, (start, end) in self._places.items():
            for block, values in _pairs(self._rows[:, start:end], targets[key].reshape(-1)):
                values[...] = block


class Summing(Generic[Key]):
    """Arrays that are being summed.

    Args:
        running: The collective.
        rows: What it sums.
        own: This rank's pieces of the sums.
        places: Where the arrays are in it.
        spans: Of each array, what this rank owns.
    """

    def __init__(
        self,
        running: Running,
        rows: Array,
        own: Array,
        places: _Places[Key],
        spans: Mapping[Key, tuple[int, int]],
    ) -> None:
        self._running, self._rows, self._own = running, rows, own  # rows live until it is complete
        self._places, self._spans = places, spans

    def Test(self) -> bool:
        """Make progress; whether it is complete."""
        return self._running.Test()

    def finish(self) -> dict[Key, Array]:
        """Wait; this rank's pieces, of one axis."""
        self._running.Wait()
        found = {}
        for key, (start, _) in self._places.items():
            first, last = self._spans[key]
            found[key] = self._own[start : start + last - first]
        return found


class Pieces(Generic[Key]):
    """Every rank owns an even piece of each array: all-gather and reduce-scatter.

    The pieces of an array are equally long, but for what is missing at its end.  Several arrays go
    through a collective together: in one vector, of each rank its pieces of all of them.

    Args:
        sizes: Elements of each array.
        workers: The ranks.
        most: Elements at most that go through a collective together, unless an array is longer.

    Attributes:
        spans: Of each array the first element that this rank owns, and the one behind the last.
        vectors: The arrays that go through each collective together; those without elements go
            through none.
        collectives: Names of those that gather a vector, and that sum it.
    """

    collectives: ClassVar = ("allgather", "reduce_scatter")

    def __init__(self, sizes: Mapping[Key, int], workers: Workers, most: int = MOST) -> None:
        self._workers, self._rows = workers, self._row_count(workers)
        self.spans: dict[Key, tuple[int, int]] = {}
        self._places: list[_Places[Key]] = []
        self._widths: list[int] = []
        for key, size in sizes.items():
            length = -(-size // self._rows)
            self.spans[key] = self._span(key, size)
            if not length:
                continue
            too_long = not self._widths or (self._widths[-1] + length) * self._rows > most
            if too_long or not self._goes_with(key, next(iter(self._places[-1]))):
                self._places.append({})
                self._widths.append(0)
            start = self._widths[-1]
            self._places[-1][key] = start, start + length
            self._widths[-1] += length
        self.vectors = [list(places) for places in self._places]

    def _row_count(self, workers: Workers) -> int:
        """Rows of a vector, of each array a part in each."""
        return workers.size

    def _span(self, key: Key, size: int) -> tuple[int, int]:
        length = -(-size // self._rows)
        first = min(self._workers.rank * length, size)
        return first, min(first + length, size)

    def _goes_with(self, key: Key, other: Key) -> bool:
        """Whether two arrays may be in one vector."""
        return True

    def lengths(self) -> list[int]:
        """Elements of the whole vector of each collective that `gather` or `sum` makes."""
        return [width * self._rows for width in self._widths]

    @property
    def longest(self) -> int:
        """Elements of the longest of these vectors."""
        return max(self.lengths(), default=0)

    def _own_length(self, index: int) -> int:
        return self._widths[index]

    def start_gather(
        self, index: int, own: Mapping[Key, Array], dtype: DTypeLike
    ) -> Gathering[Key]:
        """Begin to gather the arrays of a vector; collective.

        Args:
            index: Number of the vector.
            own: This rank's pieces, of one axis.
            dtype: Type in which values travel.
        """
        return self._begin_gather(index, self._filled(index, own, dtype))

    def start_gathers(self, own: Mapping[Key, Array], dtype: DTypeLike) -> list[Gathering[Key]]:
        """As `start_gather`, of all vectors; nothing has begun if there is no memory for all."""
        every = [self._filled(index, own, dtype) for index in range(len(self._places))]
        return [self._begin_gather(index, rows) for index, rows in enumerate(every)]

    def _filled(self, index: int, own: Mapping[Key, Array], dtype: DTypeLike) -> Array:
        """Rows of a vector with this rank's pieces in them."""
        rows = self._empty(index, dtype)
        row = rows[self._workers.rank % self._rows]
        for key, (start, _) in self._places[index].items():
            row[start : start + own[key].size] = own[key]
        return rows

    def _begin_gather(self, index: int, rows: Array) -> Gathering[Key]:
        running = self._start_gather(index, sendable(rows.reshape(-1)))
        return Gathering(running, rows, self._places[index])

    def _start_gather(self, index: int, vector: Array) -> Running:
        return self._workers.start_share(vector)

    def start_sum(self, index: int, arrays: Mapping[Key, Array], dtype: DTypeLike) -> Summing[Key]:
        """Begin to sum the arrays of a vector over the ranks; collective.

        Args:
            index: Number of the vector.
            arrays: Whole ones, contiguous; copied.
            dtype: Their type.
        """
        places, rows = self._places[index], self._empty(index, dtype)
        for key, (start, end) in places.items():
            for block, values in _pairs(rows[:, start:end], arrays[key].reshape(-1)):
                block[...] = values
        own = np.empty(self._own_length(index), dtype)
        running = self._start_sum(index, rows.reshape(-1), own)
        return Summing(running, rows, own, places, self.spans)

    def _start_sum(self, index: int, vector: Array, own: Array) -> Running:
        return self._workers.start_reduce_scatter(vector, own)

    def gather(
        self, own: Mapping[Key, Array], targets: Mapping[Key, Array], dtype: DTypeLike
    ) -> None:
        """Fill in whole arrays; collective.

        Args:
            own, dtype: As of `start_gather`.
            targets: The arrays, contiguous.
        """
        for index in range(len(self._places)):
            self.start_gather(index, own, dtype).finish(targets)

    def _empty(self, index: int, dtype: DTypeLike) -> Array:
        return np.zeros((self._rows, self._widths[index]), dtype)


class WholeArrays(Pieces[Key]):
    """Every array is owned by one rank, whole: broadcast and reduce.

    Args:
        sizes, workers, most: As of `Pieces`.
        owners: Which rank owns an array.
    """

    collectives = ("bcast", "reduce")

    def __init__(
        self, sizes: Mapping[Key, int], workers: Workers, owners: Mapping[Key, int], most: int
    ) -> None:
        self._owners = owners
        super().__init__(sizes, workers, most)

    def _row_count(self, workers: Workers) -> int:
        return 1

    def _span(self, key: Key, size: int) -> tuple[int, int]:
        return 0, size if self._owners[key] == self._workers.rank else 0

    def _goes_with(self, key: Key, other: Key) -> bool:
        return self._owners[key] == self._owners[other]

    def _root(self, index: int) -> int:
        return self._owners[self.vectors[index][0]]

    def _own_length(self, index: int) -> int:
        return self._widths[index] if self._root(index) == self._workers.rank else 0

    def _start_gather(self, index: int, vector: Array) -> Running:
        return self._workers.start_broadcast(vector, self._root(index))

    def _start_sum(self, index: int, vector: Array, own: Array) -> Running:
        return self._workers.start_reduce(vector, own, self._root(index))


def _pairs(rows: Array, vector: Array) -> Iterator[tuple[Array, Array]]:
    """Views of rows, and of the vector that fills one after the other, as far as it goes."""
    length = rows.shape[1]
    whole = vector.size // length if length else len(rows)
    yield rows[:whole], vector[: whole * length].reshape(whole, length)
    if whole < len(rows):
        rest = vector[whole * length :]
        yield rows[whole, : rest.size], rest
