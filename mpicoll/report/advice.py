"""What a sweep recommends: the fastest choice for each size and number of ranks, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpicoll.base.wording import plural
from mpicoll.model import choose
from mpicoll.model.cells import Cell
from mpicoll.model.told import Gain
from mpicoll.model.verdicts import CROWDED, ONE_LAUNCH, TOLD, verdict
from mpicoll.report.names import about, position, short
from mpicoll.tuning import NATIVE


class Advice(NamedTuple):
    """The choice for some sizes of a collective on a number of ranks.

    Attributes:
        collective, ranks: what is called.
        near: whether the ranks share memory.
        sizes: the least and the largest that were measured, in bytes of the whole vector.
        choice: algorithm and parameters.
        gain: over the library's own; None where that is unknown, or the choice.
        sure: whether the gain is told from noise, in the words of :mod:`mpicoll.model.verdicts`.
    """

    collective: str
    ranks: int
    near: bool
    sizes: tuple[int, int]
    choice: str
    gain: Gain | None
    sure: str

    @property
    def where(self) -> str:
        """The calls that it is for."""
        low, high = self.sizes
        sizes = (
            "" if not high else f" of {about(low)}" + (f" to {about(high)}" * (high > low)) + " B"
        )
        return f"{self.collective}{sizes} on {plural(self.ranks, 'rank')}" + (
            "" if self.near else ", by messages"
        )

    @property
    def worth(self) -> str:
        """Its gain over the library's own, with the interval, and what speaks against it."""
        if self.gain is None:
            return _NO_GAIN if self.choice == NATIVE else f"{NATIVE} was not measured there"
        share, low, high = (100 * value for value in self.gain[:3])
        said = (
            f"{abs(share):.0f} % {'faster' if share >= 0 else 'slower'} than {NATIVE} "
            f"(95 % interval {low:+.0f} to {high:+.0f} %)"
        )
        return said if self.sure == TOLD else f"{said}; {_DOUBTS.get(self.sure, 'within noise')}"


_NO_GAIN = "nothing measured is faster"
_DOUBTS = {
    ONE_LAUNCH: "not significant with one launch",
    CROWDED: "ranks shared cores, so this does not compare the algorithms",
}


def advice(cells: Sequence[Cell]) -> list[Advice]:
    """What measurements recommend, in the order of a report; nothing of a single rank."""
    found = []
    for decision in choose.decisions(choose.tables(cells)):
        (collective, ranks, near), (start, end, choice) = decision.table.place, decision.segment
        sizes = decision.table.sizes[start], decision.table.sizes[end - 1]
        told = verdict(decision)
        found.append(
            Advice(
                *(collective, ranks, near, sizes, short(collective, choice)),
                *(told.gain, told.sure),
            )
        )
    return sorted(found, key=lambda one: position(one.collective))


def first(found: Sequence[Advice]) -> list[Advice]:
    """What a reader sees first: of each collective what is for the most ranks."""
    most: dict[str, int] = {}
    for one in found:
        most[one.collective] = max(one.ranks, most.get(one.collective, 0))
    return [one for one in found if one.ranks == most[one.collective]]
