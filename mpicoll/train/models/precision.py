"""What layers compute in, where parameters and samples are narrower than float32.

NumPy multiplies narrow matrices without BLAS, and rounds each sum on its way.  So a layer computes
in float32, from values of the narrow type, and what it hands on is rounded to that type: once a
layer, as by hardware that adds products up in float32.  CuPy has such hardware, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.models.flat import Parameters

Rounding = Callable[[Array], Array]


def computing(
    parameters: Parameters, dtype: np.dtype[Any] | None = None
) -> tuple[Parameters, Rounding]:
    """Parameters in the type to compute in, and what to do with all that layers hand on.

    Args:
        parameters: In the type of the run.
        dtype: That type, where none of these may have it; in memory.
    """
    first = next((array for array in parameters.values() if _is_narrow(array.dtype)), None)
    if first is not None and library_of(first) is np:
        dtype = first.dtype
    if dtype is None or not _is_narrow(dtype):
        return parameters, lambda values: values
    narrow = dtype

    def rounded(values: Array) -> Array:
        if values.dtype.kind in "iub":  # numbers of tokens
            return values
        return values.astype(narrow, copy=False).astype(np.float32)

    # What is wide is handed on as it is: layers may change statistics in place.
    wide = {n: a.astype(np.float32) if _is_narrow(a.dtype) else a for n, a in parameters.items()}
    return wide, rounded


def _is_narrow(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize < 4 and dtype.kind not in "iub"  # of no kind: bfloat16
