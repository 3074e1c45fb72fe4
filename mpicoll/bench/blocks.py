"""Which blocks of a vector a rank gives and gets in a collective, and what is in them.

All of it follows from the collective's definition (:mod:`mpicoll.schedule.collectives`).  The
variants whose blocks may differ in length have the same, with other lengths.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from mpicoll.bench.pattern import Array, Pattern
from mpicoll.schedule.collectives import COLLECTIVES, Content, Place
from mpicoll.schedule.methods import VARIANTS


def base(collective: str) -> str:
    """The collective with equal blocks that a variant is of; others are their own."""
    return VARIANTS[collective].collective


def lengths(count: int, blocks: int, skew: float) -> tuple[int, ...]:
    """Lengths of blocks that grow evenly from 1 - skew to 1 + skew times their mean."""
    if blocks == 1:
        return (count,)
    growth = skew / (blocks - 1)
    ends = [
        round(count / blocks * block * (1 - skew + growth * (block - 1)))
        for block in range(blocks + 1)
    ]
    return tuple(end - start for start, end in pairwise(ends))


class Blocks:
    """Which blocks of the vector a rank gives and gets, and what is in them.

    Args:
        collective: one of `mpicoll.schedule.methods.VARIANTS`.
        count: elements of the whole vector.
        place: the rank.
        skew: how far lengths of the variants lie apart, see `lengths`.
        pattern: what is in the vectors.

    Attributes:
        definition: the collective.
        lengths: of the blocks that the rank gives, or gets, as far as it does.
        own: what it gives, in the vector.
        sent, received: elements.
    """

    def __init__(
        self, collective: str, count: int, place: Place, skew: float, pattern: Pattern
    ) -> None:
        self.definition = COLLECTIVES[base(collective)]
        self._count, self._place, self._pattern = count, place, pattern
        self._mean = lengths(count, place.nblocks, skew if VARIANTS[collective].varies else 0.0)
        self.lengths = self.lengths_at(place.rank)
        self.own = self._span(self.definition.held(place))
        self._wanted = list(self.definition.wanted(place))
        self.sent = self.own.stop - self.own.start
        self.received = sum(self.lengths[block] for block in self._wanted)

    def lengths_at(self, rank: int) -> tuple[int, ...]:
        """Lengths of the blocks that a rank gives, or gets, as far as it does.

        In an all-to-all they are dealt such that all ranks give and get as much.
        """
        if self.definition.name != "alltoall":
            return self._mean
        return (*self._mean[rank:], *self._mean[:rank])

    def _span(self, blocks: Iterable[int]) -> slice:
        """Where blocks that follow one another lie in the vector."""
        held = list(blocks)
        if not held:
            return slice(0, 0)
        return slice(sum(self.lengths[: held[0]]), sum(self.lengths[: held[-1] + 1]))

    def given(self) -> Array | None:
        """What the rank gives, None if nothing."""
        if not list(self.definition.held(self._place)):
            return None
        return self._pattern.given(self._place.rank, self._count)[self.own]

    def expected(self) -> Array | None:
        """What the rank must get, None if nothing."""
        if not self._wanted:
            return None
        return np.concatenate([self._content(block) for block in self._wanted])

    def _content(self, block: int) -> Array:
        length = self.lengths[block]
        content: Content = self.definition.end(self._place, block)
        if self.definition.reduces:
            start = sum(self.lengths[:block])
            return self._pattern.reduced(content.first, content.last, length, start)
        source = content.first
        # The sender of an all-to-all has it where it keeps what is for this rank.
        at = self._place.rank if self.definition.name == "alltoall" else block
        return self._pattern.given(source, length, sum(self.lengths_at(source)[:at]))
