"""Measurements of a model whose layers ranks share; samples of which each reads what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train.data import Inputs
from mpicoll.train.parallel.pipeline import Pipeline
from mpicoll.train.strategies.evaluated import Evaluated, Pass


class Shared(Evaluated):
    """A model whose ranks make each forward pass together.

    Args:
        pipeline: The model.
        rows: Samples of a microbatch, at most.
        arrays: Parameters and buffers of this rank.
    """

    together = True

    def __init__(self, pipeline: Pipeline, rows: int, arrays: Mapping[str, Array]) -> None:
        self._pipeline, self._rows, self.arrays = pipeline, rows, arrays
        self.parts = pipeline.parts

    def passes(self, inputs: Inputs, targets: Inputs) -> Iterator[Pass]:
        at_once = self._rows * self.parts
        for start in range(0, len(targets), at_once):
            rows = np.arange(start, min(start + at_once, len(targets)))
            wanted, given = (
                SampleRows(rows, _adjacent(targets)),
                SampleRows(rows, _adjacent(inputs)),
            )
            for index, (losses, outputs) in self._pipeline.outcomes(given, wanted).items():
                first, count = part(len(rows), self.parts, index)
                if count:
                    own = wanted[first : first + count]
                    yield Pass(index, own, losses, outputs)


class SampleRows:
    """Samples that are read when somebody asks for some of them.

    Args:
        samples: Their numbers.
        read: Gives those of some numbers.
    """

    def __init__(
        self, samples: NDArray[np.int64], read: Callable[[NDArray[np.int64]], Array]
    ) -> None:
        self._samples, self._read = samples, read

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, rows: slice) -> Array:
        return self._read(self._samples[rows])


def _adjacent(values: Inputs) -> Callable[[NDArray[np.int64]], Array]:
    """Reads samples that lie one after the other, if there are any."""
    return lambda some: values[some[0] : some[-1] + 1] if some.size else values[:0]
