"""Fully sharded data parallelism: each rank keeps a part of everything, and gathers by layers.

The mechanism, and its source, is in `mpicoll.train.parallel.fully_sharded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array, dtype_of
from mpicoll.train.config import Config, one_of
from mpicoll.train.data import Inputs
from mpicoll.train.data.batch import Batch
from mpicoll.train.exchange import transfers
from mpicoll.train.exchange.buckets import Exchange
from mpicoll.train.models import Model, Sequential
from mpicoll.train.models.flat import Flat, Parameters
from mpicoll.train.models.networks import is_chain
from mpicoll.train.parallel.parameter_shards import ParameterShards
from mpicoll.train.parallel.passes import Passes
from mpicoll.train.parallel.replicas import FreedBehindLayers, FreedBetweenSteps
from mpicoll.train.parallel.units import GATHERS, Drawn
from mpicoll.train.ranks.workers import Workers, raise_together, together
from mpicoll.train.strategies.buffers import Buffers
from mpicoll.train.strategies.evaluated import Evaluated, Pass, rows_at_once
from mpicoll.train.strategies.gradients import Gradients
from mpicoll.train.strategies.holding import Form, Holding
from mpicoll.train.strategies.kept import Part, Piece, Saved
from mpicoll.train.strategies.lockstep import Trainer
from mpicoll.train.strategies.meshed import Meshed, require_one_update
from mpicoll.train.strategies.protocol import Strategy, slots
from mpicoll.train.strategies.training import Setup

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class ShardHolding(Holding):
    """This rank's parts of all parameters, each of one axis, and what gathers them.

    Attributes:
        shards: What gathers them.
        passes: Over the model.
        options: What `shards` was made with beside parameters and ranks.
    """

    shards: ParameterShards
    passes: Passes
    options: tuple[Any, ...]

    @classmethod
    def of(
        cls, parameters: Parameters, workers: Workers, options: tuple[Any, ...], model: Sequential
    ) -> ShardHolding:
        """Divide parameters; collective."""
        shards = ParameterShards(parameters, workers, *options)
        with together(workers, "making data and model ready"):
            passes = Passes(shards, model)
        own = {name: shards.weights[place] for name, _, place in shards.parts()}
        dtype, shapes = shards.weights.dtype, model.parameter_shapes
        forms = {name: Form(dtype, shapes[name]) for name in shards}
        return cls(Flat(own, out=shards.weights), forms, shards, passes, options)

    def on(self, workers: Workers) -> ShardHolding:
        zero = np.zeros((), self.weights.vector.dtype)
        nothing = {name: np.broadcast_to(zero, form.shape) for name, form in self.forms.items()}
        return self.of(nothing, workers, self.options, self.passes.model)

    def agree(self, workers: Workers) -> None:
        """No part is on two ranks."""


class FullySharded(Strategy):
    """Parameters are gathered before a layer uses them; gradients go to those that own them."""

    takes = frozenset({"balance", "survive", "pipe", "tensor"})
    in_lockstep = True
    has_whole = False

    def along(self, config: Config) -> Strategy:
        if not config.has_parts:
            return self
        # Every microbatch of a stage would gather its layers again.
        once = config.keep_gathered or config.axes["pipe"] > 1
        made = FreedBetweenSteps if once else FreedBehindLayers
        how = " by broadcast" if config.gather == "broadcast" else ""
        return Meshed(partial(made, gather=config.gather), how)

    def check(self, config: Config) -> None:
        one_of("gather", config.gather, GATHERS)
        require_one_update(config)
        refused = [
            ("bucket", "gradients are summed layer by layer", "leave bucket out"),
            ("device", "parts are kept in the memory of the host", "give device cpu"),
        ]
        if not config.has_parts:  # there a rank that sleeps has nothing
            why = "a rank that sleeps would have to hold all of the model"
            refused.append(("spares", why, "leave it out"))
        for name, why, remedy in refused:
            if getattr(config, name) not in (None, "cpu", 0):
                raise ValueError(
                    f"strategy fsdp does not take {name} {getattr(config, name)}, because {why}: "
                    f"{remedy}, or give strategy zero1"
                )

    def hold(
        self, config: Config, workers: Workers, comm: MPI.Intracomm | None, model: Model
    ) -> ShardHolding:
        with together(workers, "making data and model ready"):
            if not is_chain(model):
                raise ValueError(
                    f"strategy fsdp gathers layer by layer, and the model is a "
                    f"{type(model).__name__}: give a Sequential of layers, or strategy zero1"
                )
        narrow = dtype_of(config.dtype) if config.is_narrow else None
        options = config.gather, 1, config.keep_gathered, narrow
        return ShardHolding.of(Drawn(model, config.seed), workers, options, model)

    def memory(self, config: Config, rank: int, ranks: int, holding: Holding) -> dict[str, int]:
        size = holding.weights.vector.nbytes
        needed = {"gradients": size, "optimizer": slots(config) * size}
        if config.survive:
            needed["copies of parts"] = 4 * (1 + slots(config)) * size
        return needed

    def found(self, model: Model, holding: Holding) -> int:
        return 0  # it is among the gradients of a layer, in `passes`

    def passes(
        self, config: Config, rank: int, ranks: int, model: Model, holding: Holding
    ) -> dict[str, int]:
        """As others; beside them the buffers of gathered units, and what of one unit is found."""
        assert isinstance(holding, ShardHolding)
        needed = super().passes(config, rank, ranks, model, holding)
        shards = holding.shards
        if config.is_narrow:
            needed["parameters to compute with"] = 4 * shards.longest
        needed["gathered parameters"] = shards.gathered_nbytes
        if config.keep_gathered and config.accumulate > 1:
            length = sum(unit.length for unit in shards.all_units)
            needed["gradients of earlier batches"] = length * shards.weights.itemsize
        # Where the model has just found them, and where they are summed.
        needed["gradients of a layer"] = 2 * shards.longest * shards.weights.itemsize
        return needed

    def describe(self, config: Config) -> str:
        """By which collectives, of which algorithms."""
        by = config.algorithm or "the algorithms of the communicator"
        how = {"all": "all-gather and reduce-scatter", "broadcast": "broadcast and reduce"}
        kept = ", gathered once a step" if config.keep_gathered else ""
        return f"fsdp with {how[config.gather]}{kept} by {by}"

    def make(self, setup: Setup) -> ShardTrainer:
        return ShardTrainer(setup)


class _Summed(Exchange):
    """Gradients are summed when they come here; what remains is the header."""

    shards: ParameterShards

    def finish(self) -> None:
        super().finish()
        self.hidden = max(0.0, self.hidden - self.shards.seconds)  # not what was only waited for

    def flights(self) -> list[tuple[str, float, float]]:
        return self.shards.flights


class ShardTrainer(Trainer):
    """Steps of ranks of which each has a part of everything.

    Args:
        setup: The run.
    """

    _copied, _exchange_class = False, _Summed

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.holding, ShardHolding)
        self._shards, self._passes = setup.holding.shards, setup.holding.passes
        self._first = {name: first for name, first, _ in self._shards.parts()}
        super().__init__(setup, transfers.Stay, sharded=True)
        assert isinstance(self._exchange, _Summed)
        self._exchange.shards = self._shards

    def _make_source(
        self, setup: Setup, own: range, count: int, kept: int | None
    ) -> _ShardGradients:
        config, sums = setup.config, self._layer_sums
        buffers = Buffers(setup.workers, setup.buffers, own, None, kept if config.survive else None)
        named = config, setup.dataset, setup.model, setup.weights, count, own, buffers, sums
        source = _ShardGradients(*named)
        source.passes, source.shards = self._passes, self._shards
        self._shards.gradient = source.rows[0]
        return source

    @property
    def collectives(self) -> list[tuple[str, int]]:
        found = self._passes.collectives()
        if not self._shards.keep:
            found *= self._config.accumulate
        return [*found, ("allreduce", self._exchange.header.nbytes)]

    def _plan_sharing(self) -> list[Any]:
        return []  # they are gathered where they are used

    def _share(self) -> None:
        self._shards.changed()

    def _compare_parameters(self, where: str) -> None:
        """No parameter is on two ranks."""

    def evaluated(self) -> Evaluated:
        self.buffers.average()
        return _Gathering(self._workers, self._shards, self._passes, self.buffers)

    def parts(self) -> Iterator[Part]:
        self.buffers.average()
        first = self._workers.rank == 0
        for kind, vector in self._vectors().items():
            for name, (start, end) in self.weights.spans.items():
                shape = self.forms[name].shape
                if start < end or (first and 0 in shape):
                    yield Part(f"{kind}/{name}", shape, self._first[name], vector[start:end])
        if first:
            for name, buffer in self.buffers.views.items():
                yield Part(f"buffer/{name}", buffer.shape, 0, buffer.reshape(-1))

    def restore(self, saved: Saved, counters: Mapping[str, Any]) -> None:
        with together(self._workers, "reading a checkpoint"):
            for kind, vector in self._vectors().items():
                for name, (start, end) in self.weights.spans.items():
                    if start < end:
                        saved.read(f"{kind}/{name}", self._first[name], vector[start:end])
            for name, buffer in self.buffers.views.items():
                saved.read(f"buffer/{name}", 0, buffer.reshape(-1))
        self.buffers.assign(self.buffers.views)
        self._shards.changed()
        self._recount(counters)

    # --- where ranks may die: by parameters, so that no rank ever needs room for all of them ---

    @property
    def lengths(self) -> dict[str, int | None]:
        kinds = ("parameter", *(f"state/{slot}" for slot in self.slots))
        found: dict[str, int | None] = {
            f"{kind}/{name}": prod(form.shape)
            for kind in kinds
            for name, form in self.forms.items()
        }
        return found if self.buffers.rows is None else {**found, "buffers": None}

    def _owned(self) -> list[Piece]:
        return [
            (f"{kind}/{name}", self._first[name], vector[start:end])
            for kind, vector in self._vectors().items()
            for name, (start, end) in self.weights.spans.items()
        ]

    def put(self, kind: str, values: Array) -> None:
        if kind == "buffers":
            super().put(kind, values)
            return
        for own, first, part in self._owned():
            if own == kind:
                part[...] = values[first : first + part.size]

    def _vectors(self) -> dict[str, Array]:
        """This rank's parts, all laid out as its weights."""
        states = {f"state/{slot}": values for slot, values in self._state.items()}
        return {"parameter": self.weights.vector, **states}


class _ShardGradients(Gradients):
    """Gradients of this rank's samples, summed into the parts of the ranks that own them."""

    passes: Passes
    shards: ParameterShards

    @property
    def summing(self) -> float:
        return super().summing + self.shards.seconds

    def _compute(
        self,
        parameters: Mapping[str, Any],
        batches: list[NDArray[np.int64]],
        total: float,
        epoch: int,
        ready: Callable[[str], object],
    ) -> None:
        (index,) = self._parts
        (buffers,) = self.buffers.sets
        self.shards.begin()
        self.shards.forget()
        failing = (lambda: None) if self._layer_sums is None else self._layer_sums.tell
        loss = 0.0
        with self.passes.training(len(batches), failing):
            for number, whole in enumerate(batches, 1):
                mine = self._cut(whole, index)
                inputs, targets = self._load(mine, epoch)
                more = self._config.seed, self._layer_sums
                batch = Batch(inputs, targets, total, mine, epoch, *more)
                loss += self.passes.gradients(batch, buffers, number == len(batches))
                self.buffers.saw(0, len(mine))
        self.finite = self.shards.finite
        self.losses.append(loss)


class _Gathering(Evaluated):
    """A model that is gathered layer by layer, and evaluated on each rank's own samples.

    Args:
        workers: The ranks.
        shards, passes: The parameters, and the passes over the model.
        buffers: The model's.
    """

    together = True

    def __init__(
        self, workers: Workers, shards: ParameterShards, passes: Passes, buffers: Buffers
    ) -> None:
        self._workers, self._passes, self._buffers = workers, passes, buffers.views
        self.parts = workers.size
        self.arrays = {"this rank's parts": shards.weights, **self._buffers}
        self._rows = rows_at_once(passes.model)

    def passes(self, inputs: Inputs, targets: Inputs) -> Iterator[Pass]:
        workers, model = self._workers, self._passes.model
        first, count = workers.share(len(targets))
        most = -(-len(targets) // workers.size)  # of any rank: all make as many passes
        for start in range(0, most, self._rows):
            rows = slice(first + min(start, count), first + min(start + self._rows, count))
            failure, found = None, None
            try:
                with self._passes.evaluation():
                    wanted = targets[rows]
                    outputs = self._passes.outputs(inputs[rows], self._buffers)
                    losses, _ = model.loss.evaluate(outputs, wanted)
                    found = Pass(workers.rank, wanted, losses, outputs)
            except Exception as error:
                failure = error
            wrong = np.array([failure is not None], float)
            workers.sum(wrong)
            if wrong[0]:
                raise_together(workers, "evaluating", failure)
            if found is not None and rows.start < rows.stop:
                yield found
