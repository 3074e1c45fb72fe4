"""Labels: the number of each sample's class."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpicoll.base.arrays import Array

#: More classes are a mistake: each has weights of its own.
MOST_CLASSES = 1 << 20


def of(where: str, labels: Any) -> Array:
    """Labels as an array.

    Args:
        where: What they belong to, for messages.
        labels: One for each sample.

    Raises:
        ValueError: As `check`.
    """
    found = np.asarray(labels)
    check(where, found)
    return found


def check(where: str, labels: Array) -> None:
    """Refuse labels that are no class numbers; those out of range are the data set's to find.

    Raises:
        ValueError: They are one-hot vectors, names, no whole numbers or beyond the limit.
    """
    if labels.ndim == 2:
        raise ValueError(
            f"{where}: labels have shape {labels.shape}, as one-hot vectors have: give the number "
            "of each sample's class, as labels.argmax(axis=1) gives it"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: labels have shape {labels.shape} and dtype {labels.dtype}: give one whole "
            "number for each sample, that of its class; numpy.unique(labels, return_inverse=True) "
            "numbers classes that have names"
        )
    largest = int(labels.max()) if labels.size else 0
    if largest >= MOST_CLASSES:
        raise ValueError(
            f"{where}: label {largest} is larger than the limit of {MOST_CLASSES - 1}: number the "
            "classes 0, 1, 2, ..., as numpy.unique(labels, return_inverse=True) does"
        )
