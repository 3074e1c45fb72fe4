"""How long ranks waited in a collective for others to arrive, from when each began and ended.

A rank waits from when it begins until the last of those has begun that it cannot be done without:
of an all-reduce all ranks, of a broadcast the root.  What is left is the transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mpicoll.profile.calls import ALL, LOWER, NOBODY, awaited
from mpicoll.profile.recorder import KEPT


class Visit(NamedTuple):
    """One rank's part in a call; times in nanoseconds of one clock for all ranks.

    Attributes:
        row: Of the rank, that the call is counted in.
        begin: It called.
        wait: It began to wait; of a blocking call the same.
        end: It was done.
    """

    row: int
    begin: float
    wait: float
    end: float


def waits(collective: str, root: int, visits: Mapping[int, Visit]) -> dict[int, float]:
    """Nanoseconds that each rank waited for others to arrive.

    Args:
        collective: Its name.
        root: Its root, -1 without one.
        visits: Of all ranks of the communicator.
    """
    begins = [visits[rank].begin for rank in range(len(visits))]
    last, before, found = max(begins), float("-inf"), {}
    for rank, begin in enumerate(begins):
        visit, whom = visits[rank], awaited(collective, rank, root)
        if whom == NOBODY:
            arrival = visit.wait
        elif whom == LOWER:
            arrival = before
        else:
            arrival = last if whom == ALL else begins[root]
        if whom not in (ALL, NOBODY) and visit.end < arrival:
            arrival = visit.wait  # it has left before: what it gave was kept for the other
        found[rank] = max(0.0, min(arrival, visit.end) - visit.wait)
        before = max(before, begin)
    return found


def weight(number: int) -> int:
    """How many calls the one of a number stands for among those whose times are kept."""
    return 1 << ((number // KEPT + 1).bit_length() - 1)


class Clock:
    """A rank's clock as that of rank 0, in nanoseconds.

    Args:
        readings: At what time of the rank's clock it was how far ahead; one, or two.
    """

    #: Nanoseconds between readings that say how fast the difference grows.
    _BASE = 5e8

    def __init__(self, readings: Iterable[tuple[float, float]]) -> None:
        (self._local, self._ahead), *later = readings
        self._speed = 0.0
        if later and later[-1][0] - self._local >= self._BASE:
            self._speed = (later[-1][1] - self._ahead) / (later[-1][0] - self._local)

    def common(self, local: float) -> float:
        """The time of rank 0's clock when this rank's shows ``local``."""
        return local - self._ahead - self._speed * (local - self._local)


#: Of rank 0, and of who shares its clock.
SHARED = Clock([(0.0, 0.0)])
