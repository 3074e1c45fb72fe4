"""Layers of images, which have shape (samples, height, width, channels)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer, Outputs, Shape, normal


@dataclass(frozen=True)
class Convolution(Layer):
    """A square kernel of odd width on a padded image, which keeps its height and width.

    Formed as one matrix product from the patches of all images (im2col; Chellapilla et al. 2006).

    Attributes:
        channels: Of the output.
        width: Of the kernel, odd.
        bias: Whether there is one; none is needed where a normalisation follows.
    """

    channels: int
    keeps_inputs = False
    width: int = 3
    bias: bool = True

    def output_shape(self, shape: Shape) -> Shape:
        _require_image("convolution", shape)
        return (*shape[:2], self.channels)

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        inputs = self.width**2 * shape[2]
        return normal((inputs, self.channels), 2.0 / inputs, generator, self.bias)

    def kept(self, shape: Shape) -> int:
        return self.width**2 * prod(shape)

    def working(self, shape: Shape) -> int:
        return prod(self.output_shape(shape)) + (self.width**2 + 2) * prod(shape)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        half, width = self.width // 2, self.width
        padded = np.pad(inputs, ((0, 0), (half, half), (half, half), (0, 0)))
        patches = _patches(padded, width).reshape(-1, width**2 * inputs.shape[3])
        outputs = patches @ parameters["weight"]
        if self.bias:
            outputs += parameters["bias"]
        return outputs.reshape(*inputs.shape[:3], self.channels), (patches, inputs.shape)

    def backward_input(
        self, parameters: Parameters, memory: tuple[Array, Shape], error: Array, first: bool
    ) -> tuple[Array | None, Array]:
        _, (samples, height, width, channels) = memory
        rows = error.reshape(-1, self.channels)
        if first:
            return None, rows
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
        return padded[:, half : half + height, half : half + width], rows

    def backward_weight(
        self, parameters: Parameters, memory: tuple[Array, Shape], kept: Array
    ) -> dict[str, Array]:
        gradients = {"weight": memory[0].T @ kept}
        if self.bias:
            gradients["bias"] = kept.sum(axis=0)
        return gradients


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest of each square of `width` x `width` pixels; what is left at the edge is cut off.

    Attributes:
        width: Of a square.
    """

    keeps_outputs = True
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

    def backward_input(
        self, parameters: Parameters, memory: tuple[Array, Array], error: Array, first: bool
    ) -> tuple[Array, None]:
        """Of equal values the first was chosen."""
        inputs, outputs = memory
        slopes = library_of(error).zeros(inputs.shape, error.dtype)
        left = library_of(error).ones(outputs.shape, bool)
        for place, target in zip(self._places(inputs), self._places(slopes), strict=True):
            chosen = place == outputs
            chosen &= left
            left ^= chosen
            np.multiply(error, chosen, out=target)
        return slopes, None

    def _places(self, images: Array) -> list[Array]:
        """Views of the pixels at each place of a square, row by row."""
        k, (height, width) = self.width, images.shape[1:3]
        bottom, right = height // k * k, width // k * k
        return [images[:, y:bottom:k, x:right:k] for y in range(k) for x in range(k)]


@dataclass(frozen=True)
class AveragePool(Layer):
    """The mean of each channel over all pixels (M. Lin et al., "Network in network", 2014)."""

    keeps_inputs = False

    def output_shape(self, shape: Shape) -> Shape:
        _require_image("pooling", shape)
        return shape[2:]

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        return inputs.mean(axis=(1, 2)), inputs.shape

    def backward_input(
        self, parameters: Parameters, memory: Shape, error: Array, first: bool
    ) -> tuple[Array, None]:
        pixels = memory[1] * memory[2]
        return np.broadcast_to((error / pixels)[:, None, None], memory), None


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


def _require_image(what: str, shape: Shape) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"{what} has inputs of shape {shape}: give images of (height, width, channels)"
        )
