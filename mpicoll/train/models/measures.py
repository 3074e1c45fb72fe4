"""Measures of a model's outputs beside their loss.

A measure is any object with the attributes and methods of `Measure`: a value computed from sums
over samples, so that each rank measures a part.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.losses import CrossEntropy, SquaredError


class Measure(Protocol):
    """How good the outputs of a model are.

    Attributes:
        name: In records, tables and files.
        sums: Number of sums it needs.
    """

    name: str
    sums: int

    def measure(self, outputs: Array, targets: Array) -> Array:
        """Sums over some samples, shape (sums,)."""

    def value(self, sums: Array) -> float:
        """What the sums over all samples of a set say."""


class Accuracy(Measure):
    """The share of targets (of samples or of tokens) with the highest score."""

    name, sums = "accuracy", 2

    def measure(self, outputs: Array, targets: Array) -> Array:
        found = np.count_nonzero(outputs.argmax(axis=-1) == targets)
        return np.array([int(found), targets.size], float)

    def value(self, sums: Array) -> float:
        return float(sums[0] / sums[1])


class RSquared(Measure):
    """The share of the targets' variance that is explained, over all their values together.

    1 for outputs that are the targets, 0 for the mean of the targets, and less for worse.
    """

    name, sums = "r2", 4

    def measure(self, outputs: Array, targets: Array) -> Array:
        wide = targets.astype(np.float64, copy=False)
        missed = np.square(outputs.reshape(targets.shape) - wide).sum()
        return np.array(
            [targets.size, float(wide.sum()), float(np.square(wide).sum()), float(missed)]
        )

    def value(self, sums: Array) -> float:
        count, total, squares, missed = sums.tolist()
        spread = squares - total * total / count
        return 1 - missed / spread if spread > 0 else float("nan")


def usual(model: object, classes: int | None) -> tuple[Measure, ...]:
    """The measures that go with a model's loss, or with class numbers where it names none."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, SquaredError):
        return (RSquared(),)
    if classes is not None and (loss is None or isinstance(loss, CrossEntropy)):
        return (Accuracy(),)
    return ()
