"""What a report shows: measurements by section, and beside them what a model says.

Nothing is drawn here.  A section is a collective on a number of ranks, measured in one way; it has
a series for each choice of algorithm and parameters.  What takes no bytes, a barrier, has one
section for all numbers of ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpicoll.base.sizes import format_size
from mpicoll.bench import table
from mpicoll.bench.records import Point, Run
from mpicoll.bench.stats import summarise
from mpicoll.model.cells import Measured, by_launch, launch_of
from mpicoll.model.crossovers import Crossover
from mpicoll.report.advice import Advice
from mpicoll.report.names import position, short
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.tuning import NATIVE

if TYPE_CHECKING:
    from mpicoll.model.build import Found

#: Series that are drawn at first, besides the library's own.
SHOWN = 6


#: Value of bytes and seconds.
Value = Callable[[int, float], float]


def microseconds(nbytes: int, seconds: float) -> float:
    """The time itself."""
    return seconds * 1e6


def curve(points: Sequence[tuple[int, float]], value: Value) -> tuple[list[int], list[float]]:
    """Places and values of (bytes or ranks, seconds)."""
    return [at for at, _ in points], [value(at, seconds) for at, seconds in points]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median; where there are too few for one, from least to greatest."""
    summary = summarise(values)
    if summary.low is None or summary.high is None:
        return min(values), max(values)
    return summary.low, summary.high


class Conditions(NamedTuple):
    """How points of a section were measured; see :class:`mpicoll.bench.records.Point`."""

    type: str
    redop: str
    in_place: bool
    cache: str
    start: str
    skew: float
    device: str = "cpu"

    @property
    def words(self) -> str:
        """What differs from the usual, and the element type."""
        said = [self.type, self.redop] if self.type != "none" else []
        said = [word for word in said if word != "none"]
        said += ["in place"] * self.in_place + ["cold buffers"] * (self.cache != "warm")
        said += ["starts on synchronised clocks"] * (self.start != "barrier")
        said += [f"block lengths of 1 ∓ {self.skew:g} times their mean"] * bool(self.skew)
        said += ["buffers on GPUs"] * (self.device == "gpu")
        return ", ".join(said)


@dataclass(frozen=True)
class Mark(Measured):
    """Everything measured of one choice at one size on one number of ranks.

    Attributes:
        ranks, size: where; bytes of the whole vector.
        launches: seconds of each repetition, by launch.
    """

    ranks: int
    size: int
    launches: Mapping[str, tuple[float, ...]]

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the median: over repetitions of the only launch, or over launches.

        Where there are too few for one, from the least to the greatest.
        """
        values, *others = self.launches.values()
        return interval(tuple(self.medians.values()) if others else values)

    def bar(self, value: Value) -> tuple[float, float, float]:
        """A value, and how far its interval reaches below and above it."""
        middle = value(self.size, self.seconds)
        low, high = sorted(value(self.size, end) for end in self.interval)
        return middle, max(0.0, middle - low), max(0.0, high - middle)

    def raw(self, most: int) -> list[float]:
        """Repetitions, ascending: all, or so many of them, evenly by rank with both ends.

        None of a single one, which is the median.
        """
        ordered = sorted(chain(*self.launches.values()))
        if len(ordered) <= most:
            return ordered if len(ordered) > 1 else []
        return [ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most)]


@dataclass(frozen=True)
class Series:
    """One choice of a section.

    Attributes:
        choice: algorithm and parameters.
        marks: what was measured, ascending.
        line: what the model says, (ranks or bytes, seconds); empty where it says nothing.
        residuals: (ranks or bytes, predicted / measured - 1).
    """

    choice: str
    marks: tuple[Mark, ...]
    line: tuple[tuple[int, float], ...] = ()
    residuals: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Section:
    """A collective on a number of ranks.

    Attributes:
        collective, kind: what was measured.
        ranks: number of ranks; 0: a section over numbers of ranks.
        factor: bus bandwidth is so many times size over time; 0: there is none to tell.
        points: for the table of numbers, in its order, with the names of their launches.
        series: the fastest one first, the library's own last; nothing of wrong results.
        shown: choices that are drawn at first.
        bound: (ranks or bytes, seconds) that no algorithm goes below by the model; may be empty.
        crossovers: where the fastest choice changes.
    """

    collective: str
    kind: Conditions
    ranks: int
    factor: float
    points: tuple[tuple[str, Point], ...]
    series: tuple[Series, ...]
    bound: tuple[tuple[int, float], ...] = ()
    crossovers: tuple[Crossover, ...] = ()

    @property
    def name(self) -> str:
        """For files, as allreduce-4-float32."""
        said = [self.collective, str(self.ranks or "ranks"), self.kind.type]
        return re.sub(r"[^\w.-]+", "-", "-".join(word for word in said if word != "none"))

    @property
    def shown(self) -> tuple[str, ...]:
        names = [series.choice for series in self.series]
        return (*names[:SHOWN], *(name for name in names[SHOWN:] if name == NATIVE))

    def at(self, mark: Mark) -> int:
        """Where a mark lies: at its bytes, or at its ranks."""
        return mark.size if self.ranks else mark.ranks

    @property
    def measured(self) -> list[int]:
        """Where its marks lie, ascending."""
        return sorted({self.at(mark) for one in self.series for mark in one.marks})

    @property
    def axis(self) -> str:
        """What they lie along, in words."""
        return "size of the whole vector [B]" if self.ranks else "number of ranks"

    @property
    def ticks(self) -> list[str]:
        """A label for each place where marks lie; where there are many, for every so many."""
        if not self.ranks:
            return [*map(str, self.measured)]
        every = -(-len(self.measured) // 7)
        return [format_size(n) if i % every == 0 else "" for i, n in enumerate(self.measured)]

    def bandwidth(self, nbytes: int, seconds: float) -> float:
        """Bus bandwidth in GB/s."""
        return nbytes * self.factor / seconds / 1e9


class Ratio(NamedTuple):
    """How many times as fast as the library's own a choice is.

    Attributes:
        at: bytes or ranks, as :meth:`Section.at` has them.
        middle: the median over launches; above 1 the choice is the faster one.
        low, high: its interval, over launches.  With a single launch it goes as far as the
            intervals of both times allow.
    """

    at: int
    middle: float
    low: float
    high: float


def over_native(section: Section, series: Series) -> list[Ratio]:
    """A choice over the library's own, wherever both were measured; of that itself nothing."""
    if series.choice == NATIVE:
        return []
    own = (one.marks for one in section.series if one.choice == NATIVE)
    native = {(mark.ranks, mark.size): mark for marks in own for mark in marks}
    found = []
    for mark in series.marks:
        other = native.get((mark.ranks, mark.size))
        if other is None:
            continue
        both = [name for name in mark.medians if name in other.medians]
        ratios = [other.medians[name] / mark.medians[name] for name in both]
        if len(ratios) > 1:
            found.append(Ratio(section.at(mark), float(np.median(ratios)), *interval(ratios)))
        else:
            (low, high), (least, most) = mark.interval, other.interval
            middle = other.seconds / mark.seconds
            found.append(Ratio(section.at(mark), middle, least / high, most / low))
    return found


class Square(NamedTuple):
    """The best choice for a size and a number of ranks.

    Attributes:
        best: the fastest choice.
        default: what the built-in table chooses among those measured.
        regret: time of the default over that of the best, less one.
        tested: whether regret is timed on other launches than those that say what is best.
    """

    best: str
    default: str
    regret: float
    tested: bool


@dataclass(frozen=True)
class Map:
    """The best choices of a collective.

    Attributes:
        collective: its name.
        near: whether ranks shared memory.
        sizes: bytes of the columns, the least and the most of each.
        rows: squares by number of ranks; None where nothing was measured.
    """

    collective: str
    near: bool
    sizes: tuple[tuple[int, int], ...]
    rows: Mapping[int, tuple[Square | None, ...]]


@dataclass(frozen=True)
class Content:
    """All of a report.

    Attributes:
        runs: where it comes from.
        sections: in the order of the report.
        maps: of each collective.
        found: the model and what it is worth; None without one.
        advice: what to choose, by what was measured.
        noise: spread of identical launches; None with a single one.
        remarks: what the reader should know.
    """

    runs: Sequence[Run]
    sections: tuple[Section, ...]
    maps: tuple[Map, ...] = ()
    found: Found | None = None
    advice: tuple[Advice, ...] = ()
    noise: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def collectives(self) -> tuple[str, ...]:
        """Their names, in the order of the report."""
        return tuple(dict.fromkeys(section.collective for section in self.sections))

    def choices(self, collective: str) -> tuple[str, ...]:
        """All that were measured of a collective; first what is the fastest somewhere."""
        maps = [one for one in self.maps if one.collective == collective]
        best = [s.best for one in maps for row in one.rows.values() for s in row if s]
        here = [section for section in self.sections if section.collective == collective]
        return tuple(dict.fromkeys([*best, *(s.choice for one in here for s in one.series)]))


Key = tuple[str, int, Conditions]


def key_of(point: Point) -> Key:
    """The section of a point: its collective, ranks and kind."""
    how = point.in_place, point.cache, point.start, point.skew, point.device
    kind = Conditions(point.type, point.redop, *how)
    return point.collective, point.ranks if point.size else 0, kind


def sections(runs: Sequence[Run]) -> dict[Key, Section]:
    """What was measured, in the order of the catalogue.

    Raises:
        ValueError: a collective is unknown.
    """
    launch = launch_of(runs)
    run_of = {id(point): launch[run.name] for run in runs for point in run.points}
    groups: dict[Key, list[tuple[str, Point]]] = {}
    points = table.ordered(point for run in runs for point in run.points)
    for point in sorted(points, key=lambda point: position(point.base)):
        groups.setdefault(key_of(point), []).append((run_of[id(point)], point))
    return {key: _section(key, points) for key, points in groups.items()}


def _section(key: Key, points: Sequence[tuple[str, Point]]) -> Section:
    name, ranks, kind = key
    times = by_launch(
        ((short(point.base, point.choice), point.ranks, point.size), launch, point)
        for launch, point in points
        if not point.wrong
    )
    marks: dict[str, list[Mark]] = {}
    for (choice, here, nbytes), launches in times.items():
        marks.setdefault(choice, []).append(Mark(here, nbytes, launches))
    series = [
        Series(choice, tuple(sorted(mine, key=lambda mark: (mark.ranks, mark.size))))
        for choice, mine in marks.items()
    ]
    first = points[0][1]
    crowded = any(point.oversubscribed for _, point in points)
    factor = COLLECTIVES[first.base].bus_factor(ranks) if ranks and not crowded else 0.0
    return Section(name, kind, ranks, factor, tuple(points), tuple(_fastest_first(series)))


def _fastest_first(series: Sequence[Series]) -> list[Series]:
    """Series by how far they are behind the fastest, on average; the library's own last."""
    best: dict[tuple[int, int], float] = {}
    for one in series:
        for mark in one.marks:
            where = mark.ranks, mark.size
            best[where] = min(best.get(where, math.inf), mark.seconds)

    def behind(one: Series) -> float:
        ratios = [mark.seconds / best[mark.ranks, mark.size] for mark in one.marks]
        return float(np.mean(np.log(ratios)))

    return sorted(series, key=lambda one: (one.choice == NATIVE, behind(one)))
