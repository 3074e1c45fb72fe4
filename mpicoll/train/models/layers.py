"""Layers in NumPy. A layer holds no arrays: parameters and what `forward` remembers are passed in.

Samples may have any shape; those of images are in `images`, those of sequences in `sequences`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters

Shape = tuple[int, ...]
#: Of `Layer.forward` and `Layer.backward`.
Outputs = tuple[Array, Any]
Slopes = tuple["Array | None", dict[str, Array]]


class Layer(ABC):
    """A function of the samples of a batch, and its derivative. Shapes are those of one sample.

    A layer defines `backward_input`, and `backward_weight` if it has parameters; or `backward`.

    Attributes:
        keeps_inputs, keeps_outputs: Whether what `forward` hands to `backward` has these arrays,
            which may be those of its neighbours, too.
        keeps_parameters: Whether it has parameters, too, which must stay as they are in between.
    """

    keeps_inputs: ClassVar[bool] = True
    keeps_outputs: ClassVar[bool] = False
    keeps_parameters: ClassVar[bool] = False

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of an output for inputs of this shape; raises ValueError where none fits."""
        return shape

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        """Parameters to start from, for inputs of this shape; empty where it has none."""
        return {}

    def buffers(self, shape: Shape) -> dict[str, Array]:
        """Buffers to start from: arrays that `forward` changes in training, and no optimizer."""
        return {}

    def sums(self, shape: Shape) -> tuple[int, ...]:
        """Lengths of the vectors that `forward` gives to `Batch.sum`.

        `backward_input` gives it as many, in reverse order.
        """
        return ()

    @abstractmethod
    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        """Outputs, and what `backward` needs. Without a batch this is evaluation.

        Args:
            parameters: Parameters and buffers by name.
            inputs: Shape (samples, ...).
            batch: What the inputs are made of.
        """

    def backward(self, parameters: Parameters, memory: Any, error: Array, first: bool) -> Slopes:
        """Slopes of the loss by the inputs and by the parameters, from that by the outputs.

        The first layer of a model need not return that by the inputs.
        """
        slopes, kept = self.backward_input(parameters, memory, error, first)
        return slopes, self.backward_weight(parameters, memory, kept)

    def backward_input(
        self, parameters: Parameters, memory: Any, error: Array, first: bool
    ) -> tuple[Array | None, Any]:
        """The first part of `backward`: slopes by the inputs, and what the second part needs.

        A layer that has `backward` alone does all of it here.
        """
        if type(self).backward is Layer.backward:
            raise NotImplementedError(
                f"layer {type(self).__name__} has no derivative: define backward_input and "
                "backward_weight, or backward"
            )
        return self.backward(parameters, memory, error, first)

    def backward_weight(self, parameters: Parameters, memory: Any, kept: Any) -> dict[str, Array]:
        """The second part, at any later time: slopes by the parameters.

        Args:
            parameters, memory: As of the first part.
            kept: What that has returned; the slopes themselves, where they were found there.
        """
        return kept or {}

    def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """A pass over neighbouring layers is over, and this is its last one.

        Where ranks share layers, they raise here if the pass has failed on one of them.
        """

    def random_state(self) -> Any:
        """State of the generator that `forward` draws from in training, which runs on by itself.

        None where all that is drawn is a function of the batch.
        """
        return None

    def set_random_state(self, state: Any) -> None:
        """Let `forward` draw again what it drew after this state; not called for None."""
        raise NotImplementedError(f"layer {type(self).__name__} has no generator")

    def kept(self, shape: Shape) -> int:
        """Values of a sample that `backward` needs beside inputs and outputs, an estimate."""
        return 0

    def working(self, shape: Shape) -> int:
        """Values of a sample that `backward` makes, and the slopes that it is given: an estimate.

        As many as are there at a time, beside what is kept.
        """
        return prod(self.output_shape(shape)) + 2 * prod(shape)

    def waiting(self, shape: Shape) -> int:
        """Values of a sample that `backward_input` hands to `backward_weight`, an estimate."""
        has_parameters = type(self).backward_weight is not Layer.backward_weight
        return prod(self.output_shape(shape)) if has_parameters else 0


def held(layers: Sequence[Layer], shapes: Sequence[Shape]) -> list[int]:
    """Values of a sample that each layer of a chain adds to what is kept for `backward`.

    Args:
        layers: First to last.
        shapes: Of the inputs of each, and of the last one's outputs.
    """
    found, known = [], False
    for layer, (shape, after) in zip(layers, pairwise(shapes), strict=True):
        values = layer.kept(shape)
        values += prod(shape) if layer.keeps_inputs and not known else 0
        values += prod(after) if layer.keeps_outputs else 0
        found.append(values)
        known = layer.keeps_outputs
    return found


def random_states(layers: Sequence[Layer]) -> list[Any] | None:
    """Of each layer of a chain, what `Layer.random_state` says; None where all say that."""
    states = [layer.random_state() for layer in layers]
    return None if all(state is None for state in states) else states


def set_random_states(layers: Sequence[Layer], states: Sequence[Any]) -> None:
    """Let the layers of a chain draw again what they drew after these states."""
    for layer, state in zip(layers, states, strict=True):
        if state is not None:
            layer.set_random_state(state)


@dataclass(frozen=True)
class Dense(Layer):
    """Every output is a weighted sum of the inputs on the last axis, and a bias.

    Attributes:
        outputs: Number of outputs.
        gain: Variance of the initial weights times the number of inputs: 2 before a ReLU
            (He et al. 2015), 1 elsewhere.
        bias: Whether there is one; none is needed where a normalisation follows.
    """

    outputs: int
    gain: float = 2.0
    bias: bool = True

    def output_shape(self, shape: Shape) -> Shape:
        if not shape:
            raise ValueError("a dense layer has inputs of shape (): give at least one axis")
        return (*shape[:-1], self.outputs)

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return normal((shape[-1], self.outputs), self.gain / shape[-1], generator, self.bias)

    def working(self, shape: Shape) -> int:
        return prod(self.output_shape(shape)) + prod(shape)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        outputs = rows_of(inputs) @ parameters["weight"]
        if self.bias:
            outputs += parameters["bias"]
        return outputs.reshape(*inputs.shape[:-1], self.outputs), inputs

    def backward_input(
        self, parameters: Parameters, memory: Array, error: Array, first: bool
    ) -> tuple[Array | None, Array]:
        rows = rows_of(error)
        slopes = None if first else (rows @ parameters["weight"].T).reshape(memory.shape)
        return slopes, rows

    def backward_weight(
        self, parameters: Parameters, memory: Array, kept: Array
    ) -> dict[str, Array]:
        gradients = {"weight": rows_of(memory).T @ kept}
        if self.bias:
            gradients["bias"] = kept.sum(axis=0)
        return gradients


def shapes_of(layers: Sequence[Layer], shape: Shape) -> list[Shape]:
    """Of the inputs of each layer of a chain, and of the last one's outputs."""
    shapes = [shape]
    for layer in layers:
        shapes.append(layer.output_shape(shapes[-1]))
    return shapes


@dataclass(frozen=True)
class Chain(Layer):
    """A layer that is made of others, one after the other.

    Attributes:
        layers: First to last.
        inside: Where they are, in words.
    """

    keeps_inputs = False
    inside: ClassVar[str]
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        for name in filter(None, (getattr(layer, "name", None) for layer in self.layers)):
            raise ValueError(
                f"layer {name} {self.inside} has a name: only layers of the model itself share "
                "parameters; leave the name out"
            )

    def random_state(self) -> Any:
        return random_states(self.layers)

    def set_random_state(self, state: Any) -> None:
        set_random_states(self.layers, state)

    def _inner(self, shape: Shape) -> list[tuple[Layer, Shape]]:
        """Each layer, and the shape of its inputs."""
        return list(zip(self.layers, self._shapes(shape)[:-1], strict=True))

    def _shapes(self, shape: Shape) -> list[Shape]:
        return shapes_of(self.layers, shape)


@dataclass(frozen=True)
class Residual(Chain):
    """Adds to its inputs what a chain of layers makes of them (He et al. 2016).

    Attributes:
        layers: First to last; together they keep the shape.
    """

    inside = "inside a residual"

    def output_shape(self, shape: Shape) -> Shape:
        inner = self._shapes(shape)[-1]
        if inner != shape:
            raise ValueError(
                f"a residual adds outputs of shape {inner} to inputs of shape {shape}: give layers "
                "that keep the shape"
            )
        return shape

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return _joined(layer.initial(inner, generator) for layer, inner in self._inner(shape))

    def buffers(self, shape: Shape) -> dict[str, Array]:
        return _joined(layer.buffers(inner) for layer, inner in self._inner(shape))

    def sums(self, shape: Shape) -> tuple[int, ...]:
        return tuple(n for layer, inner in self._inner(shape) for n in layer.sums(inner))

    def kept(self, shape: Shape) -> int:
        return sum(held(self.layers, self._shapes(shape)))

    def waiting(self, shape: Shape) -> int:
        return sum(layer.waiting(inner) for layer, inner in self._inner(shape))

    def working(self, shape: Shape) -> int:
        # The slopes by the outputs wait for the sum, and those of each layer for `backward_weight`.
        waiting, most = prod(shape), 0
        for layer, inner in reversed(self._inner(shape)):
            most = max(most, waiting + layer.working(inner))
            waiting += prod(layer.output_shape(inner))
        return most

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        values, memories = inputs, []
        for number, layer in enumerate(self.layers):
            values, memory = layer.forward(_of(parameters, number), values, batch)
            memories.append(memory)
        return inputs + values, memories

    def backward_input(
        self, parameters: Parameters, memory: list[Any], error: Array, first: bool
    ) -> tuple[Array | None, list[Any]]:
        slopes: Array | None = error
        every: list[Any] = [None] * len(self.layers)
        for number in reversed(range(len(self.layers))):
            assert slopes is not None
            slopes, every[number] = self.layers[number].backward_input(
                _of(parameters, number), memory[number], slopes, first and number == 0
            )
        return None if slopes is None else slopes + error, every

    def backward_weight(
        self, parameters: Parameters, memory: list[Any], kept: list[Any]
    ) -> dict[str, Array]:
        return _joined(
            layer.backward_weight(_of(parameters, number), memory[number], kept[number])
            for number, layer in enumerate(self.layers)
        )


def _joined(every: Iterable[dict[str, Array]]) -> dict[str, Array]:
    """Arrays of the layers of a chain, each under the number of its layer."""
    return {f"{number}.{name}": own[name] for number, own in enumerate(every) for name in own}


def _of(parameters: Parameters, number: int) -> dict[str, Array]:
    """The parameters of a layer of a chain, under the names it knows."""
    start = f"{number}."
    return {n.removeprefix(start): array for n, array in parameters.items() if n.startswith(start)}


def rows_of(values: Array) -> Array:
    """All but the last axis as one."""
    return values.reshape(-1, values.shape[-1])


def normal(
    shape: tuple[int, int], variance: float, generator: np.random.Generator, bias: bool = True
) -> dict[str, Array]:
    """A weight drawn from a normal distribution, and a bias of zeros if it is wanted."""
    weights = generator.standard_normal(shape) * np.sqrt(variance)
    return {"weight": weights, "bias": np.zeros(shape[1])} if bias else {"weight": weights}
