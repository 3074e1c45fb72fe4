"""The parameters of algorithms: what their values are, and how they are written."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any, NamedTuple, TypeAlias

#: What the caller passes for a parameter, and what a schedule gets.
Parameter: TypeAlias = int | Sequence[int]
Value: TypeAlias = int | tuple[int, ...]


class ParameterKind(NamedTuple):
    """What the values of a parameter are.

    Attributes:
        words: what a value must be.
        example: one, as it is written on the command line.
        valid: whether a number, or a tuple of numbers, is one.
        per_rank: a number for each rank, or ``()`` for the natural ones; else one number.
        natural: the natural ones, in a few signs.
        tried: values for a number of ranks that show what the parameter does, to be verified.
    """

    words: str
    example: str
    valid: Callable[[Any], bool]
    per_rank: bool = False
    natural: str = ""
    tried: Callable[[int], tuple[Value, ...]] = lambda size: ()

    def value(self, name: str, given: object) -> Value:
        """What is given for a parameter, checked.

        Raises:
            ValueError: it is no value of this kind.
        """
        try:
            found = _numbers(given) if self.per_rank else _number(given)
        except TypeError:
            found = None
        if found is None or not self.valid(found):
            raise ValueError(f"{name}={given!r} must be {self.words}, such as {self.example}")
        return found


def _number(given: Any) -> int:
    if isinstance(given, bool):
        raise TypeError
    return operator.index(given)


def _numbers(given: Any) -> tuple[int, ...]:
    return tuple(map(_number, given))


#: Kind of parameter: a number of things.
NUMBER = ParameterKind("an integer of at least 1", "4", lambda value: value >= 1)
#: Kind of parameter: the ranks in another order.
PERMUTATION = ParameterKind(
    "a sequence with each of the ranks 0, 1, 2, ... once",
    "2,0,1,3",
    lambda value: sorted(value) == [*range(len(value))],
    per_rank=True,
    natural="0,1,...,P-1",
)


def _placements(size: int) -> tuple[Value, ...]:
    """A small and a large node; ranks in turn on several; of few ranks also each alone, and all.

    These have the fewest messages, so that many ranks can be verified.
    """
    ranks, several = range(size), 1 + isqrt(size)
    every: list[Value] = [tuple(int(r >= 3) for r in ranks), tuple(r % several for r in ranks)]
    if size <= 16:
        every += [(), (0,) * size]
    return tuple(dict.fromkeys(every))


#: Kind of parameter: a label for each rank; ranks of the same label are together.  A communicator
#: fills in which ranks share a node where a caller leaves it out.
LABELS = ParameterKind(
    "a sequence with an integer of at least 0 for each rank",
    "0,0,1,1",
    lambda value: all(label >= 0 for label in value),
    per_rank=True,
    natural="0,1,...,P-1",
    tried=_placements,
)


def read_value(text: str) -> Value:
    """The value of a parameter as it is written: ``4``, ``2,0,1,3``, or ``0,`` for one rank.

    Raises:
        ValueError: it is written otherwise.
    """
    if "," not in text:
        return int(text)
    return tuple(map(int, text.strip().removesuffix(",").split(",")))


def read_words(words: str) -> tuple[str, dict[str, Value]]:
    """An algorithm's name and its parameters as they are written: ``chain segments=4 window=8``.

    Raises:
        ValueError: they are written otherwise.
    """
    name, *rest = words.split() or [""]
    if not all("=" in word for word in rest):
        raise ValueError(f"{words!r} must be a name, and name=value for each parameter")
    return name, {key: read_value(value) for key, value in (word.split("=", 1) for word in rest)}


def in_words(parameters: Mapping[str, Value]) -> str:
    """Parameters as they are written, without those that stand for what is natural."""
    return " ".join(
        f"{name}={value if isinstance(value, int) else _joined(value)}"
        for name, value in parameters.items()
        if value != ()
    )


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers)) + "," * (len(numbers) == 1)
