"""What a rule gains over the MPI library's own collective, and how sure that is, in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mpicoll.model.cells import Cell
from mpicoll.model.choose import Decision
from mpicoll.model.told import Gain
from mpicoll.tuning import NATIVE

CROWDED, ONE_LAUNCH = "no: more ranks than cores", "no: one launch"
TOLD, DOUBTFUL, UNKNOWN, ITSELF = "yes", "no: within noise", "native not measured", "-"


@dataclass(frozen=True)
class Verdict:
    """What is known of a rule.

    Attributes:
        seconds, native: the least and the largest median of its choice, and of the library's own,
            at its sizes; None for the library where it was not measured.
        gain: over the library's own; None where that is unknown, or the choice.
        sure: whether the gain is told from noise: one of the words above.
    """

    seconds: tuple[float, float]
    native: tuple[float, float] | None
    gain: Gain | None
    sure: str

    @property
    def plain(self) -> dict[str, Any]:
        """For a file."""
        return {**asdict(self), "gain": self.gain and self.gain._asdict()}


def verdict(decision: Decision) -> Verdict:
    """What is known of a rule."""
    cells, segment = decision.table.cells, decision.segment
    mine = [cells[segment.choice][index] for index in segment.sizes]
    native = [cells[NATIVE][index] for index in segment.sizes] if NATIVE in cells else []
    comparisons = decision.table.comparisons
    gain = None
    if native and segment.choice != NATIVE:
        gain = comparisons.gain(segment.choice, NATIVE, segment.sizes)
    if any(cell.crowded for cell in mine if cell):
        sure = CROWDED
    elif comparisons.launches < 2:
        sure = ONE_LAUNCH
    elif segment.choice == NATIVE:
        sure = ITSELF
    elif gain is None:
        sure = UNKNOWN
    else:
        sure = TOLD if gain.told else DOUBTFUL
    return Verdict(_span(mine) or (0.0, 0.0), _span(native), gain, sure)


def _span(cells: list[Cell | None]) -> tuple[float, float] | None:
    times = [cell.seconds for cell in cells if cell]
    return (min(times), max(times)) if times else None
