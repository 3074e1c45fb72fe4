"""Layers in NumPy. A layer holds no arrays: parameters and what `forward` remembers are passed in.

Images have shape (samples, height, width, channels).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.data import draws
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters

Shape = tuple[int, ...]
#: Of `Layer.forward` and `Layer.backward`.
Outputs = tuple[Array, Any]
Slopes = tuple["Array | None", dict[str, Array]]


class Layer(ABC):
    """A function of the samples of a batch, and its derivative. Shapes are those of one sample."""

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of an output for inputs of this shape; raises ValueError where none fits."""
        return shape

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        """Parameters to start from, for inputs of this shape; empty where it has none."""
        return {}

    @abstractmethod
    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        """Outputs, and what `backward` needs. Without a batch this is evaluation."""

    @abstractmethod
    def backward(self, parameters: Parameters, memory: Any, error: Array, first: bool) -> Slopes:
        """Slopes of the loss by the inputs and by the parameters, from that by the outputs.

        The first layer of a model need not return that by the inputs.
        """


@dataclass(frozen=True)
class Dense(Layer):
    """Every output is a weighted sum of all inputs and a bias.

    Attributes:
        outputs: Number of outputs.
        gain: Variance of the initial weights times the number of inputs: 2 before a ReLU
            (He et al. 2015), 1 elsewhere.
    """

    outputs: int
    gain: float = 2.0

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(f"a dense layer has inputs of shape {shape}: flatten them before it")
        return (self.outputs,)

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return _normal((shape[0], self.outputs), self.gain / shape[0], generator)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        outputs = inputs @ parameters["weight"]
        outputs += parameters["bias"]
        return outputs, inputs

    def backward(self, parameters: Parameters, memory: Array, error: Array, first: bool) -> Slopes:
        gradients = {"weight": memory.T @ error, "bias": error.sum(axis=0)}
        return None if first else error @ parameters["weight"].T, gradients


@dataclass(frozen=True)
class Convolution(Layer):
    """A square kernel of odd width on a padded image, which keeps its height and width.

    Formed as one matrix product from the patches of all images (im2col; Chellapilla et al. 2006).

    Attributes:
        channels: Of the output.
        width: Of the kernel, odd.
    """

    channels: int
    width: int = 3

    def output_shape(self, shape: Shape) -> Shape:
        _require_image("convolution", shape)
        return (*shape[:2], self.channels)

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        inputs = self.width**2 * shape[2]
        return _normal((inputs, self.channels), 2.0 / inputs, generator)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        half, width = self.width // 2, self.width
        padded = np.pad(inputs, ((0, 0), (half, half), (half, half), (0, 0)))
        patches = _patches(padded, width).reshape(-1, width**2 * inputs.shape[3])
        outputs = patches @ parameters["weight"]
        outputs += parameters["bias"]
        return outputs.reshape(*inputs.shape[:3], self.channels), (patches, inputs.shape)

    def backward(
        self, parameters: Parameters, memory: tuple[Array, Shape], error: Array, first: bool
    ) -> Slopes:
        patches, (samples, height, width, channels) = memory
        rows = error.reshape(-1, self.channels)
        gradients = {"weight": patches.T @ rows, "bias": rows.sum(axis=0)}
        if first:
            return None, gradients
        half, kernel = self.width // 2, self.width
        pieces = (rows @ parameters["weight"].T).reshape(
            samples, height, width, kernel, kernel, channels
        )
        padded = library_of(error).zeros(
            (samples, height + 2 * half, width + 2 * half, channels), error.dtype
        )
        for y in range(kernel):
            for x in range(kernel):
                padded[:, y : y + height, x : x + width] += pieces[:, :, :, y, x]
        return padded[:, half : half + height, half : half + width], gradients


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest of each square of `width` x `width` pixels; what is left at the edge is cut off.

    Attributes:
        width: Of a square.
    """

    width: int = 2

    def output_shape(self, shape: Shape) -> Shape:
        _require_image("pooling", shape)
        if min(shape[:2]) < self.width:
            raise ValueError(
                f"pooling by {self.width} has images of {shape[0]} x {shape[1]} pixels: "
                "give fewer convolutions, or larger images"
            )
        return (shape[0] // self.width, shape[1] // self.width, shape[2])

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        # A pass over the image for each place of a square: far quicker than a search in each.
        places = self._places(inputs)
        outputs = places[0].copy()
        for place in places[1:]:
            np.maximum(outputs, place, out=outputs)
        return outputs, (inputs, outputs)

    def backward(
        self, parameters: Parameters, memory: tuple[Array, Array], error: Array, first: bool
    ) -> Slopes:
        """Of equal values the first was chosen."""
        inputs, outputs = memory
        slopes = library_of(error).zeros(inputs.shape, error.dtype)
        left = library_of(error).ones(outputs.shape, bool)
        for place, target in zip(self._places(inputs), self._places(slopes), strict=True):
            chosen = place == outputs
            chosen &= left
            left ^= chosen
            np.multiply(error, chosen, out=target)
        return slopes, {}

    def _places(self, images: Array) -> list[Array]:
        """Views of the pixels at each place of a square, row by row."""
        k, (height, width) = self.width, images.shape[1:3]
        bottom, right = height // k * k, width // k * k
        return [images[:, y:bottom:k, x:right:k] for y in range(k) for x in range(k)]


@dataclass(frozen=True)
class ReLU(Layer):
    """What is above zero."""

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        outputs = np.maximum(inputs, 0)
        return outputs, outputs

    def backward(self, parameters: Parameters, memory: Array, error: Array, first: bool) -> Slopes:
        return error * (memory > 0), {}


@dataclass(frozen=True)
class Reshape(Layer):
    """Gives each sample another shape; () stands for one axis of all values.

    Attributes:
        shape: Of an output.
    """

    shape: Shape = ()

    def output_shape(self, shape: Shape) -> Shape:
        wanted = self.shape or (prod(shape),)
        if prod(wanted) != prod(shape):
            raise ValueError(
                f"samples of shape {shape} have {prod(shape)} values, shape {wanted} has "
                f"{prod(wanted)}: give images of the right height, width and channels"
            )
        return wanted

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        wanted = self.output_shape(inputs.shape[1:])
        return inputs.reshape(len(inputs), *wanted), inputs.shape

    def backward(self, parameters: Parameters, memory: Shape, error: Array, first: bool) -> Slopes:
        return error.reshape(memory), {}


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets a share of the values to zero while training (Srivastava et al. 2014).

    Attributes:
        rate: The share; what stays is divided by 1 - rate.
        stream: Another number for each dropout layer of a model.
    """

    rate: float
    stream: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout rate is {self.rate}: give a number from 0 to below 1")

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        if batch is None or not self.rate:
            return inputs, None
        shape = inputs.shape
        numbers = draws.uniform(
            batch.seed, batch.epoch, batch.samples, self.stream, prod(shape[1:])
        )
        kept = (numbers.reshape(shape) >= self.rate).astype(inputs.dtype) / (1 - self.rate)
        kept = library_of(inputs).asarray(kept, inputs.dtype)
        return inputs * kept, kept

    def backward(
        self, parameters: Parameters, memory: Array | None, error: Array, first: bool
    ) -> Slopes:
        return error if memory is None else error * memory, {}


def _patches(padded: Array, width: int) -> Array:
    """The squares of so many pixels around each: (samples, height, width, y, x, channels)."""
    samples, height, across, channels = padded.shape
    height, across = height - width + 1, across - width + 1
    library = library_of(padded)
    if channels > 1 and library is np:
        windows = sliding_window_view(padded, (width, width), axis=(1, 2))
        return np.ascontiguousarray(windows.transpose(0, 1, 2, 4, 5, 3))
    # One value at a time is copied slowly; a place of the squares at a time, less so.
    patches = library.empty((samples, height, across, width, width, channels), padded.dtype)
    for y in range(width):
        for x in range(width):
            patches[:, :, :, y, x] = padded[:, y : y + height, x : x + across]
    return patches


def _normal(
    shape: tuple[int, int], variance: float, generator: np.random.Generator
) -> dict[str, Array]:
    weights = generator.standard_normal(shape) * np.sqrt(variance)
    return {"weight": weights, "bias": np.zeros(shape[1])}


def _require_image(what: str, shape: Shape) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"{what} has inputs of shape {shape}: give images of (height, width, channels)"
        )
