"""Targets: the number of each class, or real numbers; and tokens, which are whole numbers too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.rows import Inputs

#: More classes are a mistake: each has weights of its own.
MOST_CLASSES = 1 << 20
#: Values looked at together, so that files are not held in memory.
_PIECE = 1 << 20


def check_classes(where: str, targets: Inputs, classes: int | None = None) -> int:
    """Refuse targets that are not the numbers of classes.

    Args:
        where: What they belong to, for messages.
        targets: Shape (samples, ...).
        classes: Their number; None for one more than the largest target.

    Returns:
        The number of classes.

    Raises:
        ValueError: They are one-hot vectors, names, no whole numbers or out of range.
    """
    if targets.dtype.kind not in "iu" or not targets.shape:
        raise ValueError(
            f"{where}: labels have shape {targets.shape} and dtype {targets.dtype}: give whole "
            "numbers, those of classes; numpy.unique(labels, return_inverse=True) numbers classes "
            "that have names, and real numbers to come close to are called targets"
        )
    if _is_one_hot(targets):
        raise ValueError(
            f"{where}: labels have shape {targets.shape}, as one-hot vectors have: give the number "
            "of each sample's class, as labels.argmax(axis=1) gives it"
        )
    least, most = 0, -1
    for _, piece in pieces(targets):
        least, most = min(least, int(piece.min())), max(most, int(piece.max()))
    if max(most, (classes or 1) - 1) >= MOST_CLASSES:
        raise ValueError(
            f"{where}: label {max(most, (classes or 1) - 1)} is larger than the limit of "
            f"{MOST_CLASSES - 1}: number the classes 0, 1, 2, ..., as "
            "numpy.unique(labels, return_inverse=True) does"
        )
    found = most + 1 if classes is None else classes
    if least < 0 or most >= found:
        raise ValueError(
            f"{where}: label {least if least < 0 else most} is not in 0 .. {found - 1}: "
            "correct it or raise the number of classes"
        )
    return found


def check_numbers(where: str, targets: Inputs) -> None:
    """Refuse targets that are no finite numbers.

    Raises:
        ValueError: It names the first sample.
    """
    if targets.dtype.kind not in "iuf" or not targets.shape:
        raise ValueError(
            f"{where}: targets have shape {targets.shape} and dtype {targets.dtype}: give numbers "
            "for each sample"
        )
    if targets.dtype.kind != "f":
        return
    for start, piece in pieces(targets):
        finite = np.isfinite(piece).reshape(len(piece), -1).all(axis=1)
        if not finite.all():
            raise ValueError(
                f"{where}: the target of sample {start + int(finite.argmin())} is not finite: "
                "leave the sample out"
            )


def check_tokens(where: str, tokens: Inputs, vocabulary: int) -> None:
    """Refuse tokens that are not in the vocabulary.

    Raises:
        ValueError: It names the first of them and its sample.
    """
    if tokens.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: tokens are of {tokens.dtype}: give whole numbers from 0 to "
            f"{vocabulary - 1}, or leave the vocabulary out"
        )
    for start, piece in pieces(tokens):
        wrong = (piece < 0) | (piece >= vocabulary)
        if wrong.any():
            sample = int(wrong.reshape(len(piece), -1).any(axis=1).argmax())
            raise ValueError(
                f"{where}: token {piece[wrong][0]} of sample {start + sample} is not in 0 .. "
                f"{vocabulary - 1}: correct it or raise the vocabulary"
            )


def pieces(values: Inputs) -> Iterator[tuple[int, Any]]:
    """Some samples after the other: the number of the first, and their values."""
    step = max(1, _PIECE // max(1, int(np.prod(values.shape[1:]))))
    for start in range(0, len(values), step):
        yield start, values[start : start + step]


def _is_one_hot(targets: Inputs) -> bool:
    """Whether the first rows are vectors of zeros and a single one each."""
    if len(targets.shape) != 2 or targets.shape[1] < 2 or not len(targets):
        return False
    rows: Array = targets[:1000]
    return bool((rows.sum(axis=1) == 1).all() and (rows.max(axis=1) == 1).all()) and bool(
        (rows >= 0).all()
    )
