"""Both passes over a model whose parameters are gathered layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters, require_names
from mpicoll.train.models.layers import Layer, Residual
from mpicoll.train.models.networks import Sequential
from mpicoll.train.models.precision import Rounding, computing
from mpicoll.train.parallel.parameter_shards import ParameterShards
from mpicoll.train.parallel.sharded import Sharded
from mpicoll.train.parallel.units import program


class Passes:
    """The passes over a model.

    Args:
        shards: Its parameters.
        model: The model.

    Attributes:
        model: As given.

    Raises:
        ValueError: The parameters are of another model, or a layer would need those of the forward
            pass in the backward pass.
    """

    def __init__(self, shards: ParameterShards, model: Sequential) -> None:
        require_names(model.parameter_shapes, shards)
        for number, layer in enumerate(model.layers):
            if not shards.keep and _keeps_parameters(layer):
                raise ValueError(
                    f"layer {number} of the model, a {type(layer).__name__}, needs in the backward "
                    "pass the parameters of the forward pass: keep what was gathered (keep=True, "
                    "--keep-gathered)"
                )
        self.model, self._shards = model, shards
        self._layers: list[int | None] = []
        for number in range(len(model.layers)):
            own = [name for name in model.names(number).values() if name in model.holders]
            self._layers.append(shards.unit_of(own[0]).index if own else None)
        self._uses = [("use", unit) for unit in self._layers if unit is not None]

    def training(
        self, batches: int = 1, failing: Callable[[], object] = lambda: None
    ) -> AbstractContextManager[None]:
        """Guard so many times `gradients`, as `ParameterShards.through`; collective.

        Where gathered parameters are kept, gradients are summed with those of the last batch alone.
        """
        events = program(self._layers)
        earlier = [event for event in events if event[0] == "use"] if self._shards.keep else events
        return self._shards.through(earlier * (batches - 1) + events, failing)

    def evaluation(self) -> AbstractContextManager[None]:
        """Guard `outputs` likewise."""
        return self._shards.through(self._uses)

    def collectives(self) -> list[tuple[str, int]]:
        """Name and bytes of the whole vector of each collective of `gradients`, in order."""
        shards, found, there = self._shards, [], set[int]()
        gather, reduce = shards.collectives
        for event, unit in program(self._layers):
            values = shards.all_units[unit].length
            if event == "reduce":
                found.append((reduce, values * shards.weights.itemsize))
            elif not (shards.keep and unit in there):
                found.append((gather, values * shards.itemsize))
                there.add(unit)
        return found

    def gradients(self, batch: Batch, buffers: Parameters, last: bool = True) -> float:
        """Both passes; this rank's share of the loss.  Gradients go to those that own them.

        Args:
            batch, buffers: As of `Sequential.loss_and_gradients`.
            last: Whether it is the last batch that `training` guards.
        """
        model, shards = self.model, self._shards
        values, memories = batch.inputs, []
        for number, unit in enumerate(self._layers):
            with self._given(unit, buffers) as (parameters, rounded):
                chunk = model.chunk(number, number + 1)
                values, memory = chunk.forward(parameters, values, batch, rounded)
            memories.append(memory)
        losses, slopes = model.loss.evaluate(values, batch.targets)
        slopes /= batch.total
        error: Array | None = slopes
        del values, slopes  # which nothing needs while the slopes by the layers are found
        waiting: dict[str, list[Array]] = {}
        for number in reversed(range(len(self._layers))):
            unit = self._layers[number]
            with self._given(unit, buffers) as (parameters, rounded):
                chunk = model.chunk(number, number + 1)
                (found,) = chunk.backward(parameters, memories.pop(), error, rounded)
            error = found.error
            for name, gradient in found.gradients.items():
                waiting.setdefault(name, []).append(gradient)
            if unit is None:
                continue
            names = shards.all_units[unit].spans
            if all(len(waiting.get(name, ())) == len(model.holders[name]) for name in names):
                parts = {name: waiting.pop(name) for name in names}
                total = {name: sum(own[1:], start=own[0]) for name, own in parts.items()}
                if last or not shards.keep:
                    shards.reduce(total)
                    shards.made()
                else:
                    shards.hold(total)
        return float(losses.sum(dtype=np.float64)) / batch.total

    def outputs(self, inputs: Array, buffers: Parameters) -> Array:
        """The forward pass alone, as in evaluation."""
        values = inputs
        for number, unit in enumerate(self._layers):
            with self._given(unit, buffers) as (parameters, rounded):
                chunk = self.model.chunk(number, number + 1)
                values, _ = chunk.forward(parameters, values, None, rounded)
        return values

    @contextmanager
    def _given(
        self, unit: int | None, buffers: Parameters
    ) -> Iterator[tuple[Parameters, Rounding]]:
        """What a layer computes with."""
        shards, dtype = self._shards, self._shards.dtype
        if unit is None:
            yield computing(buffers, dtype)
            return
        shards.made()
        with shards.unit(shards.units[unit]) as views:
            yield computing({**buffers, **views}, dtype)
        shards.poll()


def _keeps_parameters(layer: Layer) -> bool:
    if isinstance(layer, Sharded):
        return _keeps_parameters(layer.local)
    if isinstance(layer, Residual):
        return any(map(_keeps_parameters, layer.layers))
    return layer.keeps_parameters
