"""Samples in files mapped into memory: a rank reads the rows it needs, when it needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpicoll.base.arrays import Array


class Inputs(Protocol):
    """Inputs or targets of samples: an array, or `Rows` of files, read where they are needed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Samples, then the shape of one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of what indexing gives."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Array: ...

    def astype(self, dtype: DTypeLike) -> Inputs:
        """The same samples in another type."""


class Rows:
    """The rows of several arrays, one after the other.

    Args:
        parts: Arrays with the same shape but for the number of rows.
        dtype: Type of what indexing gives; None for that of the parts.
        scale: What values are multiplied by.
        limit: Whole numbers must be from 0 to below it, when they are read; None for any.
        rows: Numbers of the rows to take, in their order; None for all.

    Raises:
        ValueError: The shapes or types of the parts differ.
    """

    def __init__(
        self,
        parts: Sequence[Array],
        dtype: DTypeLike | None = None,
        scale: float = 1.0,
        limit: int | None = None,
        rows: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        first = parts[0]
        for part in parts:
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
                raise ValueError(
                    f"files of one array hold rows of {first.dtype} of shape {first.shape[1:]} and "
                    f"of {part.dtype} of shape {part.shape[1:]}: give all the same"
                )
        self._parts, self._scale, self._limit, self._rows = tuple(parts), scale, limit, rows
        self._ends = np.cumsum([len(part) for part in parts])
        self.dtype = first.dtype if dtype is None else np.dtype(dtype)
        self.shape = (int(self._ends[-1]) if rows is None else len(rows), *first.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        """Rows of a slice or of an array of indices, in memory.

        Raises:
            ValueError: A value is beyond the limit.
        """
        is_slice = isinstance(index, slice)
        rows: NDArray[Any] = np.arange(*index.indices(len(self))) if is_slice else np.asarray(index)
        if self._rows is not None:
            rows = self._rows[rows]
        part_of = np.searchsorted(self._ends, rows, side="right")
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number, part in enumerate(self._parts):
            mine = np.flatnonzero(part_of == number)
            if mine.size:
                values = part[rows[mine] - (self._ends[number] - len(part))]
                out[mine] = values if self._scale == 1 else values * self._scale
        if self._limit is not None and out.size:
            self._check(out, rows)
        return out

    def astype(self, dtype: DTypeLike) -> Rows:
        """The same rows in another type, converted as they are read."""
        return Rows(self._parts, dtype, self._scale, self._limit, self._rows)

    def numbers(self) -> Rows:
        """The same rows as floating-point numbers; whole numbers of 8 bits become 0 .. 1."""
        natural = self._parts[0].dtype
        dtype = natural if natural.kind == "f" else np.dtype(np.float64)
        scale = 1 / 255 if natural == np.uint8 else 1.0
        return Rows(self._parts, dtype, scale, None, self._rows)

    def limited(self, limit: int) -> Rows:
        """The same rows, of whole numbers from 0 to below a limit."""
        return Rows(self._parts, self.dtype, self._scale, limit, self._rows)

    def taken(self, rows: NDArray[np.integer[Any]]) -> Rows:
        """Some of the rows."""
        chosen = rows if self._rows is None else self._rows[rows]
        return Rows(self._parts, self.dtype, self._scale, self._limit, chosen)

    def _check(self, values: Array, rows: NDArray[Any]) -> None:
        assert self._limit is not None
        if values.min() >= 0 and values.max() < self._limit:
            return
        wrong = (values < 0) | (values >= self._limit)
        sample = int(wrong.reshape(len(values), -1).any(axis=1).argmax())
        raise ValueError(
            f"{values[wrong][0]} in row {rows[sample]} is not in 0 .. {self._limit - 1}: correct "
            "the file, or raise the number of classes or the vocabulary that it says"
        )
