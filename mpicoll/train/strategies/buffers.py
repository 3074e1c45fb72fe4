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

    Attributes:
        sets: Arrays by name, of each of this rank's parts.
    """

    def __init__(
        self, workers: Workers, arrays: Mapping[str, Array], parts: range, shards: int | None
    ) -> None:
        self._workers, self._parts, self._shards = workers, parts, shards
        self.sets = [{name: array.copy() for name, array in arrays.items()} for _ in parts]
        self._seen = np.zeros(len(parts))
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
                own = _packed(self.sets[index])
                with np.errstate(invalid="ignore"):  # infinite values may be constants
                    row[1:] += seen * np.where(own == base, 0, own - base)
        self._workers.sum(rows)
        total = tree.total({(k, k + 1): row for k, row in enumerate(rows)}, len(rows))
        if total[0]:
            base += total[1:] / total[0]
        self._fill(base)

    def assign(self, arrays: Mapping[str, Array]) -> None:
        """Replace all sets by arrays of the same names, everywhere those of rank 0; collective."""
        if not self.views:
            return
        values = _packed({name: arrays.get(name, array) for name, array in self.views.items()})
        self._workers.broadcast(values)
        self._fill(values)

    def _fill(self, values: Array) -> None:
        for own in self.sets:
            start = 0
            for array in own.values():
                end = start + array.size
                found = values[start:end].reshape(array.shape)
                put(array, found if array.dtype.kind == "f" else np.rint(found).astype(array.dtype))
                start = end
        self._seen[:] = 0


def _packed(arrays: Mapping[str, Array]) -> Array:
    """Arrays one after the other, in float64."""
    return np.concatenate([host(array).reshape(-1).astype(np.float64) for array in arrays.values()])
