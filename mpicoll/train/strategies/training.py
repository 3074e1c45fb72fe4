"""A run in the hands of its strategy: what the loop reads and sets, steps, saves and restores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base.arrays import Array, put
from mpicoll.base.json_lines import Attempt
from mpicoll.train import schedules
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.exchange.layer_sums import LayerSums
from mpicoll.train.models import Model
from mpicoll.train.models.flat import Flat
from mpicoll.train.optimizers import Optimizer
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.records import Step
from mpicoll.train.strategies.buffers import Buffers
from mpicoll.train.strategies.gradients import Gradients

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Setup:
    """What a run is made of.

    Attributes:
        config: What to do.
        workers: All ranks, those that serve included.
        comm: The same ranks; None for one process without MPI.
        dataset: The data, of the type to compute in.
        model: The model.
        weights: Parameters, equal on all ranks; changed in place.
        optimizer: What to make of a gradient.
        buffers: The model's buffers to start from, by name.
    """

    config: Config
    workers: Workers
    comm: MPI.Intracomm | None
    dataset: Dataset
    model: Model
    weights: Flat
    optimizer: Optimizer
    buffers: Mapping[str, Array] = field(default_factory=dict)


class Training(ABC):
    """The state of a run; every method is collective.

    Args:
        setup: The run.
        index, count, own, sums: This rank's parts of a batch, as of `Gradients`.

    Attributes:
        weights: Parameters.
        buffers: What the model keeps beside them.
        slots: Names of the arrays that the optimizer keeps.
        sampler: Global batches of a step, `accumulate` batches each.
        number: Steps made, those skipped included.
        position: Steps made in the epoch.
        updates: Steps made, those skipped left out.
        skipped, skipped_in_a_row: Steps skipped; since the last that was not.
        compute: Seconds each rank computed, since somebody set them to zero.
        asked: Set on any rank: `stop` is true on all ranks after the next step.
        signalled: Set on any rank by a signal: `stop` and `interrupted` are true on all ranks after
            the next step.
        stop, interrupted: Whether a rank asked to stop, and whether it was told to by a signal.
        failure: Set on any rank: the next step fails by it on all ranks.
        stamp: What its files say of each record; set before the first step.
    """

    def __init__(
        self, setup: Setup, index: int, count: int, own: int = 1, sums: LayerSums | None = None
    ) -> None:
        config, workers = self._config, self._workers = setup.config, setup.workers
        self.weights, self._optimizer = setup.weights, setup.optimizer
        self.slots = setup.optimizer.slots
        parts = range(index, index + own)
        self.buffers = Buffers(workers, setup.buffers, parts, config.invariant)
        self._source = Gradients(
            config, setup.dataset, setup.model, setup.weights, count, parts, self.buffers, sums
        )
        self.sampler = self._source.sampler
        self._worker_count = config.worker_count(workers.size)
        self.number = self.updates = self.skipped = self.skipped_in_a_row = self.position = 0
        self.compute = np.zeros(workers.size)
        self.asked = self.signalled = self.stop = self.interrupted = False
        self.failure: Exception | None = None
        self.stamp = Attempt("")

    @property
    def views(self) -> dict[str, Array]:
        """Parameters by name, in the type to compute in."""
        return self.weights.views

    def evaluated(self) -> dict[str, Array]:
        """Parameters and buffers by name, for the model to evaluate; the same on all ranks."""
        self.buffers.average()
        return {**self.views, **self.buffers.views}

    @property
    def total(self) -> int:
        """Steps of the whole run, unless it is stopped."""
        steps = self._config.epochs * self.sampler.steps
        return steps if self._config.steps is None else min(steps, self._config.steps)

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        config = self._config
        base = config.lr * schedules.SCALINGS[config.lr_scaling](self._worker_count)
        return schedules.rate(base, config.schedule, step, self.total, config.warmup)

    @property
    def collectives(self) -> list[tuple[str, int]]:
        """Name and bytes of each that sums the gradients of a step; none where there are others."""
        return []

    @abstractmethod
    def steps(self, epoch: int, done: int) -> Iterator[Step]:
        """Make this rank's steps of an epoch that are left, until `stop` or the last of the run.

        Args:
            epoch: Number of the epoch, counted from 1.
            done: Steps made in it.

        Raises:
            TrainingError: A rank failed, or too many steps in a row were skipped; on all ranks.
        """

    @abstractmethod
    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All that the next step depends on: arrays, whole on rank 0, and numbers."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Go back to a snapshot, perhaps of another number of ranks or another strategy.

        Args:
            arrays: On rank 0; of the same parameters and optimizer.
            facts: On all ranks.
        """

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """The run is over: write down what is to be left of it, and free what the ranks made.

        Args:
            failed: By an error that all ranks have, which is the one to tell: this raises none.

        Raises:
            TrainingError: It cannot be written; nothing is free.
        """

    # --- for strategies ---

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each array that a snapshot must have."""
        return {
            **{f"parameter/{name}": view.shape for name, view in self.weights.views.items()},
            **{f"buffer/{name}": array.shape for name, array in self.buffers.views.items()},
            **{f"state/{slot}": self.weights.vector.shape for slot in self.slots},
        }

    def _arrays(self) -> dict[str, Array]:
        """The arrays of a snapshot: parameters, buffers, and those that the optimizer keeps."""
        self.buffers.average()
        return {
            **{f"parameter/{name}": view for name, view in self.weights.views.items()},
            **{f"buffer/{name}": array for name, array in self.buffers.floating.items()},
            **{f"state/{slot}": self._whole(slot) for slot in self.slots},
        }

    @abstractmethod
    def _whole(self, slot: str) -> Array:
        """An array of the optimizer, of all ranks' parts; of use on rank 0."""

    def _restored(self, arrays: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Restore the parameters; then yield, on all ranks, each array of the optimizer, whole."""
        first = self._workers.rank == 0
        if first:
            self.weights.assign({name: arrays[f"parameter/{name}"] for name in self.weights.views})
        self._workers.broadcast(self.weights.vector)
        known = {n: arrays[f"buffer/{n}"] for n in self.buffers.views} if first else {}
        self.buffers.assign(known)
        for slot in self.slots:
            whole = np.empty_like(self.weights.vector)
            if first:
                put(whole, arrays[f"state/{slot}"])
            self._workers.broadcast(whole)
            yield slot, whole
