"""One rank's gradients of its part of a global batch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.data.batch import Batch
from mpicoll.train.data.feeds import Reading
from mpicoll.train.data.sampler import Sampler, shared
from mpicoll.train.exchange import tree
from mpicoll.train.exchange.layer_sums import LayerSums
from mpicoll.train.models import Model, Parameters, push_gradients
from mpicoll.train.models.flat import Flat
from mpicoll.train.strategies.buffers import Buffers


class Gradients:
    """Computes gradients into one vector, whose parts are known from the end to the start.

    Args:
        config: The run.
        dataset: The data, of the type to compute in.
        model: The model.
        weights: Parameters: names, shapes and the type to add gradients up in.
        count: Number of parts.
        parts: This rank's; each is computed by itself, and their gradients are added along the tree
            over all parts (`mpicoll.train.exchange.tree`).
        buffers: Those of the model, a set for each of these parts.
        sums: Makes sums over all parts that the model asks for; None where each part is by itself.

    Attributes:
        flat: Gradients by name, in one vector: the first of `rows`.
        buffers: As given.
        rows: Shape (slots, elements); the first of them are the sums of `tree.subtrees`.
        feed: Where this rank's samples come from.
        sampler: Global batches of a step, `accumulate` batches each.
        speeds: Shape (count,): shares of a batch that parts take; None for even ones.
        losses: Shares of the loss of this rank's parts, of the last step.
        finite: Whether all of the last ones are.
        loading, loading_processor: Seconds of the last step in which samples were read or waited
            for, and processor time in them.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: Model,
        weights: Flat,
        count: int,
        parts: range,
        buffers: Buffers,
        sums: LayerSums | None,
    ) -> None:
        self._config, self._model = config, model
        self._parts, self._count = parts, count
        self.buffers, self._layer_sums = buffers, sums
        self._batch = config.global_batch(count)
        self._program = tree.program(self._parts, count)
        self._sums = len(tree.subtrees(self._parts, count))
        zeros = {name: np.zeros_like(view) for name, view in weights.views.items()}
        self.rows: Array = library_of(weights.vector).zeros(
            (tree.slots(self._program), weights.vector.size), weights.vector.dtype
        )
        self._slots = [Flat(zeros, out=row) for row in self.rows]
        self.flat = self._slots[0]
        samples = len(dataset.train_targets)
        self.sampler = Sampler(samples, self._batch * config.accumulate, config.seed)
        self.feed = dataset.feed or Reading(dataset, config.seed, config.augment)
        self.speeds: Array | None = None
        self._dtype = dataset.train_inputs.dtype
        self.losses: list[float] = []
        self.finite = True
        self.loading = self.loading_processor = 0.0

    def batches(self, epoch: int, done: int = 0) -> Iterator[NDArray[np.int64]]:
        """As `Sampler.batches`; the samples of this rank are asked for ahead of need."""
        self.feed.forget()
        self.feed.begin(epoch, done * self._config.accumulate)
        coming: deque[NDArray[np.int64]] = deque()
        for samples in self.sampler.batches(epoch, done):
            coming.append(samples)
            batches = self._batches(samples)
            for index in self._parts:
                for batch in batches:
                    self.feed.want(self._cut(batch, index), epoch)
            if len(coming) > self.feed.ahead:
                yield coming.popleft()
        yield from coming

    def share(self, samples: NDArray[np.int64]) -> int:
        """How many of the samples of a step are this rank's."""
        return sum(
            len(self._cut(batch, index))
            for batch in self._batches(samples)
            for index in self._parts
        )

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
            parameters: Parameters by name, without buffers.
            samples: Indices of the samples of all ranks together.
            epoch: Number of the epoch, counted from 1.
            ready: Called with each name as soon as its gradients in `rows` are final.
            scale: Factor of loss and gradients.

        Returns:
            This rank's share of the loss, as `Model.loss_and_gradients`.

        Raises:
            Exception: Any of the model's.
            PeerFailed: A rank has failed from which this one needs a sum.
        """
        self.finite = True
        self.losses.clear()
        self.loading = self.loading_processor = 0.0
        self.buffers.keep()
        batches, sums = self._batches(samples), self._layer_sums
        with nullcontext() if sums is None else sums.step(len(batches)):
            self._compute(parameters, batches, len(samples) / scale, epoch, ready)
        self.finite = self.finite and all(map(math.isfinite, self.losses))
        return sum(self.losses)

    @property
    def summing(self) -> float:
        """Seconds of the last step in which the model made sums over the ranks."""
        return 0.0 if self._layer_sums is None else self._layer_sums.seconds

    def _compute(
        self,
        parameters: Parameters,
        batches: list[NDArray[np.int64]],
        total: float,
        epoch: int,
        ready: Callable[[str], object],
    ) -> None:
        for own, (index, leaf) in enumerate(zip(self._parts, self._program, strict=True)):
            loss = 0.0
            for number, whole in enumerate(batches):
                mine = self._cut(whole, index)
                inputs, targets = self._load(mine, epoch)
                batch = Batch(
                    inputs,
                    targets,
                    total,
                    mine,
                    epoch,
                    self._config.seed,
                    self._layer_sums,
                )
                done = partial(self._fold, leaf.folds, ready if index == self._parts[-1] else None)
                last = number == len(batches) - 1
                take = _Take(self._slots[leaf.slot], done if last else None, first=number == 0)
                buffers = self.buffers.sets[own]
                loss += push_gradients(self._model, parameters, batch, take, buffers)
                take.require_all()
                self.buffers.saw(own, len(mine))
            self.losses.append(loss)

    def _load(self, mine: NDArray[np.int64], epoch: int) -> tuple[Array, Array]:
        asked, processor = time.perf_counter(), time.process_time()
        inputs, labels = self.feed.take(mine, epoch)
        inputs = inputs.astype(self._dtype, copy=False)
        self.loading += time.perf_counter() - asked
        self.loading_processor += time.process_time() - processor
        return inputs, labels

    def failure(self, loss: float) -> FloatingPointError:
        """What to say of gradients that are not finite."""
        return FloatingPointError(
            f"the loss is {loss}, with values that are not finite: lower the learning rate "
            f"(now {self._config.lr}) or check the data"
        )

    def _batches(self, samples: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [samples[s : s + self._batch] for s in range(0, len(samples), self._batch)]

    def _cut(self, batch: NDArray[np.int64], index: int) -> NDArray[np.int64]:
        return shared(batch, self._count, index, self.speeds)

    def _fold(
        self,
        folds: tuple[tuple[int, int], ...],
        ready: Callable[[str], object] | None,
        name: str,
    ) -> None:
        """The gradient of a part is there: make the sums of subtrees that it completes."""
        for target, source in folds:
            self._slots[target].views[name] += self._slots[source].views[name]
        if ready is not None:
            for slot in self._slots[: self._sums]:
                self.finite &= bool(np.isfinite(slot.views[name]).all())
            ready(name)


class _Take:
    """Receives the gradients of one batch, each exactly once."""

    def __init__(self, flat: Flat, done: Callable[[str], object] | None, first: bool) -> None:
        self._flat, self._done, self._first = flat, done, first
        self._missing = dict.fromkeys(flat.views)

    def __call__(self, name: str, gradient: Array | None) -> None:
        """Put a gradient in place, or add it to those of earlier batches of the step."""
        if name not in self._missing:
            raise ValueError(
                f"a gradient of {name} came where {', '.join(self._missing) or 'none'} are "
                "awaited: push one gradient for each parameter"
            )
        del self._missing[name]
        if gradient is not None:
            view = self._flat.view(name, gradient)
            if self._first:
                view[...] = gradient
            else:
                view += gradient
        elif self._first:
            self._flat.views[name][...] = 0
        if self._done is not None:
            self._done(name)

    def require_all(self) -> None:
        """Raise ValueError if a gradient has not come."""
        if self._missing:
            raise ValueError(
                f"no gradient of {', '.join(self._missing)} came: push one for each parameter, "
                "None where it had no part in the batch"
            )
