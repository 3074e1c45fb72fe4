"""Neighbouring layers of a model: the passes over them, be they all of it or a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.precision import Rounding


class Slopes(NamedTuple):
    """What a backward pass finds at one layer.

    Attributes:
        layer: Number of the layer in the model.
        error: Slopes of the loss by the inputs of the layer; None where nobody needs them.
        gradients: Those by its parameters, by the names that they have in the model.
    """

    layer: int
    error: Array | None
    gradients: dict[str, Array]


def _nothing() -> None:
    """Between two layers there is nothing to do."""


class Chunk:
    """Neighbouring layers of a model.  What one chunk hands on is what the next one takes.

    Cut anywhere, a model has the bits of the model whole.  All passes get parameters and buffers by
    the names that they have in the model, in the type to compute in (`precision.computing`).

    Args:
        layers: First to last.
        names: For each layer, the name in the model of each of its parameters and buffers.
        start: Number of the first layer in the model.

    Attributes:
        layers: As given.
        numbers: Of the layers in the model.
    """

    def __init__(
        self, layers: Sequence[Layer], names: Sequence[Mapping[str, str]], start: int
    ) -> None:
        self.layers, self._names = tuple(layers), names
        self.numbers = range(start, start + len(layers))

    def forward(
        self,
        parameters: Parameters,
        values: Array,
        batch: Batch | None,
        rounded: Rounding,
        between: Callable[[], object] = _nothing,
    ) -> tuple[Array, list[Any]]:
        """Outputs, and what each layer remembers; in evaluation, without a batch, nothing.

        Args:
            parameters: By name.
            values: Inputs of the first layer, shape (samples, ...).
            batch: What they are made of.
            rounded: What is done with all that layers hand on.
            between: Called after each layer.
        """
        memories, values = [], rounded(values)
        for index, layer in enumerate(self.layers):
            values, memory = layer.forward(self._own(parameters, index), values, batch)
            values = rounded(values)
            if batch is not None:
                memories.append(memory)
            between()
        if batch is None and self.layers:
            self.layers[-1].settle()
        return values, memories

    def backward(
        self, parameters: Parameters, memories: list[Any], error: Array | None, rounded: Rounding
    ) -> Iterator[Slopes]:
        """The whole backward pass, last layer first.

        Args:
            parameters: By name.
            memories: Of the forward pass; taken out of the list on the way.
            error: Slopes of the loss by the outputs.
            rounded: As in the forward pass.
        """
        for index in reversed(range(len(self.layers))):
            assert error is not None
            error, gradients = self.layers[index].backward(
                self._own(parameters, index), memories.pop(), rounded(error), self._is_first(index)
            )
            if index == 0:
                self.layers[0].settle()
            yield Slopes(self.numbers[index], error, self._named(index, gradients))
            del gradients  # before the next layer's are there

    def backward_input(
        self,
        parameters: Parameters,
        memories: Sequence[Any],
        error: Array | None,
        rounded: Rounding,
        between: Callable[[], object] = _nothing,
    ) -> tuple[Array | None, list[Any]]:
        """The first part: slopes by the inputs of the chunk, and what the second part needs."""
        kept: list[Any] = [None] * len(self.layers)
        for index in reversed(range(len(self.layers))):
            assert error is not None
            error, kept[index] = self.layers[index].backward_input(
                self._own(parameters, index),
                memories[index],
                rounded(error),
                self._is_first(index),
            )
            between()
        return error, kept

    def backward_weight(
        self, parameters: Parameters, memories: list[Any], kept: list[Any]
    ) -> Iterator[Slopes]:
        """The second part, last layer first; both lists are emptied on the way."""
        for index in reversed(range(len(self.layers))):
            gradients = self.layers[index].backward_weight(
                self._own(parameters, index), memories.pop(), kept.pop()
            )
            if index == 0:
                self.layers[0].settle()
            yield Slopes(self.numbers[index], None, self._named(index, gradients))
            del gradients  # before the next layer's are there

    def _is_first(self, index: int) -> bool:
        return self.numbers[index] == 0

    def _own(self, parameters: Parameters, index: int) -> dict[str, Array]:
        """The parameters and buffers of a layer, under the names it knows."""
        return {own: parameters[name] for own, name in self._names[index].items()}

    def _named(self, index: int, gradients: Mapping[str, Array]) -> dict[str, Array]:
        return {self._names[index][own]: array for own, array in gradients.items()}
