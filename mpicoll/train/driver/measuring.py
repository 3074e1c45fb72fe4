"""How good a model is on sets of samples, measured by all ranks together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, Inputs
from mpicoll.train.exchange import tree
from mpicoll.train.models import Measure, Model, Parameters
from mpicoll.train.ranks.workers import Workers, raise_together
from mpicoll.train.records import Measures

#: Samples evaluated at once: few, so that what layers hand on stays in the processor's caches; and
#: the values at most that a training pass would have of them, where the model says how many.
_ROWS, _VALUES = 128, 6 << 20


class Measuring:
    """Measures the sets of a data set; samples are cut over the ranks as batches are.

    Args:
        config: The run.
        workers: The ranks.
        dataset: The data.
        model: What to measure.
        measures: Beside the loss.
    """

    def __init__(
        self,
        config: Config,
        workers: Workers,
        dataset: Dataset,
        model: Model,
        measures: Sequence[Measure],
    ) -> None:
        self._config, self._workers, self._model = config, workers, model
        self._sets, self._measures = dataset.parts, tuple(measures)
        self._shards = config.invariant or workers.size
        self._columns = 1 + sum(measure.sums for measure in measures)
        self._rows = self._rows_at_once()

    def on(self, config: Config, workers: Workers) -> Measuring:
        """The same by other ranks."""
        made = copy(self)
        made._config, made._workers = config, workers
        made._shards = config.invariant or workers.size
        return made

    def measure(
        self,
        names: Iterable[str],
        parameters: Parameters,
        what: str,
        failure: Exception | None = None,
        share: float = 0.0,
    ) -> tuple[dict[str, Measures], float]:
        """Measures of some sets, on all ranks; collective.

        Args:
            names: Of the sets, of which some may not be there.
            parameters: Parameters, in the type to compute in.
            what: What is done, for messages.
            failure: What went wrong on this rank before.
            share: A number of this rank.

        Returns:
            Measures by the name of the set, and the mean of the ranks' numbers.

        Raises:
            TrainingError: A rank failed, or a loss is not finite.
        """
        sets = {name: self._sets[name] for name in names if name in self._sets}
        sums = np.zeros((len(sets), self._shards, self._columns))
        head = np.array([0.0, share])
        try:
            if failure is None:
                for own, (inputs, targets) in zip(sums, sets.values(), strict=True):
                    self._add(own, parameters, inputs, targets)
                self._require_finite(sums, parameters)
        except Exception as error:
            failure = error
        head[0] = failure is not None
        everything = np.concatenate([head, sums.ravel()])
        self._workers.sum(everything)
        if everything[0]:
            raise_together(self._workers, what, failure)
        totals = everything[2:].reshape(sums.shape)
        found = {
            name: self._values(own, len(targets))
            for own, (name, (_, targets)) in zip(totals, sets.items(), strict=True)
        }
        return found, float(everything[1]) / self._workers.size

    def _add(self, sums: Array, parameters: Parameters, inputs: Inputs, targets: Inputs) -> None:
        """Put the sums over this rank's samples into the rows of its shards."""
        workers, samples = self._workers, len(targets)
        for index in tree.shards_of(workers.rank, workers.size, self._shards):
            if self._config.invariant:
                first, count = part(samples, self._shards, index)
            else:
                first, count = workers.share(samples)
            for start in range(first, first + count, self._rows):
                rows = slice(start, min(start + self._rows, first + count))
                wanted = targets[rows]
                losses, outputs = self._model.losses_and_outputs(parameters, inputs[rows], wanted)
                sums[index, 0] += float(losses.sum(dtype=np.float64))
                column = 1
                for measure in self._measures:
                    end = column + measure.sums
                    sums[index, column:end] += measure.measure(outputs, wanted)
                    column = end

    def _require_finite(self, sums: Array, parameters: Parameters) -> None:
        loss = float(sums[..., 0].sum())
        if not (np.isfinite(loss) and all(np.isfinite(a).all() for a in parameters.values())):
            raise FloatingPointError(
                f"the loss is {loss}, with weights that are not finite: lower the learning rate "
                f"(now {self._config.lr}) or check the data"
            )

    def _values(self, sums: Array, samples: int) -> Measures:
        """What sums of all shards give, added along the tree of `invariant`."""
        leaves = {(shard, shard + 1): row for shard, row in enumerate(sums)}
        total = tree.total(leaves, self._shards)
        found = {"loss": float(total[0]) / samples}
        column = 1
        for measure in self._measures:
            end = column + measure.sums
            found[measure.name] = float(measure.value(total[column:end]))
            column = end
        return found

    def _rows_at_once(self) -> int:
        """Samples to evaluate at once; on a GPU as many as a step has room for keep it busy."""
        if self._config.device != "cpu":
            batch = self._config.global_batch(self._workers.size)
            return max(_ROWS, batch // self._workers.size)
        count = getattr(self._model, "activations", None)
        return _ROWS if count is None else max(1, min(_ROWS, _VALUES // max(1, count(1))))
