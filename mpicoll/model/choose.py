"""Choices from measurements or a model: rules, and what a wrong choice costs.

Everything works on tables: for one collective on one number of ranks the times of each choice at
the measured sizes.  Between sizes times are taken as straight lines in log-log scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mpicoll import tuning
from mpicoll.model.cells import Array, Cell, launches
from mpicoll.model.told import LEAST_GAIN, Comparisons, Segment
from mpicoll.simulate.costs import CostModel
from mpicoll.tuning import NATIVE, Choice
from mpicoll.tuning.predict import predict

#: Candidates of a rule, besides the library's own.
MOST_CANDIDATES = 4


class PointOfUse(NamedTuple):
    """Where a table holds."""

    collective: str
    ranks: int
    near: bool


@dataclass(frozen=True)
class Table:
    """Times of the choices of one collective on one number of ranks.

    Attributes:
        place: where it holds.
        sizes: bytes of the whole vector, ascending.
        cells: by choice, one for each size; None where it was not measured.
    """

    place: PointOfUse
    sizes: tuple[int, ...]
    cells: Mapping[str, tuple[Cell | None, ...]]

    def widened(self, factor: float) -> Table:
        """The table with a size less and one more, so far apart; nothing is measured of these."""

        def moved(cell: Cell | None, nbytes: int) -> Cell | None:
            return None if cell is None else replace(cell, nbytes=nbytes, launches={})

        low, high = round(self.sizes[0] / factor), round(self.sizes[-1] * factor)
        rows = {
            choice: (moved(row[0], low), *row, moved(row[-1], high))
            for choice, row in self.cells.items()
        }
        return Table(self.place, (low, *self.sizes, high), rows)

    @cached_property
    def comparisons(self) -> Comparisons:
        """The choices held against each other."""
        return Comparisons(self.cells, len(self.sizes))

    def times(self, seconds: Callable[[Cell], float]) -> dict[str, Array]:
        """Seconds of each choice at each size; infinite where it was not measured."""
        return {
            choice: np.array([math.inf if cell is None else seconds(cell) for cell in row])
            for choice, row in self.cells.items()
        }


def tables(cells: Sequence[Cell]) -> list[Table]:
    """The tables that some cells make."""
    places: dict[PointOfUse, dict[str, dict[int, Cell]]] = {}
    for cell in cells:
        place = PointOfUse(cell.collective, cell.ranks, cell.near)
        places.setdefault(place, {}).setdefault(cell.choice, {})[cell.nbytes] = cell
    found = []
    for place, choices in places.items():
        sizes = tuple(sorted({nbytes for row in choices.values() for nbytes in row}))
        rows = {c: tuple(map(row.get, sizes)) for c, row in choices.items()}
        found.append(Table(place, sizes, rows))
    return found


def modelled(model: CostModel) -> Callable[[Cell], float]:
    """What a model predicts for a cell; for what it cannot predict, infinite."""

    def seconds(cell: Cell) -> float:
        choice = Choice(cell.algorithm, cell.parameters)
        call = cell.ranks, cell.nbytes, max(cell.root, 0), cell.nodes
        try:
            return predict(model, cell.collective, choice, *call).seconds
        except ValueError:
            return math.inf

    return seconds


# --- who is fastest where -------------------------------------------------------------------------


def crossing(sizes: Sequence[int], ratios: Array, index: int) -> float:
    """Where the logarithm of a ratio of times meets nothing between two neighbouring sizes."""
    low, high = max(sizes[index], 1), max(sizes[index + 1], 1)
    before, after = ratios[index], ratios[index + 1]
    if not (math.isfinite(before) and math.isfinite(after)) or before == after:
        return math.sqrt(low * high)
    share = min(max(before / (before - after), 0.0), 1.0)
    return float(low * (high / low) ** share)


def winners(times: Mapping[str, Array], gain: float = 0.0) -> list[str]:
    """The fastest choice at each size; the one before is kept unless another gains more."""
    found: list[str] = []
    for index in range(len(next(iter(times.values())))):
        best = min(times, key=lambda choice: times[choice][index])
        if found and times[found[-1]][index] <= times[best][index] * (1 + gain):
            best = found[-1]
        found.append(best)
    return found


def told_by_model(times: Mapping[str, Array]) -> list[Segment]:
    """The sizes with the choice that is fastest, of predicted times."""
    best = winners(times, LEAST_GAIN)
    starts = [i for i in range(len(best)) if not i or best[i] != best[i - 1]]
    ends = [*starts[1:], len(best)]
    return [Segment(start, end, best[start]) for start, end in zip(starts, ends, strict=True)]


def rules(table: Table, times: Mapping[str, Array], segments: Sequence[Segment]) -> list[Any]:
    """The rules of a tuning file for a table whose sizes have choices."""
    found = []
    before = None
    for segment in segments:
        start, end, best = segment
        first = 0
        if before is not None:
            ratios = np.log(times[before]) - np.log(times[best])
            first = math.ceil(crossing(table.sizes, ratios, start - 1))
        before = best
        others = sorted(
            (c for c in times if c != best and np.isfinite(times[c][start:end]).all()),
            key=lambda choice: float(np.log(times[choice][start:end]).sum()),
        )
        named = [best, *others[: MOST_CANDIDATES - 1]]
        if NATIVE not in named:
            named.append(NATIVE)
        rule = {"ranks": table.place.ranks, "nbytes": first, "near": table.place.near}
        found.append({**rule, "algorithms": named})
    return found


def all_rules(found: Sequence[Table], seconds: Callable[[Cell], float]) -> dict[str, list[Any]]:
    """The rules of a tuning file for some tables, by predicted times."""
    made: dict[str, list[Any]] = {}
    for table in _of_several_ranks(found):
        times = table.times(seconds)
        written = rules(table, times, told_by_model(times))
        made.setdefault(table.place.collective, []).extend(written)
    return made


class Decision(NamedTuple):
    """A rule that measurements make, the sizes that it is for, and where they are."""

    table: Table
    segment: Segment
    rule: Mapping[str, Any]


def decisions(found: Sequence[Table]) -> list[Decision]:
    """The rules that the measurements of some tables make: every change of choice is told."""
    made = []
    for table in _of_several_ranks(found):
        segments = table.comparisons.segments()
        written = rules(table, table.times(lambda cell: cell.seconds), segments)
        made += [Decision(table, *both) for both in zip(segments, written, strict=True)]
    return made


def by_collective(made: Sequence[Decision]) -> dict[str, list[Any]]:
    """Rules as a tuning file has them."""
    found: dict[str, list[Any]] = {}
    for decision in made:
        found.setdefault(decision.table.place.collective, []).append(decision.rule)
    return found


def _of_several_ranks(found: Sequence[Table]) -> list[Table]:
    return [t for t in sorted(found, key=lambda table: table.place) if t.place.ranks > 1]


# --- regret ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regret:
    """What a way of choosing costs: t(pick) / t(best) - 1, on launches that picked neither.

    Attributes:
        n: calls that were compared.
        mean, worst: of them.
        where: the call of the worst, in words.
    """

    n: int
    mean: float
    worst: float
    where: str


#: Gives the choice, in words, for a table and the index of a size; None where it has none.
Pick = Callable[[Table, int], "str | None"]


def regrets(
    cells: Sequence[Cell], ways: Mapping[str, Callable[[Sequence[Cell]], Pick]]
) -> dict[str, Regret]:
    """What some ways of choosing cost; nothing with a single launch.

    Half of the launches pick, and say which is the best; both are timed on the other half.  Then
    the halves change places.

    Args:
        cells: what was measured.
        ways: make a way of choosing from cells.
    """
    names = launches(cells)
    if len(names) < 2:
        return {}
    found: dict[str, list[tuple[float, str]]] = {way: [] for way in ways}
    for half in (names[0::2], names[1::2]):
        picking = [kept for cell in cells if (kept := cell.among(half))]
        timing = {kept: kept for cell in cells if (kept := cell.among({*names} - {*half}))}
        made = {way: make(picking) for way, make in ways.items()}
        for table in tables(picking):
            if table.place.ranks < 2:
                continue
            best = winners(table.times(lambda cell: cell.seconds))
            for index, nbytes in enumerate(table.sizes):
                against = _timed(table, best[index], index, timing)
                for way, pick in made.items():
                    chosen = pick(table, index)
                    mine = chosen and _timed(table, chosen, index, timing)
                    if mine and against:
                        words = (
                            f"{table.place.collective} of {nbytes} bytes, P = {table.place.ranks}: "
                            f"{chosen} instead of {best[index]}"
                        )
                        found[way].append((mine / against - 1, words))
    return {
        way: Regret(len(values), float(np.mean([v for v, _ in values])), *max(values))
        for way, values in found.items()
        if values
    }


def _timed(table: Table, choice: str, index: int, timing: Mapping[Cell, Cell]) -> float | None:
    row = table.cells.get(choice)
    cell = row[index] if row else None
    other = timing.get(cell) if cell else None
    return other.seconds if other else None


def by_times(seconds: Callable[[Cell], float]) -> Pick:
    """Choose the smallest time."""

    def pick(table: Table, index: int) -> str:
        times = table.times(seconds)
        return min(times, key=lambda choice: times[choice][index])

    return pick


def by_rules(written: Mapping[str, Sequence[Mapping[str, Any]]]) -> Pick:
    """Choose as a communicator does with a tuning file."""
    table_of = tuning.table_from(written, "", tuning.FILE)
    return by_table(table_of)


def by_table(written: tuning.Table) -> Pick:
    """Choose as a communicator does with some rules, among what was measured."""

    def pick(table: Table, index: int) -> str | None:
        collective, ranks, near = table.place
        here = tuning.for_layout(written, near)

        def serves(choice: Choice) -> bool:
            row = table.cells.get(choice.words)
            return row is not None and row[index] is not None

        try:
            return tuning.choose(collective, ranks, table.sizes[index], here, serves).words
        except LookupError:
            return None

    return pick


def by_library(table: Table, index: int) -> str:
    """Always choose the library's own."""
    return NATIVE
