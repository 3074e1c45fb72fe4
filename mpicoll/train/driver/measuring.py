"""How good a model is on sets of samples, measured by all ranks together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.exchange import tree
from mpicoll.train.models import Measure
from mpicoll.train.ranks.workers import TrainingError, Workers, raise_together
from mpicoll.train.records import Measures
from mpicoll.train.strategies.evaluated import Evaluated, Pass


class Measuring:
    """Measures the sets of a data set; samples are cut over the ranks as batches are.

    Args:
        config: The run.
        workers: The ranks.
        dataset: The data.
        measures: Beside the loss.
    """

    def __init__(
        self,
        config: Config,
        workers: Workers,
        dataset: Dataset,
        measures: Sequence[Measure],
    ) -> None:
        self._lr, self._workers = config.lr, workers
        self._sets, self._measures = dataset.parts, tuple(measures)
        self._columns = 1 + sum(measure.sums for measure in measures)

    def on(self, workers: Workers) -> Measuring:
        """The same by other ranks."""
        made = copy(self)
        made._workers = workers
        return made

    def measure(
        self,
        names: Iterable[str],
        evaluated: Evaluated,
        what: str,
        failure: Exception | None = None,
        share: float = 0.0,
    ) -> tuple[dict[str, Measures], float]:
        """Measures of some sets, on all ranks; collective.

        Args:
            names: Of the sets, of which some may not be there.
            evaluated: What to measure.
            what: What is done, for messages.
            failure: What went wrong on this rank before.
            share: A number of this rank.

        Returns:
            Measures by the name of the set, and the mean of the ranks' numbers.

        Raises:
            TrainingError: A rank failed, or a loss is not finite.
        """
        sets = {name: self._sets[name] for name in names if name in self._sets}
        sums = np.zeros((len(sets), evaluated.parts, self._columns))
        head = np.array([0.0, share])
        try:
            if failure is None or evaluated.together:
                for own, (inputs, targets) in zip(sums, sets.values(), strict=True):
                    for found in evaluated.passes(inputs, targets):
                        failure = failure or self._add(own, found)
            if failure is None:
                self._require_finite(sums, evaluated)
        except Exception as error:
            if evaluated.together and isinstance(error, TrainingError):
                raise  # on all ranks
            failure = failure or error
        head[0] = failure is not None
        everything = np.concatenate([head, sums.ravel()])
        self._workers.sum(everything)
        if everything[0]:
            raise_together(self._workers, what, failure)
        totals = everything[2:].reshape(sums.shape)
        measured = {
            name: self._values(own, len(targets))
            for own, (name, (_, targets)) in zip(totals, sets.items(), strict=True)
        }
        return measured, float(everything[1]) / self._workers.size

    def _add(self, sums: Array, found: Pass) -> Exception | None:
        """Add what samples have come to to the sums of their part; what went wrong, if it did."""
        sums[found.part, 0] += float(found.losses.sum(dtype=np.float64))
        column = 1
        try:
            for measure in self._measures:
                end = column + measure.sums
                sums[found.part, column:end] += measure.measure(found.outputs, found.targets)
                column = end
        except Exception as error:
            return error
        return None

    def _require_finite(self, sums: Array, evaluated: Evaluated) -> None:
        loss, arrays = float(sums[..., 0].sum()), evaluated.arrays.values()
        if not (np.isfinite(loss) and all(np.isfinite(a).all() for a in arrays)):
            raise FloatingPointError(
                f"the loss is {loss}, with weights that are not finite: lower the learning rate "
                f"(now {self._lr}) or check the data"
            )

    def _values(self, sums: Array, samples: int) -> Measures:
        """What sums of all shards give, added along the tree of `invariant`."""
        leaves = {(shard, shard + 1): row for shard, row in enumerate(sums)}
        total = tree.total(leaves, len(sums))
        found = {"loss": float(total[0]) / samples}
        column = 1
        for measure in self._measures:
            end = column + measure.sums
            found[measure.name] = float(measure.value(total[column:end]))
            column = end
        return found
