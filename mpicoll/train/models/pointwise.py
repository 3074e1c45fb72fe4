"""Layers without parameters, which take each value by itself, or each sample in another shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.data import draws
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer, Outputs, Shape

#: Of `Gelu`: sqrt(2 / pi), and the weight of the cube.
_SLOPE, _CUBIC = 0.7978845608028654, 0.044715


@dataclass(frozen=True)
class ReLU(Layer):
    """What is above zero."""

    keeps_inputs, keeps_outputs = False, True

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        outputs = np.maximum(inputs, 0)
        return outputs, outputs

    def backward_input(
        self, parameters: Parameters, memory: Array, error: Array, first: bool
    ) -> tuple[Array, None]:
        return error * (memory > 0), None


@dataclass(frozen=True)
class Gelu(Layer):
    """x times the share of a normal distribution below x, by the approximation with tanh.

    D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", 2016, section 2.
    """

    def kept(self, shape: Shape) -> int:
        return prod(shape)

    def working(self, shape: Shape) -> int:
        return 4 * prod(shape)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        bent = np.square(inputs)
        bent *= _CUBIC
        bent += 1
        bent *= inputs
        bent *= _SLOPE
        np.tanh(bent, out=bent)
        outputs = bent + 1
        outputs *= inputs
        outputs *= 0.5
        return outputs, (inputs, bent)

    def backward_input(
        self, parameters: Parameters, memory: tuple[Array, Array], error: Array, first: bool
    ) -> tuple[Array, None]:
        inputs, bent = memory
        slopes = np.square(inputs)
        slopes *= 3 * _CUBIC
        slopes += 1
        slopes *= inputs
        slopes *= _SLOPE
        slopes *= 1 - np.square(bent)
        slopes += bent
        slopes += 1
        slopes *= error
        slopes *= 0.5
        return slopes, None


@dataclass(frozen=True)
class Reshape(Layer):
    """Gives each sample another shape; () stands for one axis of all values.

    Attributes:
        shape: Of an output.
    """

    keeps_inputs = False
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

    def backward_input(
        self, parameters: Parameters, memory: Shape, error: Array, first: bool
    ) -> tuple[Array, None]:
        return error.reshape(memory), None


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets a share of the values to zero while training (Srivastava et al. 2014).

    Attributes:
        rate: The share; what stays is divided by 1 - rate.
        stream: Another number for each dropout layer of a model.
    """

    keeps_inputs = False
    rate: float
    stream: int

    def kept(self, shape: Shape) -> int:
        return prod(shape)

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout rate is {self.rate}: give a number from 0 to below 1")

    def places(self, shape: Shape) -> int | Array:
        """Which of the numbers drawn for a sample are for inputs of this shape; see `draws`."""
        return prod(shape)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        if batch is None or not self.rate:
            return inputs, None
        numbers = draws.uniform(
            batch.seed, batch.epoch, batch.samples, self.stream, self.places(inputs.shape[1:])
        )
        kept: Array = numbers.reshape(inputs.shape) >= self.rate
        kept = kept.astype(inputs.dtype) / (1 - self.rate)
        kept = library_of(inputs).asarray(kept, inputs.dtype)
        return inputs * kept, kept

    def backward_input(
        self, parameters: Parameters, memory: Array | None, error: Array, first: bool
    ) -> tuple[Array, None]:
        return error if memory is None else error * memory, None
