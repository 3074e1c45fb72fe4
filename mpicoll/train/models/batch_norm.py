"""Normalisation over the samples of a batch, wherever its parts are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array, host, library_of, put
from mpicoll.train.data.batch import Batch, Sum
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer, Outputs, Shape, rows_of


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Gives the last axis mean 0 and variance 1 over a batch, then a weight and a bias.

    S. Ioffe, C. Szegedy, "Batch normalization", 2015.  In training mean and variance are of the
    whole global batch, whichever ranks have its samples; the mean of the parts' variances would be
    less, by the variance of their means.  Parts that are by themselves (`Batch.sum` is None) are
    normalised by themselves.  With accumulation it is the batch, not the step.

    Mean and variance so far are buffers, which evaluation takes: after each batch they move by
    `momentum` towards its mean and its variance, times n / (n - 1) for n values, as in PyTorch.

    Attributes:
        epsilon: Added to the variance.
        momentum: Share of a batch in the buffers.
        local: Each part is normalised by itself: nothing is sent, and what is learnt depends on
            the number of ranks.
    """

    keeps_inputs = False
    epsilon: float = 1e-5
    momentum: float = 0.1
    local: bool = False

    def output_shape(self, shape: Shape) -> Shape:
        if not shape:
            raise ValueError("a batch norm has inputs of shape (): give at least one axis")
        return shape

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return {"weight": np.ones(shape[-1]), "bias": np.zeros(shape[-1])}

    def buffers(self, shape: Shape) -> dict[str, Array]:
        return {"mean": np.zeros(shape[-1]), "variance": np.ones(shape[-1])}

    def sums(self, shape: Shape) -> tuple[int, ...]:
        return () if self.local else (1 + 2 * shape[-1],)

    def kept(self, shape: Shape) -> int:
        return prod(shape)

    def working(self, shape: Shape) -> int:
        return 4 * prod(shape)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        rows = rows_of(inputs)
        rows = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
        total = None if batch is None or self.local else batch.sum
        if batch is None:
            mean, variance = host(parameters["mean"]), host(parameters["variance"])
            normed = rows - _like(rows, mean)
        else:
            normed, count, mean, variance = _centred(rows, host(parameters["mean"]), total)
            unbiased = variance * (count / max(count - 1, 1))
            if count:
                for name, found in (("mean", mean), ("variance", unbiased)):
                    known = host(parameters[name])
                    put(parameters[name], known + self.momentum * (found - known))
        scale = 1 / np.sqrt(variance + self.epsilon)
        normed *= _like(rows, scale)
        outputs = normed * parameters["weight"]
        outputs += parameters["bias"]
        outputs = outputs.astype(inputs.dtype, copy=False).reshape(inputs.shape)
        return outputs, (normed, scale, total)

    def backward_input(
        self, parameters: Parameters, memory: Any, error: Array, first: bool
    ) -> tuple[Array, dict[str, Array]]:
        normed, scale, total = memory
        rows = rows_of(error)
        # Of this part alone; the sums over the ranks are made with the other gradients.
        by_bias, by_weight = _sum(rows), _sum(rows * normed)
        gradients = {"weight": _like(rows, by_weight), "bias": _like(rows, by_bias)}
        sums = np.concatenate([[len(rows)], by_bias, by_weight])
        if total is not None:
            total(sums)
        means = sums[1:] / max(sums[0], 1)
        by_bias, by_weight = (_like(normed, half) for half in np.split(means, 2))
        slopes = rows - by_bias
        slopes -= normed * by_weight
        slopes *= parameters["weight"] * _like(normed, scale)
        return slopes.astype(error.dtype, copy=False).reshape(error.shape), gradients


def _centred(rows: Array, middle: Array, total: Sum | None) -> tuple[Array, float, Array, Array]:
    """Rows minus the mean of all parts'; their number, mean and variance, in float64.

    Each part finds its mean m and its sum of squares S about m, in two passes.  With n its number
    of rows and d = m - middle, the sums over the parts of n, n d and S + n d^2 give all there is to
    know.  What cancels when the variance is made of them is float64's, and is small where all know
    a value near the mean beforehand: the mean of the batches so far.
    """
    count = float(len(rows))
    mean = _sum(rows) / max(count, 1)
    normed = rows - _like(rows, mean)
    squares = _sum(np.square(normed))
    if total is None:
        return normed, count, mean, squares / max(count, 1)
    away = mean - middle if count else np.zeros_like(mean)
    sums = np.concatenate([[count], count * away, squares + count * np.square(away)])
    total(sums)
    count = float(sums[0])
    away, squares = np.split(sums[1:] / max(count, 1), 2)
    normed += _like(rows, mean - (middle + away))
    return normed, count, middle + away, np.maximum(squares - np.square(away), 0)


def _sum(rows: Array) -> Array:
    """Over the rows, in float64 and in memory."""
    return host(rows.sum(axis=0, dtype=np.float64))


def _like(rows: Array, values: Array) -> Array:
    """Values in the type of the rows, where they are."""
    return library_of(rows).asarray(values, rows.dtype)
