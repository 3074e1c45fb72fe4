"""Losses of a batch, and their derivatives by the outputs of a model.

A loss is any object with the methods of `Loss`.  If a sample has several targets (tokens of a text,
values of a vector), its loss is their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from mpicoll.base.arrays import Array, library_of

Shape = tuple[int, ...]


class Loss(Protocol):
    """How wrong the outputs of a model are."""

    def evaluate(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        """Loss of each sample, shape (samples,), and its derivative by the outputs, in their shape.

        The derivative is of the sum of the losses.
        """

    def check(self, shape: Shape, targets: Array) -> None:
        """Refuse targets that do not fit outputs of this shape of one sample.

        Raises:
            ValueError: They do not; the message names value, limit and remedy.
        """


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross entropy of a softmax over the last axis of the outputs; targets are whole numbers.

    Outputs have shape (samples, ..., classes), targets (samples, ...).
    """

    def evaluate(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        scores = outputs.astype(np.promote_types(outputs.dtype, np.float32), copy=False)
        slopes = scores - scores.max(axis=-1, keepdims=True)  # so that exp cannot overflow
        log_sums = np.log(np.exp(slopes).sum(axis=-1, keepdims=True))
        slopes -= log_sums
        rows, wanted = slopes.reshape(-1, slopes.shape[-1]), targets.reshape(-1)
        places = library_of(rows).arange(len(rows)), wanted
        losses = -rows[places]
        np.exp(slopes, out=slopes)
        rows[places] -= 1
        items = prod(targets.shape[1:])
        if items > 1:
            losses = losses.reshape(len(targets), items).mean(axis=1)
            slopes /= items
        return losses, slopes.astype(outputs.dtype, copy=False)

    def check(self, shape: Shape, targets: Array) -> None:
        _same_shape("classes", targets, shape[:-1])
        if targets.dtype.kind not in "iu":
            raise ValueError(f"targets are of {targets.dtype}: give the number of each class")
        least, most = int(targets.min(initial=0)), int(targets.max(initial=0))
        if least < 0 or most >= shape[-1]:
            wrong = least if least < 0 else most
            raise ValueError(
                f"a target is {wrong}, and outputs are scores of {shape[-1]} classes: give targets "
                f"from 0 to {shape[-1] - 1}"
            )


@dataclass(frozen=True)
class SquaredError(Loss):
    """The mean over a sample of the squared difference between outputs and targets.

    Both have the same shape; a single output may be for a target that is a number.
    """

    def evaluate(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        wide = np.promote_types(outputs.dtype, np.float32)
        wanted = targets.reshape(outputs.shape).astype(wide, copy=False)
        difference = outputs.astype(wide, copy=False) - wanted
        items = max(prod(outputs.shape[1:]), 1)
        losses = np.square(difference).reshape(len(outputs), items).mean(axis=1)
        difference *= 2 / items
        return losses, difference.astype(outputs.dtype, copy=False)

    def check(self, shape: Shape, targets: Array) -> None:
        if shape != (1,) or targets.shape[1:] != ():
            _same_shape("values", targets, shape)
        if targets.dtype.kind not in "iuf":
            raise ValueError(f"targets are of {targets.dtype}: give real numbers")
        if not np.isfinite(targets).all():
            row = int(np.argwhere(~np.isfinite(targets))[0][0])
            raise ValueError(f"the target of sample {row} is not finite: leave the sample out")


def _same_shape(what: str, targets: Array, wanted: Shape) -> None:
    if targets.shape[1:] != wanted:
        raise ValueError(
            f"targets are {what} of shape {targets.shape[1:]} a sample, and the model's outputs "
            f"want {wanted}: give targets of this shape, or a model with other outputs"
        )
