"""A run in the hands of its strategy: what the loop reads and sets, steps, saves and restores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base.arrays import Array, dtype_of
from mpicoll.base.json_lines import Attempt
from mpicoll.train import schedules
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.data.sampler import Sampler
from mpicoll.train.exchange.layer_sums import LayerSums
from mpicoll.train.models import Model
from mpicoll.train.models.flat import Flat
from mpicoll.train.optimizers import Optimizer
from mpicoll.train.parallel.communication import Call
from mpicoll.train.ranks.workers import Workers, together
from mpicoll.train.records import Epoch, Step
from mpicoll.train.strategies.buffers import Buffers
from mpicoll.train.strategies.evaluated import Evaluated, Whole
from mpicoll.train.strategies.gradients import Gradients
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.kept import Held, Part, Piece, Saved, Seat

if TYPE_CHECKING:
    from mpi4py import MPI


#: Steps without overflow after which the loss scale is doubled, and its highest value.
_PATIENCE, _HIGHEST = 2000, 2.0**24


#: What a checkpoint holds beside arrays.
_COUNTERS = ("number", "updates", "skipped", "skipped_in_a_row", "scale", "good")


@dataclass(frozen=True)
class Setup:
    """What a run is made of.

    Attributes:
        config: What to do.
        workers: All ranks, those that serve included.
        comm: The same ranks; None for one process without MPI.
        dataset: The data, of the type to compute in.
        model: The model.
        holding: This rank's parameters.
        optimizer: What to make of a gradient.
        buffers: The model's buffers to start from, by name.
    """

    config: Config
    workers: Workers
    comm: MPI.Intracomm | None
    dataset: Dataset
    model: Model
    holding: Holding
    optimizer: Optimizer
    buffers: Mapping[str, Array] = field(default_factory=dict)

    @property
    def weights(self) -> Flat:
        """This rank's parameters; changed in place."""
        return self.holding.weights


def gradients_of(
    setup: Setup,
    parts: range,
    count: int,
    sums: LayerSums | None = None,
    rows: int | None = None,
) -> Gradients:
    """What computes this rank's gradients of a model that it has whole, with its buffers.

    Args:
        setup: The run.
        parts, count, sums: As of `Gradients`.
        rows: As `count` of `Buffers`, where ranks may die.
    """
    config = setup.config
    outlive = rows if config.survive else None
    buffers = Buffers(setup.workers, setup.buffers, parts, config.invariant, outlive)
    return Gradients(config, setup.dataset, setup.model, setup.weights, count, parts, buffers, sums)


class Training(ABC):
    """The state of a run; every method is collective.

    Args:
        setup: The run.
        buffers, sampler: What the class has of these.
        copied: Whether there is to be a copy of this rank's parameters in the type to compute in,
            where that is narrower.

    Attributes:
        weights: This rank's parameters.
        forms: Of all parameters, as `Holding` has them.
        buffers: What the model keeps beside them.
        slots: Names of the arrays that the optimizer keeps.
        sampler: Global batches of a step, `accumulate` batches each.
        number: Steps made, those skipped included.
        epoch: Epoch that the next step is of, counted from 1.
        position: Steps made in it.
        history: Epochs that are measured.
        last: The step made last, None before the first.
        told: Steps made when somebody was last told of one, on this rank.
        before: What this rank held when another one died, until the next step is made.
        updates: Steps made, those skipped left out.
        skipped, skipped_in_a_row: Steps skipped; since the last that was not.
        compute: Seconds each rank computed, since somebody set them to zero.
        losses: Sum of the losses of samples, each before the update of its step, and how many these
            are, of all ranks; since somebody set them to zero.
        asked: Set on any rank: `stop` is true on all ranks after the next step.
        signalled: Set on any rank by a signal: `stop` and `interrupted` are true on all ranks after
            the next step.
        stop, interrupted: Whether a rank asked to stop, and whether it was told to by a signal.
        failure: Set on any rank: the next step fails by it on all ranks.
        rates: Learning rate of each step, where it is not the configuration that says it.
        scale, good: Factor of the loss; steps since it was changed.
        stamp: What its files say of each record; set before the first step.
    """

    def __init__(
        self,
        setup: Setup,
        buffers: Buffers,
        sampler: Sampler,
        copied: bool = True,
    ) -> None:
        config, workers = self._config, self._workers = setup.config, setup.workers
        self.weights, self.forms = setup.weights, setup.holding.forms
        self._setup, self._optimizer = setup, setup.optimizer
        self.slots = setup.optimizer.slots
        self.buffers, self.sampler = buffers, sampler
        self._worker_count = config.worker_count(workers.size)
        self.number = self.updates = self.skipped = self.skipped_in_a_row = self.position = 0
        self.epoch = 1
        self.history: list[Epoch] = []
        self.last: Step | None = None
        self.told = 0
        self.before: Training | None = None
        self.compute = np.zeros(workers.size)
        self.losses = np.zeros(2)
        self.asked = self.signalled = self.stop = self.interrupted = False
        self.failure: Exception | None = None
        self.rates: Sequence[float] = ()
        self.scale, self.good = config.first_scale or 1.0, 0
        # Parameters in the type to compute in, where that is another than they are kept in.
        narrow = dtype_of(config.dtype) if config.is_narrow and copied else None
        self._narrow = None if narrow is None else Flat(self.weights.views, narrow)
        self.stamp = Attempt("")

    @property
    def views(self) -> dict[str, Array]:
        """Parameters by name, in the type to compute in."""
        return (self._narrow or self.weights).views

    def evaluated(self) -> Evaluated:
        """The model as it is now, to be measured; with the same buffers everywhere."""
        self.buffers.average()
        views = {**self.views, **self.buffers.views}
        return Whole(self._config, self._workers, self._setup.model, views)

    @property
    def doing(self) -> str:
        """What this rank is in, in words, where there are such; asked by other threads."""
        return ""

    @property
    def total(self) -> int:
        """Steps of the whole run, unless it is stopped."""
        steps = self._config.epochs * self.sampler.steps
        return steps if self._config.steps is None else min(steps, self._config.steps)

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        if self.rates:
            return self.rates[min(step, len(self.rates)) - 1]
        config = self._config
        base = config.lr * schedules.SCALINGS[config.lr_scaling](self._worker_count)
        return schedules.rate(base, config.schedule, step, self.total, config.warmup)

    @property
    def collectives(self) -> list[tuple[str, int]]:
        """Name and bytes of each that sums the gradients of a step; none where there are others."""
        return []

    def communication(self) -> list[Call]:
        """What this rank sends in a full step, by the axes of the mesh; none where it varies."""
        size = self._workers.size
        return [Call("data", *call, size) for call in self.collectives] if size > 1 else []

    @abstractmethod
    def steps(self, epoch: int, done: int) -> Iterator[Step]:
        """Make this rank's steps of an epoch that are left, until `stop` or the last of the run.

        Args:
            epoch: Number of the epoch, counted from 1.
            done: Steps made in it.

        Raises:
            TrainingError: A rank failed, or too many steps in a row were skipped; on all ranks.
        """

    def counters(self) -> dict[str, Any]:
        """Numbers that the next step depends on, beside arrays; in JSON's types."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def parts(self) -> Iterator[Part]:
        """What this rank keeps of the arrays that the next step depends on.

        All ranks iterate to the end, together; all their parts make up each array exactly.
        """
        self.buffers.average()
        for kind, start, values in self._kept():
            for name, (first, last) in self.weights.spans.items():
                low, high = max(first, start), min(last, start + values.size)
                if low < high or first == last == low == high:
                    piece = values[low - start : high - start]
                    yield Part(f"{kind}/{name}", self.weights.views[name].shape, low - first, piece)
        if self._workers.rank == 0:
            for name, buffer in self.buffers.views.items():
                yield Part(f"buffer/{name}", buffer.shape, 0, buffer.reshape(-1))

    @property
    def readers(self) -> range:
        """Ranks that read a checkpoint: the first, which tells the others, unless it is said."""
        return range(1)

    @abstractmethod
    def restore(self, saved: Saved, counters: Mapping[str, Any]) -> None:
        """Go back to what was kept, perhaps by another number of ranks or another strategy.

        Args:
            saved: Arrays of the same parameters and optimizer; only `readers` read them.
            counters: As `counters`, on all ranks.

        Raises:
            TrainingError: An array cannot be read; on all ranks.
        """

    # --- where ranks may die ---

    #: Whether each rank has parameters of its own, with which it goes on where another has died.
    apart = False

    @property
    def lengths(self) -> dict[str, int | None]:
        """Vectors that `Held` has pieces of, and their lengths; None: by the number of ranks."""
        names = ["parameter", *(f"state/{slot}" for slot in self.slots)]
        found: dict[str, int | None] = dict.fromkeys(names, self.weights.vector.size)
        return found if self.buffers.rows is None else {**found, "buffers": None}

    @property
    def made(self) -> int:
        """Steps that this rank has made, those included of which the others know nothing yet."""
        return self.number

    def facts(self) -> dict[str, Any]:
        """What the next step depends on beside vectors."""
        return {
            "counters": self.counters(),
            "epoch": self.epoch,
            "position": self.position,
            "losses": self.losses.copy(),
            "stop": self.stop,
            "interrupted": self.interrupted,
            "history": tuple(self.history),
            "last": self.last,
            "stamp": self.stamp,
        }

    def held(self) -> list[Held]:
        """What this rank can hand to the others: first of the last step, then of steps before."""
        return [] if self.before is None else self.before.held()

    def seats(self) -> list[Seat]:
        """Which parts of the model `held` has, where a mesh shares it; the latest first."""
        return [] if self.before is None else self.before.seats()

    def begin(self) -> None:  # noqa: B027 - most have nothing to do
        """The state is there, and the first step of these ranks comes next."""

    def put(self, kind: str, values: Array) -> None:
        """Take over a whole vector of `Held`, as far as this rank keeps it; not collective."""
        raise NotImplementedError

    def go_on(self, facts: Mapping[str, Any]) -> None:
        """Take over what `facts` says; to be called after `put`."""
        for name, value in facts["counters"].items():
            setattr(self, name, value)
        self.losses[:] = facts["losses"]
        self.history = list(facts["history"])
        for name in ("epoch", "position", "stop", "interrupted", "last", "stamp"):
            setattr(self, name, facts[name])

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """The run is over: write down what is to be left of it, and free what the ranks made.

        Args:
            failed: By an error that all ranks have, which is the one to tell: this raises none.

        Raises:
            TrainingError: It cannot be written; nothing is free.
        """

    # --- for strategies ---

    def _recount(self, counters: Mapping[str, Any]) -> None:
        """Take over what `counters` said."""
        for name in _COUNTERS:
            setattr(self, name, counters[name])

    def _is_over(self) -> bool:
        return self.stop or self.number == self._config.steps

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each array that a checkpoint must have."""
        forms = self.forms
        return {
            **{f"parameter/{name}": form.shape for name, form in forms.items()},
            **{f"state/{s}/{name}": form.shape for s in self.slots for name, form in forms.items()},
            **{f"buffer/{name}": array.shape for name, array in self._setup.buffers.items()},
        }

    def _take_over(self) -> None:
        """Parameters have changed, and so must their copy in the type to compute in.

        To be called after each update.
        """
        if self._narrow is not None:
            self._narrow.vector[...] = self.weights.vector

    def _watch_scale(self, skipped: bool) -> None:
        """Dynamic loss scaling (Micikevicius et al. 2018)."""
        if self._config.first_scale is None:
            return
        self.good += 1
        if skipped:
            self.scale, self.good = max(1.0, self.scale / 2), 0
        elif self.good == _PATIENCE:
            self.scale, self.good = min(_HIGHEST, self.scale * 2), 0

    @abstractmethod
    def _kept(self) -> Iterator[Piece]:
        """What this rank keeps of vectors laid out as the parameters are.

        All ranks iterate to the end, together.

        Yields:
            What the vector is (`parameter`, `state/SLOT`), where in it a part begins, the part.
        """

    def _restore_model(self, saved: Saved) -> None:
        """Restore parameters and buffers: rank 0 reads, all ranks have them."""
        with together(self._workers, "reading a checkpoint"):
            if self._workers.rank == 0:
                self._read(saved, "parameter", 0, self.weights.vector)
                for name, buffer in self.buffers.views.items():
                    saved.read(f"buffer/{name}", 0, buffer.reshape(-1))
        self._workers.broadcast(self.weights.vector)
        self.buffers.assign(self.buffers.views)
        self._take_over()

    def _restored(self, saved: Saved) -> Iterator[Piece]:
        """Restore the model; then yield, on all ranks, the optimizer's arrays one at a time.

        Yields:
            Slot, where in the vector of parameters the values begin, and the values, until the
            next ones come.
        """
        self._restore_model(saved)
        spans = self.weights.spans.values()
        space = np.empty_like(self.weights.vector[: max(end - start for start, end in spans)])
        for slot in self.slots:
            for start, end in spans:
                values = space[: end - start]
                with together(self._workers, "reading a checkpoint"):
                    if self._workers.rank == 0:
                        self._read(saved, f"state/{slot}", start, values)
                self._workers.broadcast(values)
                yield slot, start, values

    def _read(self, saved: Saved, kind: str, start: int, target: Array) -> None:
        """Read a part of a vector that is laid out as the parameters are; not collective."""
        for name, (first, last) in self.weights.spans.items():
            low, high = max(first, start), min(last, start + target.size)
            if low < high:
                saved.read(f"{kind}/{name}", low - first, target[low - start : high - start])
