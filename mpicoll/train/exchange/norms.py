"""The norm of a gradient of which ranks have parts: the same bits, however it is divided.

The square of each value is rounded to float64, and their sum is exact until it is rounded once.  So
neither the order matters, nor where parts begin, nor how many ranks there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll import _kernels
from mpicoll.base.arrays import Array, host, library_of
from mpicoll.train.ranks.workers import Workers

#: A sum of squares, exactly: digits of 32 bits, the lowest worth 2^-1074; then whether any number
#: is infinite, and whether any is NaN.
Squares = NDArray[np.int64]
_DIGITS, _PLACES = 68, 1074
#: Elements added up at a time, on the processor and on a GPU, so that no sum overflows.
_AT_ONCE, _AT_ONCE_ON_GPU = 1 << 30, 1 << 20
_EXPONENTS, _INFINITE, _NO_NUMBER = 2049, 2047, 2048


def squares(arrays: Iterable[Array]) -> Squares:
    """The sum of the squares of all elements; such sums of parts are added like other numbers.

    Args:
        arrays: Floating point, of any shape.
    """
    sums = np.zeros((2, _EXPONENTS), np.int64)
    total = count = 0
    for array in arrays:
        add, most = _add, _AT_ONCE
        if library_of(array) is not np:
            add, most = _add_on_gpu, _AT_ONCE_ON_GPU
        values = array.reshape(-1)
        for start in range(0, values.size, most):
            part = values[start : start + most]
            if count + part.size > _AT_ONCE:
                total, count = total + _carried(sums), 0
            add(part, sums)
            count += part.size
    total += _carried(sums)
    found = np.zeros(_DIGITS + 2, np.int64)
    found[:_DIGITS] = np.frombuffer(total.to_bytes(4 * _DIGITS, "little"), "<u4")
    found[_DIGITS:] = sums[1, _INFINITE:] > 0
    return found


def root(sums: Squares) -> float:
    """The root of a sum of squares: the norm.  Infinite, or none, where a gradient is."""
    infinite, no_number = sums[_DIGITS:] > 0
    if infinite or no_number:
        return math.nan if no_number else math.inf
    total = sum(int(digit) << 32 * place for place, digit in enumerate(sums[:_DIGITS]))
    try:
        return math.sqrt(total / (1 << _PLACES))  # one rounding
    except OverflowError:
        return math.inf


def checked(workers: Workers, parts: Sequence[Array], clipped: bool) -> tuple[float, bool]:
    """The norm of a gradient, if it is to be clipped, and whether it is finite; collective.

    Args:
        workers: The ranks that have parts of it, each others; one process, if all have all of it.
        parts: This rank's.
        clipped: Whether the norm is asked for; otherwise it is said to be 0.
    """
    if clipped:
        sums = squares(parts)
        workers.sum(sums)
        norm = root(sums)
        return norm, math.isfinite(norm)
    wrong = np.array([sum(not np.isfinite(part).all() for part in parts)], float)
    workers.sum(wrong)
    return 0.0, not wrong[0]


def _add(values: Array, sums: NDArray[np.int64]) -> None:
    """Add squares by exponent, as `_kernels.add_squares` has it."""
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32)
    _kernels.add_squares(np.ascontiguousarray(values), sums)


def _add_on_gpu(values: Array, sums: NDArray[np.int64]) -> None:
    """The same by the array's own library, whose floats are exact up to so many elements."""
    bits: Any = np.square(values.astype(np.float64)).view(np.int64)
    exponents, significands = bits >> 52, bits & ((1 << 52) - 1)
    exponents += (exponents == _INFINITE) & (significands > 0)
    significands += (exponents > 0).astype(np.int64) << 52
    for row, part in zip(sums, (significands & 0xFFFFFFFF, significands >> 32), strict=True):
        weights = part.astype(np.float64)
        found = np.bincount(exponents, weights=weights, minlength=_EXPONENTS)
        row += host(found).astype(np.int64)


def _carried(sums: NDArray[np.int64]) -> int:
    """The finite part of sums as a whole number, in units of 2^-1074; they are zero then."""
    total = 0
    for exponent in np.flatnonzero(sums[0, :_INFINITE] | sums[1, :_INFINITE]):
        low, high = (int(row[exponent]) for row in sums)
        total += (low + (high << 32)) << max(int(exponent) - 1, 0)
    sums[:, :_INFINITE] = 0
    return total
