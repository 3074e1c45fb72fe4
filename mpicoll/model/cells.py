"""Measurements put together: one cell for each choice, number of ranks and size.

A launch is a factor: what is compared, fitted and resampled are medians of launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mpicoll.base.wording import plural
from mpicoll.bench.records import Point, Run
from mpicoll.bench.runs import nodes_of
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.schedule.parameters import Value
from mpicoll.simulate.costs import Costs
from mpicoll.simulate.critical_path import Path, critical_path
from mpicoll.tuning import NATIVE, Choice, check, placed

Array = npt.NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)


class Measured:
    """Seconds of each repetition by launch, in ``launches``."""

    launches: Mapping[str, tuple[float, ...]]

    @cached_property
    def medians(self) -> dict[str, float]:
        """Median of each launch."""
        return {name: float(np.median(times)) for name, times in self.launches.items()}

    @cached_property
    def seconds(self) -> float:
        """Median of the medians of the launches."""
        return float(np.median(list(self.medians.values())))


@dataclass(frozen=True)
class Cell(Measured):
    """Everything measured of one choice at one size on one number of ranks.

    Attributes:
        collective, algorithm, parameters: what was measured, defaults filled in.
        ranks, nbytes, root: where; bytes of the whole vector.
        nodes: the node of each rank.
        near: whether all ranks shared memory.
        crowded: whether there were more ranks than cores.
        launches: seconds of each repetition, by the name of the launch.
        under: the costs under which its path is found; None: see
        :func:`mpicoll.simulate.critical_path.reference`.
    """

    collective: str
    algorithm: str
    parameters: tuple[tuple[str, Value], ...]
    ranks: int
    nbytes: int
    root: int
    nodes: tuple[int, ...]
    near: bool
    launches: Mapping[str, tuple[float, ...]] = field(compare=False, default_factory=dict)
    under: Costs | None = field(compare=False, default=None)
    crowded: bool = field(compare=False, default=False)

    @cached_property
    def choice(self) -> str:
        """Algorithm and parameters, as a tuning file has them."""
        return Choice(self.algorithm, self.parameters).words

    @cached_property
    def path(self) -> Path:
        """What the time is made of."""
        choice = placed(self.collective, Choice(self.algorithm, self.parameters), self.nodes)
        return critical_path(
            self.collective,
            self.algorithm,
            self.ranks,
            self.nbytes,
            choice.parameters,
            max(self.root, 0),
            self.nodes if len(set(self.nodes)) > 1 else (),
            self.under,
        )

    def among(self, launches: Iterable[str]) -> Cell | None:
        """What some launches alone have measured; None if nothing."""
        kept = {name: self.launches[name] for name in launches if name in self.launches}
        if not kept:
            return None
        return replace(self, launches=kept)


@dataclass(frozen=True)
class Left:
    """Points that were not used.

    Attributes:
        reasons: how many for each reason.
    """

    reasons: Mapping[str, int]

    def words(self) -> list[str]:
        """A line for each reason."""
        return [
            f"{plural(count, 'point')} left out: {reason}" for reason, count in self.reasons.items()
        ]


def usable(
    runs: Sequence[Run], *, oversubscribed: bool = False
) -> tuple[list[tuple[Run, Point]], Left]:
    """The points of some runs that can be put together.

    Points that would mix what is not alike are left out and counted: wrong results, more ranks than
    cores unless ``oversubscribed``, blocks of any length, cold caches, in place, buffers on GPUs,
    and all but the most frequent element type, operator and kind of start of a collective.
    """
    reasons: Counter[str] = Counter()
    kept: list[tuple[Run, Point]] = []
    for run in runs:
        for point in run.points:
            reason = _reason(point, oversubscribed)
            if reason:
                reasons[reason] += 1
            else:
                kept.append((run, point))
    usual = _usual(point for _, point in kept)
    alike: list[tuple[Run, Point]] = []
    for run, point in kept:
        if _kind(point) == usual[point.collective]:
            alike.append((run, point))
        else:
            words = ", ".join(filter(None, usual[point.collective]))
            reasons[f"{point.collective} is mostly measured with {words}"] += 1
    return alike, Left(reasons)


def gather(runs: Sequence[Run], *, oversubscribed: bool = False) -> tuple[list[Cell], Left]:
    """Put the points of some runs together, those that :func:`usable` keeps.

    Raises:
        ValueError: nothing is left; the message says why.
    """
    alike, left = usable(runs, oversubscribed=oversubscribed)
    if not alike:
        raise ValueError(f"no point can be used: {'; '.join(left.words())}")
    launch = launch_of(runs)
    times = by_launch((_cell(run, point), launch[run.name], point) for run, point in alike)
    cells = [replace(cell, launches=measured) for cell, measured in times.items()]
    return sorted(cells, key=_order), left


def by_launch(
    points: Iterable[tuple[Key, str, Point]],
) -> dict[Key, dict[str, tuple[float, ...]]]:
    """Seconds of each repetition by what was measured, and by launch."""
    times: dict[Key, dict[str, list[float]]] = {}
    for key, launch, point in points:
        times.setdefault(key, {}).setdefault(launch, []).extend(point.times)
    return {
        key: {launch: tuple(values) for launch, values in measured.items()}
        for key, measured in times.items()
    }


def launch_of(runs: Sequence[Run]) -> dict[str, str]:
    """The launch of each run, by name: a run that goes on with another one is of its launch."""
    before = {run.name: str(run.facts.get("resumes", "")) for run in runs}
    found = {}
    for name in before:
        first = name
        while before[first] in before:
            first = before[first]
        found[name] = first
    return found


def _cell(run: Run, point: Point) -> Cell:
    """The cell that a point belongs to, still empty."""
    nodes = nodes_of(run.facts, point.ranks)
    messages = run.facts.get("environment", {}).get("MPICOLL_TRANSPORT") == "mpi"
    return Cell(
        point.collective,
        point.algorithm,
        check(point.collective, point.algorithm, point.parameters),
        point.ranks,
        point.size,
        point.root,
        nodes,
        len(set(nodes)) == 1 and not messages,
        crowded=point.oversubscribed,
    )


def _order(cell: Cell) -> tuple[Any, ...]:
    position = list(COLLECTIVES).index(cell.collective)
    return position, cell.choice, cell.ranks, cell.nbytes, cell.root, cell.nodes


def _reason(point: Point, oversubscribed: bool) -> str:
    """Why a point cannot be used; "" if it can."""
    if point.wrong:
        return "their results were wrong"
    if point.oversubscribed and not oversubscribed:
        return "they had more ranks than cores; --oversubscribed uses them nevertheless"
    if point.collective not in COLLECTIVES:
        return "blocks of any length have no model"
    if point.cache != "warm":
        return "their caches were cold"
    if point.in_place:
        return "they were in place"
    if point.device != "cpu":
        return "their buffers were on GPUs"
    try:
        check(point.collective, point.algorithm, point.parameters)
    except ValueError as error:
        return str(error)
    return ""


def _kind(point: Point) -> tuple[str, str, str]:
    return point.type, "" if point.redop == "none" else point.redop, point.start


def _usual(points: Iterable[Point]) -> dict[str, tuple[str, str, str]]:
    """The most frequent kind of each collective."""
    kinds: dict[str, Counter[tuple[str, str, str]]] = {}
    for point in points:
        kinds.setdefault(point.collective, Counter())[_kind(point)] += 1
    return {collective: counted.most_common(1)[0][0] for collective, counted in kinds.items()}


def launches(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The names of all launches, in the order they come in."""
    return tuple(dict.fromkeys(name for cell in cells for name in cell.launches))


def by_choice(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of each collective and choice."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.collective, cell.choice), []).append(cell)
    return groups


def is_native(cell: Cell) -> bool:
    """Whether it is the MPI library's own collective, whose schedule is unknown."""
    return cell.algorithm == NATIVE


def noise(cells: Iterable[Cell]) -> float | None:
    """Spread of identical launches: the median over cells of (most - least) / median."""
    spreads = [
        (max(values) - min(values)) / float(np.median(values))
        for values in (list(cell.medians.values()) for cell in cells)
        if len(values) > 1
    ]
    return float(np.median(spreads)) if spreads else None


class Resampled:
    """Medians of cells as they would be had launches and repetitions come out differently.

    Launches are drawn with replacement, the same ones for all cells of a replicate, and within each
    launch its repetitions.

    Args:
        cells: what is resampled.
        count: number of replicates.
        seed: of the drawing.
    """

    def __init__(self, cells: Sequence[Cell], count: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        names = launches(cells)
        self._drawn = generator.integers(0, len(names), (count, len(names)))
        self._position = {name: number for number, name in enumerate(names)}
        self._medians = {cell: self._of(cell, count, generator) for cell in cells}
        self.count = count

    def _of(self, cell: Cell, count: int, generator: np.random.Generator) -> Array:
        """One median for each replicate."""
        table = np.full((count, len(self._position)), np.nan)
        for name, times in cell.launches.items():
            values = np.asarray(times)
            picked = generator.integers(0, len(values), (count, len(values)))
            table[:, self._position[name]] = np.median(values[picked], axis=1)
        chosen = np.take_along_axis(table, self._drawn, axis=1)
        # A replicate may have drawn none of the launches that measured this cell.
        empty = np.isnan(chosen).all(axis=1)
        chosen[empty] = table[empty]
        return np.asarray(np.nanmedian(chosen, axis=1))

    def seconds(self, cell: Cell) -> Array:
        """The medians of a cell."""
        return self._medians[cell]
