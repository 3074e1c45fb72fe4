"""What a table of three bytes in a row knows of a text: the least that a model should beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpicoll.train.data.text import VOCABULARY

Bytes = NDArray[np.uint8]


def trigram_loss(text: Bytes, held_out: Bytes) -> float:
    """Mean loss, in nats a byte, of a table of a text on another.

    The table has how often each byte came after each two, after each one and at all.  Shares are
    interpolated as I. H. Witten and T. C. Bell do, "The zero-frequency problem", 1991 (method C):
    of n bytes that came after something, d of them distinct, the share n / (n + d) is by their
    counts and the rest by what came after the shorter context; after none, all bytes alike.

    Args:
        text: What the table is made of, shape (bytes,).
        held_out: What it is to foretell; each byte but the first two.

    Raises:
        ValueError: One of them has less than three bytes.
    """
    if min(len(text), len(held_out)) < 3:
        raise ValueError(
            f"the texts have {len(text)} and {len(held_out)} bytes: give each at least three"
        )
    chances = np.full(len(held_out) - 2, 1 / VOCABULARY)
    for length in (1, 2, 3):
        # The same places for all lengths, so that each foretells the same bytes.
        known, counts = np.unique(_codes(text, length), return_counts=True)
        wanted = _codes(held_out, length)[3 - length :]
        contexts, first = np.unique(known // VOCABULARY, return_index=True)
        total = np.add.reduceat(counts, first)
        distinct = np.diff(np.append(first, len(known)))
        seen = _found(known, counts, wanted)
        of_context = _found(contexts, total, wanted // VOCABULARY)
        others = _found(contexts, distinct, wanted // VOCABULARY)
        there = of_context > 0
        mixed = (seen + others * chances) / np.maximum(of_context + others, 1)
        chances = np.where(there, mixed, chances)
    return float(-np.log(chances).mean())


def _codes(text: Bytes, length: int) -> NDArray[np.int64]:
    """A number for each so many bytes in a row; divided by 256 it is that of all but the last."""
    codes = np.zeros(len(text) - length + 1, np.int64)
    for place in range(length):
        codes = codes * VOCABULARY + text[place : len(text) - length + 1 + place]
    return codes


def _found(
    keys: NDArray[np.int64], values: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The values of some keys, which ascend; 0 of those that are not there."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)
