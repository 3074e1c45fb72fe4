"""Buffers: what a model keeps beside its parameters, such as the statistics of a batch norm.

A model changes them in training, by the samples that it sees, and no optimizer does. Each part of
a batch has a set of its own, since it may be computed by itself; what is equal on all parts stays
so. Measurements, checkpoints and results are of one set: the mean of all, weighted by the samples
that each has seen since the last time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mpicoll.base.arrays import Array, host, put
from mpicoll.train.exchange import tree
from mpicoll.train.ranks.workers import Workers


class Buffers:
    """The sets of this rank's parts of a batch.

    Args:
        workers: The ranks.
        arrays: What to start from, by name: those of rank 0; collective.
        parts: This rank's parts.
        shards: Number of virtual shards, if parts are those: then means are made along their tree.
        count: Number of rows, where sets are to outlive the ranks: one for each part, or a single
            one of the last mean; None where not.

    Attributes:
        sets: Arrays by name, of each of this rank's parts.
        rows: Shape (count, 1 + values): of each part of all ranks the samples seen, and its set, as
            `told` has said last; None where there is none to keep.
    """

    def __init__(
        self,
        workers: Workers,
        arrays: Mapping[str, Array],
        parts: range,
        shards: int | None,
        count: int | None = None,
    ) -> None:
        self._workers, self._parts, self._shards = workers, parts, shards
        self.sets = [{name: array.copy() for name, array in arrays.items()} for _ in parts]
        self._seen = np.zeros(len(parts))
        values = sum(array.size for array in arrays.values())
        self.rows = np.zeros((count, 1 + values)) if count and values else None
        self.assign(arrays)
        self.keep()

    @property
    def views(self) -> dict[str, Array]:
        """The first set: after `average`, that of all ranks."""
        return self.sets[0]

    def saw(self, index: int, samples: int) -> None:
        """So many samples have gone into the set of this rank's part of this index."""
        self._seen[index] += samples

    def keep(self) -> None:
        """Remember all sets as they are, for `undo`."""
        self._kept = [{name: array.copy() for name, array in own.items()} for own in self.sets]
        self._seen_then = self._seen.copy()

    def undo(self) -> None:
        """Back to what `keep` has seen: the step does not count."""
        for own, then in zip(self.sets, self._kept, strict=True):
            for name, array in own.items():
                array[...] = then[name]
        self._seen[:] = self._seen_then

    def tell(self, rows: Array) -> None:
        """Fill in the rows of this rank's parts; others are left as they are."""
        for part, seen, own in zip(self._parts, self._seen, self.sets, strict=True):
            rows[part, 0], rows[part, 1:] = seen, _packed(own)

    def told(self, rows: Array) -> None:
        """The step counts: remember the rows of all parts."""
        if self.rows is not None:
            self.rows[...] = rows

    def put(self, rows: Array) -> None:
        """Take over the rows of all parts; of another number of parts, their mean."""
        if self.rows is not None and len(rows) == len(self.rows) > max(self._parts):
            self.rows[...] = rows
            for index, part in enumerate(self._parts):
                self._fill_one(self.sets[index], rows[part, 1:])
                self._seen[index] = rows[part, 0]
        else:
            self._fill(_mean(rows, rows[0, 1:].copy()))

    def average(self) -> None:
        """Replace all sets on all ranks by their mean; collective."""
        if not self.views:
            return
        # Differences from one set: what is equal everywhere stays as it is to the bit.
        base = _packed(self.views)
        self._workers.broadcast(base)
        rows = np.zeros((self._shards or 1, 1 + base.size))
        for index, (part, seen) in enumerate(zip(self._parts, self._seen, strict=True)):
            row = rows[part if self._shards else 0]
            row[0] += seen
            if seen:
                row[1:] += seen * _difference(_packed(self.sets[index]), base)
        self._workers.sum(rows)
        self._fill(_moved(base, rows))

    def assign(self, arrays: Mapping[str, Array]) -> None:
        """Replace all sets by arrays of the same names, everywhere those of rank 0; collective."""
        if not self.views:
            return
        values = _packed({name: arrays.get(name, array) for name, array in self.views.items()})
        self._workers.broadcast(values)
        self._fill(values)

    def _fill(self, values: Array) -> None:
        for own in self.sets:
            self._fill_one(own, values)
        self._seen[:] = 0
        if self.rows is not None:
            self.rows[:, 0], self.rows[:, 1:] = 0, values

    def _fill_one(self, own: Mapping[str, Array], values: Array) -> None:
        start = 0
        for array in own.values():
            end = start + array.size
            found = values[start:end].reshape(array.shape)
            put(array, found if array.dtype.kind == "f" else np.rint(found).astype(array.dtype))
            start = end


def _difference(values: Array, base: Array) -> Array:
    with np.errstate(invalid="ignore"):  # infinite values may be constants
        return np.where(values == base, 0, values - base)


def _moved(base: Array, rows: Array) -> Array:
    """What differs from `base` on average: rows of samples, and of differences times samples."""
    total = tree.total({(k, k + 1): row for k, row in enumerate(rows)}, len(rows))
    return base + total[1:] / total[0] if total[0] else base


def _mean(rows: Array, base: Array) -> Array:
    """The mean of sets, weighted by samples: rows of samples and sets."""
    weighted = [np.concatenate([row[:1], row[0] * _difference(row[1:], base)]) for row in rows]
    return _moved(base, np.array(weighted))


def _packed(arrays: Mapping[str, Array]) -> Array:
    """Arrays one after the other, in float64."""
    return np.concatenate([host(array).reshape(-1).astype(np.float64) for array in arrays.values()])
