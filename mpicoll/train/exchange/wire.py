"""Formats in which gradients travel: narrower than they are computed, or only the largest of them.

A codec turns floating-point numbers into bytes of a length known beforehand. A value that is not
finite stays so, or makes its block so: a rank's overflow is seen by all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array

Bytes = NDArray[np.uint8]

_BLOCK = 1024


class Codec(ABC):
    """A format for a vector of floating-point numbers.

    Attributes:
        feedback: Whether what is lost is added to the next step's values (error feedback).
    """

    feedback = False

    @abstractmethod
    def length(self, count: int) -> int:
        """Bytes for so many numbers."""

    @abstractmethod
    def encode(self, values: Array, out: Bytes) -> None:
        """Write `values`, shape (count,), to `out`, shape (length(count),)."""

    @abstractmethod
    def decode(self, data: Bytes, out: Array) -> None:
        """Read `out`, shape (count,), from `data`, shape (length(count),)."""


class Half(Codec):
    """IEEE float16: 11 significant bits, up to 65504."""

    def length(self, count: int) -> int:
        return 2 * count

    def encode(self, values: Array, out: Bytes) -> None:
        with np.errstate(over="ignore"):
            out.view(np.float16)[...] = values

    def decode(self, data: Bytes, out: Array) -> None:
        out[...] = data.view(np.float16)


class BFloat16(Half):
    """The upper half of a float32: 8 significant bits and its range, rounded to nearest even."""

    def encode(self, values: Array, out: Bytes) -> None:
        with np.errstate(over="ignore"):
            bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        # Rounding could carry a NaN into another number: keep its upper half, and it a NaN.
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        out.view(np.uint16)[...] = np.where(is_nan, (bits >> 16) | 0x40, rounded)

    def decode(self, data: Bytes, out: Array) -> None:
        out[...] = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


class EightBit(Codec):
    """Whole numbers from -127 to 127 with one scale for each block of 1024, the largest value's."""

    feedback = True

    def length(self, count: int) -> int:
        return 4 * self._blocks(count) + count

    def encode(self, values: Array, out: Bytes) -> None:
        blocks = self._blocks(values.size)
        padded = np.zeros((blocks, _BLOCK), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            padded.reshape(-1)[: values.size] = values
            scales = np.abs(padded).max(axis=1) / np.float32(127)
            scales[~np.isfinite(scales)] = np.nan
            whole = padded / np.where(scales > 0, scales, 1)[:, None]
        whole[~np.isfinite(whole)] = 0
        out[: 4 * blocks].view(np.float32)[...] = scales
        out[4 * blocks :].view(np.int8)[...] = np.rint(whole).reshape(-1)[: values.size]

    def decode(self, data: Bytes, out: Array) -> None:
        blocks = self._blocks(out.size)
        scales = np.repeat(data[: 4 * blocks].view(np.float32), _BLOCK)[: out.size]
        out[...] = data[4 * blocks :].view(np.int8) * scales

    @staticmethod
    def _blocks(count: int) -> int:
        return -(-count // _BLOCK)


class TopK(Codec):
    """The share of the values that are largest, each with its index; all others are zero.

    Args:
        share: Of the values of a bucket, above 0 and at most 1; at least one value is kept.
    """

    feedback = True

    def __init__(self, share: float) -> None:
        self.share = share

    def length(self, count: int) -> int:
        return 8 * self._kept(count)

    def encode(self, values: Array, out: Bytes) -> None:
        kept = self._kept(values.size)
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        # Not a number counts as largest; of equal values the first are kept: no chance in it.
        order = np.argsort(-np.nan_to_num(np.abs(narrow), nan=np.inf), kind="stable")
        indices = np.sort(order[:kept])
        out[: 4 * kept].view(np.int32)[...] = indices
        out[4 * kept :].view(np.float32)[...] = narrow[indices]

    def decode(self, data: Bytes, out: Array) -> None:
        kept = self._kept(out.size)
        out[...] = 0
        out[data[: 4 * kept].view(np.int32)] = data[4 * kept :].view(np.float32)

    def _kept(self, count: int) -> int:
        return min(count, max(1, int(count * self.share + 0.5)))


def codec(name: str) -> Codec | None:
    """The codec of a name: `full` (None), `fp16`, `bf16`, `int8`, `topk:SHARE`.

    Raises:
        ValueError: There is none of this name, or the share is out of range.
    """
    if name == "full":
        return None
    if name == "fp16":
        return Half()
    if name == "bf16":
        return BFloat16()
    if name == "int8":
        return EightBit()
    kind, _, share = name.partition(":")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if kind != "topk" or not 0 < number <= 1:
        raise ValueError(
            f"unknown wire format {name!r}: known are full, fp16, bf16, int8 and topk:SHARE with a "
            "share above 0 and at most 1, such as topk:0.01"
        )
    return TopK(number)
