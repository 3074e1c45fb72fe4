"""What a rank of a mesh holds of the last two steps, where ranks may die."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.strategies.kept import Held, Piece


class Retained:
    """The arrays of a rank after the step made last, and as they were before it.

    Ranks make the update of a step by themselves.  When one dies meanwhile, some have made it and
    some have not, and each part of the model may be with ranks of one kind alone: then all go back.

    Args:
        pieces: The arrays, which each step changes.
        values: Those that are no part of a vector, by name; told in float64, as `buffers/PLACE`.
        place: Which part of the model this rank has, as `Seat.place`.
    """

    def __init__(self, pieces: Sequence[Piece], values: Mapping[str, Array], place: int) -> None:
        self._values, self._place = values, place
        self._now = [(f"{kind}/{place}", 0, array.reshape(-1)) for kind, _, array in pieces]
        self._before = [(kind, 0, np.empty_like(array)) for kind, _, array in self._now]
        self._then: Held | None = None
        self._under_way = False

    @property
    def numbers(self) -> dict[str, int]:
        """The length of each vector."""
        size = sum(array.size for array in self._values.values())
        return {**{kind: v.size for kind, _, v in self._now}, f"buffers/{self._place}": size}

    def begin(self, number: int, facts: Mapping[str, Any]) -> None:
        """A step begins: keep what is there before it.

        Args:
            number: Steps made.
            facts: As of `Held`.
        """
        for (_, _, copy), (_, _, array) in zip(self._before, self._now, strict=True):
            copy[...] = array
        self._then = Held(number, facts, [*self._before, self._packed()])
        self._under_way = True

    def made(self) -> None:
        """The step has been made on this rank."""
        self._under_way = False

    def held(self, number: int, facts: Callable[[], Mapping[str, Any]]) -> list[Held]:
        """What this rank can hand to others.

        Args:
            number: Steps made.
            facts: Gives those of now.
        """
        then = [] if self._then is None else [self._then]
        if self._under_way:
            return then
        return [Held(number, facts(), [*self._now, self._packed()]), *then]

    def put(self, kind: str, values: Array) -> None:
        """Take over a whole vector, if it is of this rank's."""
        for own, _, array in self._now:
            if own == kind:
                array[...] = values
        if kind == f"buffers/{self._place}":
            start = 0
            for array in self._values.values():
                array[...] = values[start : start + array.size].reshape(array.shape)
                start += array.size

    def _packed(self) -> Piece:
        arrays = [array.reshape(-1).astype(np.float64) for array in self._values.values()]
        return f"buffers/{self._place}", 0, np.concatenate([np.zeros(0), *arrays])
