"""What ranks of tiers send each other: of a batch, which rows, and their values.

A letter is a head (batch, rows, when the devices began), a bit for each row of the batch, and the
values of those rows: floating-point numbers, or signs as bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from mpicoll.base.arrays import Array

_HEAD = struct.Struct("<qqd")
#: Kinds, as tags of messages.
SCORES, FEATURES, ANSWER, DONE = 1, 2, 3, 4


@dataclass(frozen=True, eq=False)
class Letter:
    """A letter.

    Attributes:
        batch: Number of the batch.
        rows: Which rows of it this is about, shape (samples of the batch,), booleans; None: the
            sender knows of none, as nobody below has answered.
        began: When the devices began with the batch, by the clock of rank 0.
        values: Bytes of the values of these rows.
    """

    batch: int
    rows: Array | None
    began: float
    values: bytes = b""

    def packed(self) -> bytes:
        """As it is sent."""
        count = -1 if self.rows is None else len(self.rows)
        bits = b"" if self.rows is None else np.packbits(self.rows).tobytes()
        return _HEAD.pack(self.batch, count, self.began) + bits + self.values

    @property
    def overhead(self) -> int:
        """Bytes that are no values."""
        return _HEAD.size + (0 if self.rows is None else -(-len(self.rows) // 8))


def unpacked(content: bytes | bytearray) -> Letter:
    """A letter as it was received."""
    batch, count, began = _HEAD.unpack_from(content)
    if count < 0:
        return Letter(batch, None, began)
    end = _HEAD.size + -(-count // 8)
    bits = np.frombuffer(content, np.uint8, end - _HEAD.size, _HEAD.size)
    rows = np.unpackbits(bits, count=count).astype(bool)
    return Letter(batch, rows, began, bytes(content[end:]))


def encoded(values: Array, binary: bool) -> bytes:
    """Values of some rows; of signs a bit each, and each row begins with a byte of its own."""
    if binary:
        return np.packbits(
            values.reshape(len(values), prod(values.shape[1:])) > 0, axis=1
        ).tobytes()
    return np.ascontiguousarray(values).tobytes()


def decoded(content: bytes, shape: Sequence[int], dtype: DTypeLike, binary: bool) -> Array:
    """The rows of values of this shape."""
    values = prod(shape)
    if not content:
        return np.zeros((0, *shape), dtype)
    if not binary:
        return np.frombuffer(content, dtype).reshape(-1, *shape)
    bits = np.frombuffer(content, np.uint8).reshape(-1, -(-values // 8))
    signs = np.unpackbits(bits, axis=1, count=values).astype(dtype)
    return (2 * signs - 1).reshape(-1, *shape)
