"""One rank's gradients of its part of a global batch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.train.batch import Batch
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.feeds import Reading
from mpicoll.train.flat import Flat
from mpicoll.train.models import Model, Parameters, push_gradients
from mpicoll.train.sampler import Sampler, shared

Array = NDArray[Any]


class Gradients:
    """Computes gradients into one vector, whose parts are known from the end to the start.

    Args:
        config: The run.
        dataset: The data, of the type to compute in.
        model: The model.
        weights: Parameters: names, shapes and the type to add gradients up in.
        index: Which part of each batch is this rank's.
        count: Number of parts.

    Attributes:
        flat: Gradients by name, in one vector.
        sampler: Global batches of a step, `accumulate` batches each.
        finite: Whether all of the last ones are.
        loading, loading_processor: Seconds of the last step in which samples were read or waited
            for, and processor time in them.
    """

    def __init__(
        self, config: Config, dataset: Dataset, model: Model, weights: Flat, index: int, count: int
    ) -> None:
        self._config, self._model = config, model
        self._index, self._count = index, count
        self._batch = config.global_batch(count)
        self.flat = Flat({name: np.zeros_like(view) for name, view in weights.views.items()})
        samples = len(dataset.train_labels)
        self.sampler = Sampler(samples, self._batch * config.accumulate, config.seed)
        self._feed = dataset.feed or Reading(dataset, config)
        self.finite = True
        self.loading = self.loading_processor = 0.0

    def batches(self, epoch: int, done: int = 0) -> Iterator[NDArray[np.int64]]:
        """As `Sampler.batches`; the samples of this rank are asked for ahead of need."""
        self._feed.forget()
        coming: deque[NDArray[np.int64]] = deque()
        for samples in self.sampler.batches(epoch, done):
            coming.append(samples)
            for start in range(0, len(samples), self._batch):
                self._feed.want(self._mine(samples[start : start + self._batch]), epoch)
            if len(coming) > self._feed.ahead:
                yield coming.popleft()
        yield from coming

    def share(self, samples: NDArray[np.int64]) -> int:
        """How many of the samples of a step are this rank's."""
        starts = range(0, len(samples), self._batch)
        return sum(len(self._mine(samples[s : s + self._batch])) for s in starts)

    def compute(
        self,
        parameters: Parameters,
        samples: NDArray[np.int64],
        epoch: int,
        ready: Callable[[str], object],
        scale: float = 1.0,
    ) -> float:
        """Compute the gradients of a step.

        Args:
            parameters: Parameters by name.
            samples: Indices of the samples of all ranks together.
            epoch: Number of the epoch, counted from 1.
            ready: Called with each name as soon as its gradient in `flat` is final.
            scale: Factor of loss and gradients.

        Returns:
            This rank's share of the loss, as `Model.loss_and_gradients`.

        Raises:
            Exception: Any of the model's.
        """
        self.finite = True
        self.loading = self.loading_processor = loss = 0.0
        starts = range(0, len(samples), self._batch)
        for start in starts:
            mine = self._mine(samples[start : start + self._batch])
            inputs, labels = self._load(mine, epoch)
            batch = Batch(
                inputs,
                labels,
                len(samples) / scale,
                mine,
                epoch,
                self._config.seed,
            )
            take = _Take(self, ready if start == starts[-1] else None, first=start == 0)
            loss += push_gradients(self._model, parameters, batch, take)
            take.require_all()
        self.finite = self.finite and math.isfinite(loss)
        return loss

    def _load(self, mine: NDArray[np.int64], epoch: int) -> tuple[Array, Array]:
        asked, processor = time.perf_counter(), time.process_time()
        found = self._feed.take(mine, epoch)
        self.loading += time.perf_counter() - asked
        self.loading_processor += time.process_time() - processor
        return found

    def failure(self, loss: float) -> FloatingPointError:
        """What to say of gradients that are not finite."""
        return FloatingPointError(
            f"the loss is {loss}, with values that are not finite: lower the learning rate "
            f"(now {self._config.lr}) or check the data"
        )

    def _mine(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return shared(samples, self._count, self._index)


class _Take:
    """Receives the gradients of one batch, each exactly once."""

    def __init__(
        self, gradients: Gradients, ready: Callable[[str], object] | None, first: bool
    ) -> None:
        self._gradients, self._ready, self._first = gradients, ready, first
        self._missing = dict.fromkeys(gradients.flat.views)

    def __call__(self, name: str, gradient: Array | None) -> None:
        """Put a gradient in place, or add it to those of earlier batches of the step."""
        if name not in self._missing:
            raise ValueError(
                f"a gradient of {name} came where {', '.join(self._missing) or 'none'} are "
                "awaited: push one gradient for each parameter"
            )
        del self._missing[name]
        flat = self._gradients.flat
        if gradient is not None:
            view = flat.view(name, gradient)
            if self._first:
                view[...] = gradient
            else:
                view += gradient
        elif self._first:
            flat.views[name][...] = 0
        if self._ready is not None:
            self._gradients.finite &= bool(np.isfinite(flat.views[name]).all())
            self._ready(name)

    def require_all(self) -> None:
        """Raise ValueError if a gradient has not come."""
        if self._missing:
            raise ValueError(
                f"no gradient of {', '.join(self._missing)} came: push one for each parameter, "
                "None where it had no part in the batch"
            )
