"""Reductions: what `op` means on arrays of a dtype, and how k of them are folded into one.

A `Reduction` folds k operands left to right in one pass. Compiled kernels (`_kernels`) do the work
where they have been built; NumPy does otherwise, more slowly, with the same values:

- integers wrap; floats are rounded once per operation, without contraction or flush to zero;
- float16 and bfloat16 sums and products are formed in float32 and rounded once, at the end;
- `max` and `min` return the first NaN if there is one, else the first of equal values (+0 and -0
  are equal); a sum or product with several NaNs is NaN, which of them is not specified;
- `maxloc` and `minloc` take of equal values the one with the lower index; NaN beats every number;
- logical operators give 0 or 1 (False or True).

The table of operators and types is that of the MPI standard (MPI 4.1, section 6.9.2), with
bfloat16, float16 and long double complex numbers treated as the other floating-point numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mpicoll.base.wording import plural

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "OPERATORS",
    "Array",
    "Reduction",
    "UserFunction",
    "reduction",
    "simd_level",
    "simd_levels",
    "use_simd_level",
    "user",
]

try:
    from mpicoll import _kernels
except ImportError:  # a source tree where nothing has been built
    _kernels = None  # type: ignore[assignment]

Array: TypeAlias = "npt.NDArray[Any]"
UserFunction = Callable[[Array, Array], object]

OPERATORS = (
    "sum", "prod", "max", "min", "land", "lor", "lxor", "band", "bor", "bxor", "maxloc", "minloc",
)  # fmt: skip

_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_FLOATS = ("f16", "bf16", "f32", "f64", "ld")
_COMPLEX = ("c64", "c128", "cld")
_PAIRS = ("i16_int", "i32_int", "i64_int", "f32_int", "f64_int", "ld_int")
_NARROW = ("f16", "bf16")

# Operators of one class, the types they serve, and those types in words.
_CLASSES = (
    (("sum", "prod"), (*_INTEGERS, *_FLOATS, *_COMPLEX), "integers, floats and complex numbers"),
    (("max", "min"), (*_INTEGERS, *_FLOATS), "integers and floats"),
    (("land", "lor", "lxor"), (*_INTEGERS, "bool"), "integers and bool"),
    (("band", "bor", "bxor"), _INTEGERS, "integers"),
    (
        ("maxloc", "minloc"),
        _PAIRS,
        "MPI's pairs, as np.dtype([('value', T), ('index', 'i4')], align=True) "
        "with T one of i2, i4, i8, f4, f8, longdouble",
    ),
)
_SERVES = {op: types for ops, types, _ in _CLASSES for op in ops}
_SERVED = {op: words for ops, _, words in _CLASSES for op in ops}
_REMEDY = {
    "bool": "for bool use land, lor or lxor",
    "complex": "reduce real and imaginary parts apart, through array.view of the real type",
    "float": "view the array as integers",
}

# NumPy works on this many elements at a time, so that its temporaries stay in the caches.
_SEGMENT = 8192


def _type_name(dtype: np.dtype[Any]) -> str:
    """The kernels' name of a dtype, "" if MPI has no type for it."""
    if dtype.names is not None:
        return _pair_name(dtype)
    if dtype.name == "bfloat16":
        return "bf16"
    if dtype.kind == "b":
        return "bool"
    name = f"{dtype.kind}{8 * dtype.itemsize}"
    if dtype.kind == "f" and dtype.itemsize > 8:
        name = "ld"
    elif dtype.kind == "c":
        name = "cld" if dtype.itemsize > 16 else name
    return name if name in _INTEGERS or name in _FLOATS or name in _COMPLEX else ""


def _pair_name(dtype: np.dtype[Any]) -> str:
    """The kernels' name of (value, C int) laid out as a C struct, else ""."""
    fields = [dtype.fields[name][0] for name in dtype.names or () if dtype.fields]
    if len(fields) != 2 or not all(field.isnative and field.names is None for field in fields):
        return ""
    struct = np.dtype([("value", fields[0]), ("index", np.intc)], align=True)
    offsets = [dtype.fields[name][1] for name in dtype.names or () if dtype.fields]
    layout = [(0, struct["value"]), (struct.fields["index"][1], struct["index"])]  # type: ignore[index]
    if list(zip(offsets, fields, strict=True)) != layout or dtype.itemsize != struct.itemsize:
        return ""
    name = f"{_type_name(fields[0])}_int"
    return name if name in _PAIRS else ""


class Reduction(NamedTuple):
    """An operator on arrays of one dtype.

    Attributes:
        name: Name of the operator, "user" for a user's function.
        dtype: dtype of the elements.
        commutative: Whether operands may change places.
        wide: dtype of the accumulator: float32 for float16 and bfloat16 sums and products.
        type: The kernels' name of the dtype, "" for a user's function.
        function: The user's function, else None.
    """

    name: str
    dtype: np.dtype[Any]
    commutative: bool
    wide: np.dtype[Any]
    type: str
    function: UserFunction | None = None

    def fold(self, dst: Array, operands: Sequence[Array]) -> None:
        """dst = operands[0] op operands[1] op ..., left to right; a copy of a single operand.

        Args:
            dst: One-dimensional contiguous array of `dtype`, at any alignment; exactly the memory
                of one of the operands, or apart from all of them.
            operands: At least one such array, each as long as `dst`; not changed, unless it is
                `dst`.

        Raises:
            TypeError: An array has another dtype.
            ValueError: No operand, or one of another length than `dst`.
        """
        if self.function is None and _kernels is not None and _level != "numpy":
            _kernels.fold(self.name, self.type, self.dtype, dst, operands)
            return
        _check(self, dst, operands)
        if self.function is None:
            _fold_numpy(self, dst, operands)
        else:
            _fold_user(self.function, dst, operands)


def _check(how: Reduction, dst: Array, operands: Sequence[Array]) -> None:
    """The checks that the kernels make themselves, with the same words."""
    if not operands:
        raise ValueError("nothing to fold: pass at least one operand")
    for array in (dst, *operands):
        if array.dtype != how.dtype:
            raise TypeError(f"{how.name} of {how.dtype} cannot fold an array of {array.dtype}")
    for i, operand in enumerate(operands):
        if operand.size != dst.size:
            raise ValueError(
                f"operand {i} has {plural(operand.size, 'element')}, the result {dst.size}: "
                "they must be equally long"
            )


def reduction(op: str | UserFunction, dtype: npt.DTypeLike) -> Reduction:
    """The reduction of arrays of a dtype by an operator.

    Args:
        op: One of `OPERATORS`, or a user's function (taken as not commutative, see `user`).
        dtype: dtype in native byte order, for which the operator has a meaning.

    Raises:
        ValueError: Unknown operator.
        TypeError: The operator has no meaning for the dtype.
    """
    if callable(op):
        return user(op, dtype, commutative=False)
    return _builtin(op, np.dtype(dtype))


@lru_cache(maxsize=256)
def _builtin(op: str, dtype: np.dtype[Any]) -> Reduction:
    if op not in OPERATORS:
        raise ValueError(f"unknown operator {op!r}: choose one of {', '.join(OPERATORS)}")
    if not dtype.isnative:
        raise TypeError(
            f"{op} of {dtype} is not possible in a foreign byte order: "
            "convert with array.astype(array.dtype.newbyteorder('='))"
        )
    name = _type_name(dtype)
    if name not in _SERVES[op]:
        kind = "complex" if name in _COMPLEX else "float" if name in _FLOATS else name
        remedy = f"; {_REMEDY[kind]}" if kind in _REMEDY else ""
        raise TypeError(f"{op} of {dtype} has no meaning: it serves {_SERVED[op]}{remedy}")
    wide = np.dtype(np.float32) if name in _NARROW and op in ("sum", "prod") else dtype
    return Reduction(op, dtype, commutative=True, wide=wide, type=name)


def user(function: UserFunction, dtype: npt.DTypeLike, commutative: bool) -> Reduction:
    """The reduction by a user's function, as `MPI_Op_create` has it.

    Args:
        function: Called as function(invec, inoutvec) with arrays of `dtype` of equal length; sets
            inoutvec to invec op inoutvec and leaves invec alone.
        dtype: Any dtype.
        commutative: Whether operands may change places.
    """
    dtype = np.dtype(dtype)
    return Reduction("user", dtype, commutative, wide=dtype, type="", function=function)


def _fold_user(function: UserFunction, dst: Array, operands: Sequence[Array]) -> None:
    """The function overwrites its right-hand side, so each operand but the first is copied."""
    result = operands[0]
    for operand in operands[1:]:
        left, result = result, operand.copy()
        function(left, result)
    dst[...] = result


# ---- NumPy's way: steps that fold one more operand into an accumulator ----


def _ufunc(function: np.ufunc) -> UserFunction:
    def step(total: Array, operand: Array) -> None:
        function(total, operand, out=total)

    return step


def _product(total: Array, operand: Array) -> None:
    if total.dtype.kind != "c":
        np.multiply(total, operand, out=total)
        return
    # NumPy's own complex product is contracted on some processors and not on others.
    real = total.real * operand.real - total.imag * operand.imag
    total.imag = total.real * operand.imag + total.imag * operand.real
    total.real = real


def _extreme(beats: np.ufunc) -> UserFunction:
    def step(total: Array, operand: Array) -> None:
        take = beats(operand, total)
        if total.dtype.kind not in "iu":
            take = (take | (operand != operand)) & (total == total)
        np.copyto(total, operand, where=take)

    return step


def _locate(beats: np.ufunc) -> UserFunction:
    def step(total: Array, operand: Array) -> None:
        value, index = total.dtype.names or ()
        ours, theirs = total[value], operand[value]
        ours_nan, theirs_nan = ours != ours, theirs != theirs
        tie = (ours == theirs) | (ours_nan & theirs_nan)
        take = beats(theirs, ours) | (theirs_nan & ~ours_nan)
        take |= tie & (operand[index] < total[index])
        np.copyto(total, operand, where=take)

    return step


_STEPS: dict[str, UserFunction] = {
    "sum": _ufunc(np.add),
    "prod": _product,
    "max": _extreme(np.greater),
    "min": _extreme(np.less),
    "land": _ufunc(np.logical_and),
    "lor": _ufunc(np.logical_or),
    "lxor": _ufunc(np.logical_xor),
    "band": _ufunc(np.bitwise_and),
    "bor": _ufunc(np.bitwise_or),
    "bxor": _ufunc(np.bitwise_xor),
    "maxloc": _locate(np.greater),
    "minloc": _locate(np.less),
}


def _fold_numpy(how: Reduction, dst: Array, operands: Sequence[Array]) -> None:
    if len(operands) == 1:
        dst[...] = operands[0]
        return
    step, wide = _STEPS[how.name], how.wide
    with np.errstate(all="ignore"):  # the kernels do not warn either
        for first in range(0, len(dst), _SEGMENT):
            part = slice(first, first + _SEGMENT)
            total = operands[0][part].astype(wide)
            for operand in operands[1:]:
                step(total, operand[part].astype(wide, copy=False))
            dst[part] = total


# ---- Instruction sets ----


def simd_levels() -> tuple[str, ...]:
    """The levels `MPICOLL_SIMD` accepts here: "numpy" (no kernels), then the kernels' own."""
    return ("numpy", *(_kernels.levels() if _kernels is not None else ()))


def simd_level() -> str:
    """The level in use: the widest there is, unless `MPICOLL_SIMD` names another."""
    return _level


def use_simd_level(name: str) -> None:
    """Use this level from now on, in the whole process.

    Raises:
        ValueError: It is not one of `simd_levels()`.
    """
    global _level
    if name not in simd_levels():
        why = "" if _kernels is not None else " (the compiled kernels have not been built)"
        raise ValueError(
            f"MPICOLL_SIMD={name} is not available here: "
            f"choose one of {', '.join(simd_levels())}{why}"
        )
    if _kernels is not None and name != "numpy":
        _kernels.use_level(name)
    _level = name


_level = "numpy"
use_simd_level(os.environ.get("MPICOLL_SIMD") or simd_levels()[-1])
