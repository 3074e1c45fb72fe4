"""Parts of the arrays that the next step depends on: for checkpoints, and where ranks die."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mpicoll.base.arrays import Array


class Part(NamedTuple):
    """A part of an array that a checkpoint keeps.

    Attributes:
        name: Of the array, as `parameter/NAME`, `state/SLOT/NAME` or `buffer/NAME`.
        shape: Of the whole array.
        start: First element of the part, of all in C order.
        values: Shape (elements,), on any device.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    values: Array


class Saved(Protocol):
    """The arrays of a checkpoint, by the names of `Part`."""

    def __contains__(self, name: object) -> bool: ...

    def read(self, name: str, start: int, target: Array) -> None:
        """Fill an array, of one axis on any device, with elements of one that is here.

        Args:
            name: Its name.
            start: The first of them, of all in C order.
            target: Where they go, as many as it has.

        Raises:
            OSError, ValueError: They cannot be read.
        """


class Seat(NamedTuple):
    """A part of the model that a rank of a mesh holds after so many steps.

    Attributes:
        number: Steps made then.
        place: Which part: number of the stage times the ranks that share layers, and the number
            among these.
        replica: Of which replica it was then.
    """

    number: int
    place: int
    replica: int


#: What a vector is (`parameter`, `state/SLOT`, `buffers`), where in it a part begins, and the part.
Piece = tuple[str, int, Array]


@dataclass(frozen=True)
class Held:
    """What one rank can hand to the others, where a rank has died.

    Attributes:
        number: Steps made then.
        facts: What else the next step depends on, as `Training.facts` gives it.
        pieces: Parts of vectors.
    """

    number: int
    facts: Mapping[str, Any]
    pieces: Sequence[Piece]
