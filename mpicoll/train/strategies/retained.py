"""What a rank of a mesh holds of the last two steps, where ranks may die.

Ranks make the update of a step by themselves.  When one dies meanwhile, some have made it and some
have not, and each part of the model may be with ranks of one kind alone: then all go back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.parallel.mesh import Axis
from mpicoll.train.ranks.guarded import GuardedWorkers
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.strategies.copies import Copies
from mpicoll.train.strategies.kept import Held, Piece


class Retained(ABC):
    """The arrays of a rank that each step changes.

    Args:
        pieces: Those, each of a vector of its own.
        values: Arrays that are no part of a vector, by name; told in float64, as `buffers/PLACE`.
        place: Which part of the model this rank has, as `Seat.place`.
    """

    def __init__(self, pieces: Sequence[Piece], values: Mapping[str, Array], place: int) -> None:
        self._values, self._buffers = values, f"buffers/{place}"
        self._now = [(f"{kind}/{place}", first, a.reshape(-1)) for kind, first, a in pieces]

    @property
    def ends(self) -> dict[str, int]:
        """Of each vector, the place behind the last element that is here."""
        size = sum(array.size for array in self._values.values())
        return {**{kind: first + v.size for kind, first, v in self._now}, self._buffers: size}

    @abstractmethod
    def begin(self, number: int, facts: Mapping[str, Any]) -> None:
        """A step begins; collective among replicas.

        Args:
            number: Steps made.
            facts: As of `Held`.
        """

    @abstractmethod
    def made(self, number: int, facts: Mapping[str, Any]) -> None:
        """The step has been made on this rank; collective among replicas.

        Args:
            number, facts: As of `begin`, after it.
        """

    @abstractmethod
    def held(self, number: int, facts: Callable[[], Mapping[str, Any]]) -> list[Held]:
        """What this rank can hand to others.

        Args:
            number: Steps made.
            facts: Gives those of now.
        """

    def put(self, kind: str, values: Array) -> None:
        """Take over what is this rank's of a whole vector."""
        for own, first, array in self._now:
            if own == kind:
                array[...] = values[first : first + array.size]
        if kind == self._buffers:
            start = 0
            for array in self._values.values():
                array[...] = values[start : start + array.size].reshape(array.shape)
                start += array.size

    def free(self) -> None:  # noqa: B027 - there may be nothing
        """Free what it has of MPI; collective among replicas."""

    def _packed(self) -> Piece:
        arrays = [array.reshape(-1).astype(np.float64) for array in self._values.values()]
        return self._buffers, 0, np.concatenate([np.zeros(0), *arrays])


class RetainedWhole(Retained):
    """The arrays after the step made last, and as they were before it; other replicas have them."""

    def __init__(self, pieces: Sequence[Piece], values: Mapping[str, Array], place: int) -> None:
        super().__init__(pieces, values, place)
        self._before = [(kind, 0, np.empty_like(array)) for kind, _, array in self._now]
        self._then: Held | None = None
        self._under_way = False

    def begin(self, number: int, facts: Mapping[str, Any]) -> None:
        for (_, _, copy), (_, _, array) in zip(self._before, self._now, strict=True):
            copy[...] = array
        self._then = Held(number, facts, [*self._before, self._packed()])
        self._under_way = True

    def made(self, number: int, facts: Mapping[str, Any]) -> None:
        self._under_way = False

    def held(self, number: int, facts: Callable[[], Mapping[str, Any]]) -> list[Held]:
        then = [] if self._then is None else [self._then]
        if self._under_way:
            return then
        return [Held(number, facts(), [*self._now, self._packed()]), *then]


class RetainedPieces(Retained):
    """Arrays that no other replica has: the next one has copies of the last two steps.

    Args:
        pieces, values, place: As of `Retained`; pieces are of one type.
        dtype: That.
        replicas: The ranks with the same part of the model; collective over them.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        values: Mapping[str, Array],
        place: int,
        dtype: np.dtype[Any],
        replicas: Axis,
    ) -> None:
        super().__init__(pieces, values, place)
        along = replicas.comm
        workers = Workers() if along is None else GuardedWorkers(along, None)
        self._copies, self._last = Copies(workers, self._now, dtype), -1

    def begin(self, number: int, facts: Mapping[str, Any]) -> None:
        if number != self._last:
            self.made(number, facts)

    def made(self, number: int, facts: Mapping[str, Any]) -> None:
        self._copies.keep(Held(number, facts, [self._packed()]))
        self._last = number

    def held(self, number: int, facts: Callable[[], Mapping[str, Any]]) -> list[Held]:
        found = self._copies.held(number, facts())
        return sorted(found, key=lambda held: held.number, reverse=True)

    def free(self) -> None:
        self._copies.free()
