"""Copies of what one rank alone keeps, so that it outlives the rank: a buddy has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.strategies.kept import Held, Piece

#: What a vector is, where in it a part begins, and how long that is.
_Place = tuple[str, int, int]


class Copies:
    """The pieces of this rank and of the rank before it, after the last two steps.

    A rank may die when it has told some of the others of its update, and not all. Then all go back
    to the step before, which every rank has of itself and of its neighbour.

    Args:
        workers: The ranks; collective.
        owned: What this rank alone keeps and changes in each step: all of one type.
    """

    def __init__(self, workers: Workers, owned: Sequence[Piece], dtype: np.dtype[Any]) -> None:
        rank, size = workers.rank, workers.size
        self._owned = owned
        everyone = workers.gather([(kind, start, part.size) for kind, start, part in owned])
        self._places: list[_Place] = everyone[rank]
        self._their_places: list[_Place] = everyone[rank - 1]
        mine, theirs = (sum(n for *_, n in p) for p in (self._places, self._their_places))
        self._own, self._theirs = np.zeros((2, mine), dtype), np.zeros((2, theirs), dtype)
        sent, received = [0] * size, [0] * size
        sent[(rank + 1) % size], received[rank - 1] = mine, theirs
        self._plans = [
            workers.plan_exchange_parts(own, sent, their, received)
            for own, their in zip(self._own, self._theirs, strict=True)
        ]
        self._kept: list[Held | None] = [None, None]
        self._has_theirs = [False, False]

    def keep(self, whole: Held) -> None:
        """Copy the pieces after so many steps, here and to the next rank; collective.

        Args:
            whole: What there is to know beside them, on every rank.
        """
        number = whole.number
        turn = number % 2
        self._has_theirs[turn] = False
        copies = _cut(self._places, self._own[turn])
        for (_, _, part), (_, _, copy) in zip(self._owned, copies, strict=True):
            copy[...] = part
        self._kept[turn] = whole
        self._plans[turn].Start()
        self._plans[turn].Wait()
        self._has_theirs[turn] = True

    def held(self, number: int, facts: Mapping[str, Any]) -> list[Held]:
        """What there is of the last two steps.

        Args:
            number: Steps that this rank has made, and
            facts: what it knows after them, epochs that were measured since included.
        """
        found = []
        for turn, kept in enumerate(self._kept):
            if kept is None:
                continue
            pieces = [*kept.pieces, *_cut(self._places, self._own[turn])]
            if self._has_theirs[turn]:
                pieces += _cut(self._their_places, self._theirs[turn])
            found.append(Held(kept.number, facts if kept.number == number else kept.facts, pieces))
        return found

    def free(self) -> None:
        """Free the plans; collective."""
        for plan in self._plans:
            plan.Free()


def _cut(places: Sequence[_Place], values: Array) -> Iterator[Piece]:
    """The pieces that lie one after the other in an array."""
    end = 0
    for kind, start, length in places:
        begin, end = end, end + length
        yield kind, start, values[begin:end]
