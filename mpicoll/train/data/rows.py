"""Samples in files mapped into memory: a rank reads the rows it needs, when it needs them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mpicoll.base.arrays import Array


class Rows:
    """The rows of several arrays, one after the other; whole numbers of 8 bits become 0 .. 1.

    Args:
        parts: Arrays with the same shape but for the number of rows.
        dtype: Type of what indexing gives; None: float64 for whole numbers, otherwise that of the
            parts.
        shape: Shape of a row, None for that of the parts.

    Raises:
        ValueError: The shapes or types of the parts differ.
    """

    def __init__(
        self,
        parts: Sequence[Array],
        dtype: DTypeLike | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        first = parts[0]
        for part in parts:
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
                raise ValueError(
                    f"files of one array hold rows of {first.dtype} of shape {first.shape[1:]} and "
                    f"of {part.dtype} of shape {part.shape[1:]}: give all the same"
                )
        self._parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self._scale = 1 / 255 if first.dtype == np.uint8 else 1.0
        natural = first.dtype if first.dtype.kind == "f" else np.dtype(np.float64)
        self.dtype = natural if dtype is None else np.dtype(dtype)
        self.shape = (int(self._ends[-1]), *(first.shape[1:] if shape is None else shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        """Rows of a slice or of an array of indices, in memory."""
        if isinstance(index, slice):
            rows = np.arange(*index.indices(len(self)))
        else:
            rows = np.asarray(index)
        part_of = np.searchsorted(self._ends, rows, side="right")
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number, part in enumerate(self._parts):
            mine = np.flatnonzero(part_of == number)
            if mine.size:
                start = self._ends[number] - len(part)
                values = part[rows[mine] - start].reshape(len(mine), *self.shape[1:])
                out[mine] = values if self._scale == 1 else values * self._scale
        return out

    def astype(self, dtype: DTypeLike) -> Rows:
        """The same rows in another type, converted as they are read."""
        return Rows(self._parts, dtype, self.shape[1:])

    def flattened(self) -> Rows:
        """The same rows with one axis each."""
        return Rows(self._parts, self.dtype, (prod(self.shape[1:]),))
