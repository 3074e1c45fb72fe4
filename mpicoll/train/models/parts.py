"""Layers of samples that are seen in parts, as by several cameras, and of signs that are few bits.

The parts of a sample are on its first axis: shape (parts, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.data import draws
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.chunks import Chunk
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Chain, Layer, Outputs, Shape, held

#: How parts become one.
AGGREGATIONS = ("max", "mean", "concat")
#: Of the draws that say which devices are left out: all layers that leave out leave out the same.
_STREAM = 1 << 40


@dataclass(frozen=True)
class Split(Layer):
    """Cuts an image into parts, rows first.

    Attributes:
        rows, columns: Number of parts, one above the other and side by side.
    """

    keeps_inputs = False
    rows: int = 2
    columns: int = 2

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] % self.rows or shape[1] % self.columns:
            raise ValueError(
                f"samples of shape {shape} cannot be cut into {self.rows} x {self.columns} parts: "
                "give images of (height, width, channels), height and width multiples of these"
            )
        return self.rows * self.columns, *self._size(shape), shape[2]

    def _size(self, shape: Shape) -> tuple[int, int]:
        """Height and width of a part."""
        return shape[0] // self.rows, shape[1] // self.columns

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        shape = inputs.shape[1:]
        height, width = self._size(shape)
        apart = inputs.reshape(-1, self.rows, height, self.columns, width, shape[2])
        return apart.swapaxes(2, 3).reshape(-1, *self.output_shape(shape)), shape

    def backward_input(
        self, parameters: Parameters, memory: Shape, error: Array, first: bool
    ) -> tuple[Array, None]:
        height, width = self._size(memory)
        apart = error.reshape(-1, self.rows, self.columns, height, width, memory[2])
        return apart.swapaxes(2, 3).reshape(-1, *memory), None


@dataclass(frozen=True)
class EachPart(Chain):
    """A chain of layers for each part, with parameters of its own.

    Attributes:
        layers: First to last.
    """

    inside = "of each part"

    def output_shape(self, shape: Shape) -> Shape:
        return shape[0], *self._shapes(shape)[-1]

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return {
            f"{part}.{number}.{name}": array
            for part in range(shape[0])
            for number, (layer, inner) in enumerate(self._inner(shape))
            for name, array in layer.initial(inner, generator).items()
        }

    def buffers(self, shape: Shape) -> dict[str, Array]:
        return {
            f"{part}.{number}.{name}": array
            for part in range(shape[0])
            for number, (layer, inner) in enumerate(self._inner(shape))
            for name, array in layer.buffers(inner).items()
        }

    def sums(self, shape: Shape) -> tuple[int, ...]:
        return shape[0] * tuple(n for layer, inner in self._inner(shape) for n in layer.sums(inner))

    def kept(self, shape: Shape) -> int:
        return shape[0] * sum(held(self.layers, self._shapes(shape)))

    def waiting(self, shape: Shape) -> int:
        return shape[0] * sum(layer.waiting(inner) for layer, inner in self._inner(shape))

    def working(self, shape: Shape) -> int:
        most = max((layer.working(inner) for layer, inner in self._inner(shape)), default=0)
        return most + prod(shape) + prod(self.output_shape(shape))

    def part(self, parameters: Parameters, part: int, values: Array) -> Array:
        """What the layers make of one part, in evaluation.

        Args:
            parameters: Those of this layer, at least of the part.
            part: Its number.
            values: Shape (samples, ...).
        """
        return self._chunk(parameters, part).forward(parameters, values, None, _as_is)[0]

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        library, outputs, memories = library_of(inputs), [], []
        for part in range(inputs.shape[1]):
            values = library.ascontiguousarray(inputs[:, part])
            chunk = self._chunk(parameters, part)
            values, memory = chunk.forward(parameters, values, batch, _as_is)
            outputs.append(values)
            memories.append(memory)
        return library.stack(outputs, axis=1), memories

    def backward_input(
        self, parameters: Parameters, memory: list[Any], error: Array, first: bool
    ) -> tuple[Array | None, list[Any]]:
        library = library_of(error)
        slopes: list[Any] = [None] * len(memory)
        kept: list[Any] = [None] * len(memory)
        for part in reversed(range(len(memory))):
            chunk = self._chunk(parameters, part, first)
            own = library.ascontiguousarray(error[:, part])
            slopes[part], kept[part] = chunk.backward_input(parameters, memory[part], own, _as_is)
        return (None if first else library.stack(slopes, axis=1)), kept

    def backward_weight(
        self, parameters: Parameters, memory: list[Any], kept: list[Any]
    ) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for part in range(len(memory)):
            chunk = self._chunk(parameters, part)
            for slopes in chunk.backward_weight(parameters, list(memory[part]), list(kept[part])):
                found |= slopes.gradients
        return {name: found[name] for name in parameters if name in found}

    def _chunk(self, parameters: Parameters, part: int, first: bool = False) -> Chunk:
        """The layers with the parameters of a part."""
        names: list[dict[str, str]] = [{} for _ in self.layers]
        for full in parameters:
            owner, number, own = full.split(".", 2)
            if owner == str(part):
                names[int(number)][own] = full
        return Chunk(self.layers, names, 0 if first else 1)

    def _shapes(self, shape: Shape) -> list[Shape]:
        """Of one part, at the inputs of each layer and at the outputs of the last one."""
        if len(shape) < 2:
            raise ValueError(f"samples of shape {shape} are in no parts: put a Split before")
        return super()._shapes(shape[1:])


@dataclass(frozen=True)
class Aggregate(Layer):
    """Combines several parts into one, or into a few.

    Attributes:
        how: `max` or `mean` of each value, or `concat`: all values, on the last axis.
        into: Number of parts left, each from equally many neighbours; with one, the axis is gone.
        device_dropout: Share of the parts of each sample that are left out at random in training,
            never all, as if their devices were silent. Layers with the same number of parts and the
            same share leave out the same parts.
    """

    keeps_inputs = False
    how: str = "mean"
    into: int = 1
    device_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.how not in AGGREGATIONS:
            known = ", ".join(AGGREGATIONS)
            raise ValueError(f"unknown aggregation {self.how!r}: known are {known}")
        if not 0 <= self.device_dropout < 1:
            raise ValueError(
                f"device_dropout is {self.device_dropout}: give a number from 0 to below 1"
            )

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) < 2 or self.into < 1 or shape[0] % self.into:
            raise ValueError(
                f"samples of shape {shape} cannot be aggregated into {self.into}: give (parts, "
                "...), and a number that divides the parts"
            )
        one = shape[1:]
        if self.how == "concat":
            one = (*one[:-1], one[-1] * (shape[0] // self.into))
        return one if self.into == 1 else (self.into, *one)

    def kept(self, shape: Shape) -> int:
        return prod(shape) if self.how == "max" else shape[0]

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        parts = [inputs[:, part] for part in range(inputs.shape[1])]
        here = self._here(inputs, batch)
        each = len(parts) // self.into
        groups = [slice(start, start + each) for start in range(0, len(parts), each)]
        outputs = [
            aggregated(self.how, parts[own], None if here is None else here[:, own])
            for own in groups
        ]
        memory = inputs if self.how == "max" else inputs.shape, here
        return outputs[0] if self.into == 1 else library_of(inputs).stack(outputs, axis=1), memory

    def backward_input(
        self, parameters: Parameters, memory: tuple[Any, Array | None], error: Array, first: bool
    ) -> tuple[Array, None]:
        inputs, here = memory
        shape = inputs.shape if self.how == "max" else inputs
        slopes = library_of(error).zeros(shape, error.dtype)
        each = shape[1] // self.into
        for group in range(self.into):
            own = slice(group * each, (group + 1) * each)
            wanted = error if self.into == 1 else error[:, group]
            there = None if here is None else here[:, own]
            if self.how == "concat":
                for part, piece in enumerate(np.split(wanted, each, axis=-1)):
                    slopes[:, group * each + part] = piece
            elif self.how == "mean":
                slopes[:, own] = (wanted / _like(_count(each, there), wanted))[:, None]
            else:
                values = inputs[:, own]
                if there is not None:
                    values = np.where(_like(there, values), values, -np.inf)
                best = values.argmax(axis=1)[:, None]
                np.put_along_axis(slopes[:, own], best, wanted[:, None], axis=1)
        if here is not None:
            slopes *= _like(here, slopes)
        return slopes, None

    def _here(self, inputs: Array, batch: Batch | None) -> Array | None:
        """Which parts of each sample are there, shape (samples, parts); None: all."""
        if batch is None or not self.device_dropout:
            return None
        numbers = draws.uniform(batch.seed, batch.epoch, batch.samples, _STREAM, inputs.shape[1])
        here = numbers >= self.device_dropout
        here |= numbers == numbers.max(axis=1, keepdims=True)  # somebody is
        return library_of(inputs).asarray(here)


def aggregated(how: str, parts: Sequence[Array], here: Array | None = None) -> Array:
    """One of several parts; zeros where none is there.

    Args:
        how: One of `AGGREGATIONS`.
        parts: Of shape (samples, ...) each.
        here: Which of them count, shape (samples, parts); None: all.
    """
    shown = [
        part if here is None else part * _like(here[:, number], part)
        for number, part in enumerate(parts)
    ]
    library = library_of(parts[0])
    if how == "concat":
        return library.concatenate(shown, axis=-1)
    if how == "mean":
        total = shown[0].copy()
        for part in shown[1:]:
            total += part
        total /= _like(_count(len(parts), here), total)
        return total
    if here is None:
        best = parts[0].copy()
        for part in parts[1:]:
            np.maximum(best, part, out=best)
        return best
    best = library.full_like(parts[0], -np.inf)
    for number, part in enumerate(parts):
        np.maximum(best, np.where(_like(here[:, number], part), part, -np.inf), out=best)
    return np.where(_like(here.any(axis=1), best), best, 0).astype(parts[0].dtype, copy=False)


def _count(parts: int, here: Array | None) -> Any:
    """How many parts of each sample count, one at least."""
    return parts if here is None else np.maximum(here.sum(axis=1), 1)


def _like(numbers: Any, values: Array) -> Any:
    """Numbers of each sample, or of each part of one, with as many axes as the values."""
    if isinstance(numbers, int):
        return numbers
    wide = numbers.reshape(*numbers.shape, *(1,) * (values.ndim - numbers.ndim))
    return wide if wide.dtype.kind == "b" else wide.astype(values.dtype)


@dataclass(frozen=True)
class Binarize(Layer):
    """The sign of each value, 1 or -1; it is sent as a bit.

    The derivative is taken to be 1 from -1 to 1, and 0 elsewhere
    (I. Hubara et al., "Binarized neural networks", 2016).
    """

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        return np.where(inputs >= 0, 1, -1).astype(inputs.dtype), inputs

    def backward_input(
        self, parameters: Parameters, memory: Array, error: Array, first: bool
    ) -> tuple[Array, None]:
        return error * (np.abs(memory) <= 1), None


def _as_is(values: Array) -> Array:
    """A layer rounds what it hands on; what its own layers hand on stays."""
    return values
