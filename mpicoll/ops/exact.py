"""Sums that depend on nothing but the numbers summed: exact, then rounded once.

Per element the result is the floating-point number nearest to the exact sum of all contributions
(ties to even), infinities and NaN as in IEEE 754, -0 only where every contribution is -0.  So it
depends neither on their order nor on how many of them are zero, and nothing overflows that the
result itself can express.  To stay exact, all contributions to an element must meet in one fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mpicoll.ops import reductions
from mpicoll.ops.reductions import Array, Reduction

#: Algorithms that bring all contributions to an element to one rank, raw, in one round.
SCHEDULES = dict.fromkeys(("allreduce", "reduce", "reduce_scatter"), "parameter_server")

#: The kernel's name.
_KERNEL = "exactsum"

#: Of a format: bits of the significand, exponent of the least number, first exponent too large.
_FORMATS = {"f32": (24, -149, 128), "f64": (53, -1074, 1024)}


class ExactSum(Reduction):
    """The exact sum as a reduction; complex numbers are folded as pairs of reals."""

    def fold(self, dst: Array, operands: Sequence[Array]) -> None:
        if self.dtype.kind == "c":
            _exact(dst.real.dtype).fold(
                dst.view(dst.real.dtype), [array.view(array.real.dtype) for array in operands]
            )
        elif reductions.simd_level() != "numpy":
            super().fold(dst, operands)
        else:
            sums = [_nearest(column, self.type) for column in zip(*operands, strict=True)]
            dst[...] = np.array(sums, self.dtype)


@lru_cache(maxsize=16)
def reduction(dtype: np.dtype[Any]) -> Reduction:
    """The exact sum of arrays of a dtype.

    Raises:
        TypeError: it is none of float32, float64, complex64, complex128 and the integers (whose
            sums, modulo 2^bits, are exact anyway).
    """
    if dtype.kind in "iu":
        return reductions.reduction("sum", dtype)
    if dtype.kind not in "fc" or not dtype.isnative or dtype.name not in _NAMES:
        raise TypeError(
            f"reproducible=True cannot sum {dtype}: it serves {', '.join(_NAMES)} and integers"
        )
    return _exact(dtype)


_NAMES = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}


def _exact(dtype: np.dtype[Any]) -> ExactSum:
    return ExactSum(_KERNEL, dtype, commutative=True, wide=dtype, type=_NAMES[dtype.name])


def _nearest(column: Iterable[Any], kind: str) -> float:
    """The exact sum of numbers, rounded to a format, without the compiled kernel."""
    numbers = [float(number) for number in column]
    if not np.isfinite(numbers).all():
        with np.errstate(invalid="ignore"):
            special = [number for number in numbers if not np.isfinite(number)]
            return float(np.sum(special))
    from fractions import Fraction  # seldom needed

    total = sum(map(Fraction, numbers))
    if not total:
        return -0.0 if all(np.signbit(numbers)) else 0.0
    digits, least, most = _FORMATS[kind]
    # |total| < 2^(exponent + 1): at most `digits` binary places of it are kept.
    exponent = total.numerator.bit_length() - total.denominator.bit_length()
    if abs(total) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent + 1 - digits, least)
    nearest = round(total / unit) * unit
    if abs(nearest) >= Fraction(2) ** most:
        return float("inf") if total > 0 else float("-inf")
    return float(nearest)
