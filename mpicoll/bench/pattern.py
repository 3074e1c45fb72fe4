"""The numbers that ranks put in, and what they reduce to.

Inputs are small whole numbers that every element type holds exactly and whose reductions it holds
exactly too, so an output is right or wrong and never almost right. They repeat with a prime
period, so that blocks of any usual length differ and a misplaced one is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

TYPES = {
    "char": "int8",
    "int": "int32",
    "uint": "uint32",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"float{bits}" for bits in (16, 32, 64)},
}

_REDUCTIONS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_BITWISE = ("band", "bor", "bxor")
_PERIOD = 1021


def element_type(name: str) -> np.dtype[Any]:
    """The element type of a name such as ``float``, ``half``, ``int32`` or ``uint8``.

    Raises:
        ValueError: if there is none of that name, or it needs a package that is not there.
    """
    known = TYPES.get(name.lower())
    if known is None:
        raise ValueError(
            f"unknown element type {name!r}; the known ones are {', '.join(sorted(TYPES))}"
        )
    if known == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise ValueError("bfloat16 needs the package ml_dtypes; install it") from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(known)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of the type have fractions; to NumPy bfloat16 is of no kind."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


@dataclass(frozen=True)
class Wrong:
    """An element that is not what it should be."""

    rank: int
    index: int
    want: Any
    got: Any

    def __str__(self) -> str:
        return f"rank {self.rank}, index {self.index}: want {self.want}, got {self.got}"


class Pattern:
    """The numbers that ranks put in, and what they reduce to, as functions of the position.

    Args:
        dtype: Element type.
        op: Name of the operator.
        ranks: Number of contributing ranks.

    Raises:
        ValueError: if the operator is unknown or makes no sense for the type, or if so many ranks
            cannot be reduced exactly in the type.
    """

    def __init__(self, dtype: np.dtype[Any], op: str, ranks: int) -> None:
        if op not in _REDUCTIONS:
            raise ValueError(
                f"unknown operator {op!r}; bench measures {', '.join(sorted(_REDUCTIONS))}"
            )
        if op in _BITWISE and is_float(dtype):
            raise ValueError(f"operator {op!r} makes no sense for {dtype}; use an integer type")
        self._dtype, self._op = dtype, op
        self._largest = _largest_input(dtype, op, ranks)
        self._signs = op == "prod" and is_float(dtype)

    def _row(self, rank: int) -> Array:
        generator = np.random.default_rng(rank)
        values = generator.integers(0, self._largest + 1, _PERIOD)
        if self._signs:
            values = 1 - 2 * values
        return values.astype(self._dtype)

    def given(self, rank: int, count: int, start: int = 0) -> Array:
        """Elements ``start`` to ``start + count`` of what the rank puts in."""
        return np.resize(np.roll(self._row(rank), -start), count)

    def reduced(self, first: int, last: int, count: int, start: int = 0) -> Array:
        """Elements ``start`` to ``start + count`` of the reduction over ranks first to last."""
        with np.errstate(over="ignore"):
            found = self._row(first)
            for rank in range(first + 1, last + 1):
                found = _REDUCTIONS[self._op](found, self._row(rank))
        return np.resize(np.roll(found.astype(self._dtype), -start), count)


def _largest_input(dtype: np.dtype[Any], op: str, ranks: int) -> int:
    """The largest input value whose reduction over the ranks is exact (integers may wrap)."""
    if not is_float(dtype) or op in ("max", "min"):
        return 60
    if op == "prod":
        return 1
    digits = 7 if dtype.name == "bfloat16" else np.finfo(dtype).nmant
    largest = min(60, (2 << digits) // ranks)
    if largest < 1:
        raise ValueError(
            f"a sum over {ranks} ranks is not exact in {dtype}; use a wider type or op max"
        )
    return largest
