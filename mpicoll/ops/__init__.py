"""Arithmetic on the elements of arrays: the reductions, rounded and exact."""

from mpicoll.ops.reductions import (
    OPERATORS,
    Array,
    Reduction,
    UserFunction,
    reduction,
    simd_level,
    simd_levels,
    use_simd_level,
    user,
)

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
