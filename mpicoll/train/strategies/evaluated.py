"""A model in the middle of a run, for measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train.config import Config
from mpicoll.train.data import Inputs
from mpicoll.train.exchange import tree
from mpicoll.train.models import Model, Parameters
from mpicoll.train.ranks.workers import Workers

#: Samples evaluated at once: few, so that what layers hand on stays in the processor's caches; and
#: the values at most that a training pass would have of them, where the model says how many.
_ROWS, _VALUES = 128, 6 << 20


class Pass(NamedTuple):
    """What some samples have come to.

    Attributes:
        part: Of the set, which the samples are of.
        targets: Of the samples.
        losses: Of each sample.
        outputs: Of the model, shape (samples, ...).
    """

    part: int
    targets: Array
    losses: Array
    outputs: Array


class Evaluated(ABC):
    """A model with the parameters of the moment.

    Attributes:
        parts: Parts that a set of samples is cut into; sums are made of each, and then of all.
        arrays: The parameters and buffers of this rank, by name.
        together: Whether ranks need each other for their passes: all go through all of them,
            whatever has failed, and what fails in a pass raises `TrainingError` on all.
    """

    parts: int
    arrays: Parameters
    together = False

    @abstractmethod
    def passes(self, inputs: Inputs, targets: Inputs) -> Iterator[Pass]:
        """All samples of a set that this rank is to measure, some at a time."""


class Whole(Evaluated):
    """A model that every rank has, and evaluates on samples of its own.

    Args:
        config: The run.
        workers: The ranks.
        model: The model.
        arrays: Parameters and buffers by name, in the type to compute in.
    """

    def __init__(self, config: Config, workers: Workers, model: Model, arrays: Parameters) -> None:
        self._workers, self._model, self.arrays = workers, model, arrays
        self._invariant = config.invariant is not None
        self.parts = config.invariant or workers.size
        self._rows = rows_at_once(model)
        if config.device != "cpu":  # as many as a step has room for keep a GPU busy
            batch = config.global_batch(workers.size)
            self._rows = max(_ROWS, batch // workers.size)

    def passes(self, inputs: Inputs, targets: Inputs) -> Iterator[Pass]:
        workers, samples = self._workers, len(targets)
        for index in tree.shards_of(workers.rank, workers.size, self.parts):
            if self._invariant:
                first, count = part(samples, self.parts, index)
            else:
                first, count = workers.share(samples)
            for start in range(first, first + count, self._rows):
                rows = slice(start, min(start + self._rows, first + count))
                wanted = targets[rows]
                found = self._model.losses_and_outputs(self.arrays, inputs[rows], wanted)
                yield Pass(index, wanted, *found)


def rows_at_once(model: Model) -> int:
    """Samples that a processor evaluates at once."""
    count = getattr(model, "activations", None)
    return _ROWS if count is None else max(1, min(_ROWS, _VALUES // max(1, count(1))))
