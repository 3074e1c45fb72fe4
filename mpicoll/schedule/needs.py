"""What algorithms need of a call and of the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

#: Need: the operator must be commutative (every algorithm needs it to be associative).
COMMUTATIVE = "commutative"

#: Need: all blocks are equally long, or every rank knows the length of each: it passes on blocks of
#: other ranks, and in a Gatherv, Scatterv or Alltoallv a rank knows the lengths of its own alone.
EQUAL_BLOCKS = "equal blocks"

#: Need: the number of ranks must be even (or 1).
EVEN_SIZE = "even"

#: Need: the number of ranks must be a power of two.
POWER_OF_TWO = "power of two"

#: How far above a number of ranks the next one that serves is looked for.
_FAR = 1 << 12


class SizeNeed(NamedTuple):
    """A need of the number of ranks.

    Attributes:
        words: what the number must be, after "it needs": "a square number of ranks".
        serves: whether a number of ranks is one.
    """

    words: str
    serves: Callable[[int], bool]

    def __str__(self) -> str:
        return self.words

    def misfit(self, size: int) -> str:
        """Why a number of ranks does not serve, and which does; "" if it does."""
        if self.serves(size):
            return ""
        larger = next((n for n in range(size + 1, size + _FAR) if self.serves(n)), None)
        remedy = "" if larger is None else f"{larger} ranks, or "
        return f"it needs {self.words}, not {size}: take {remedy}another algorithm"


Need: TypeAlias = str | SizeNeed

_OF_SIZE: Mapping[str, SizeNeed] = {
    EVEN_SIZE: SizeNeed("an even number of ranks", lambda size: size == 1 or size % 2 == 0),
    POWER_OF_TWO: SizeNeed("a power of two of ranks", lambda size: size & (size - 1) == 0),
}
#: Needs that have a name.
NAMED = (COMMUTATIVE, EQUAL_BLOCKS, *_OF_SIZE)


def of_size(needs: Sequence[Need]) -> list[SizeNeed]:
    """Those of some needs that are of the number of ranks."""
    sizes = (_OF_SIZE.get(need) if isinstance(need, str) else need for need in needs)
    return [need for need in sizes if need is not None]


def check(needs: Sequence[Need]) -> None:
    """Check needs that somebody has written.

    Raises:
        ValueError: one is neither of :data:`NAMED` nor a :class:`SizeNeed`.
    """
    for need in needs:
        if not isinstance(need, SizeNeed) and need not in NAMED:
            raise ValueError(
                f"unknown need {need!r}: known are {', '.join(NAMED)}, and "
                "SizeNeed(words, predicate) for any other number of ranks"
            )
