"""Counts and displacements: whatever has ``__index__``, as mpi4py takes them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mpicoll.base.wording import plural


def is_integer(value: Any) -> bool:
    """Whether it is one integer, not a sequence of them; told as mpi4py tells it."""
    try:
        operator.index(value)
    except TypeError:
        return False
    try:
        len(value)
    except TypeError:
        return True
    return False


def natural(value: Any, name: str, what: str) -> int:
    """A count or displacement as an int.

    Raises:
        TypeError: no integer.
        ValueError: negative.
    """
    try:
        number = operator.index(value)
    except TypeError:
        hint = "; lists of arrays are for the blocking Allreduce alone" if np.ndim(value) else ""
        if isinstance(value, (float, complex)):
            hint = "; pass numbers as an array, by numpy.array"
        raise TypeError(f"{what}: {name} {value!r} must be an integer{hint}") from None
    if number < 0:
        raise ValueError(f"{what}: {name} {number} must not be negative")
    return number


def naturals(values: Any, blocks: int, name: str, what: str) -> list[int]:
    """One natural number a block."""
    if is_integer(values):
        return [natural(values, name, what)] * blocks
    try:
        numbers = [natural(value, name, what) for value in values]
    except TypeError:
        raise TypeError(f"{what}: {name} {values!r} must be integers, one a rank") from None
    if len(numbers) != blocks:
        raise ValueError(
            f"{what}: {len(numbers)} {name} for {plural(blocks, 'rank')}; pass one a rank"
        )
    return numbers
