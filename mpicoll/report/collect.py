"""Everything that a report shows, from runs and perhaps a model of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from mpicoll import tuning
from mpicoll.bench.records import Run
from mpicoll.model import choose
from mpicoll.model.cells import Cell, is_native, noise, usable
from mpicoll.model.choose import Table
from mpicoll.report.advice import advice
from mpicoll.report.content import Content, Map, Section, Series, Square, key_of, sections
from mpicoll.report.names import short
from mpicoll.schedule.collectives import collective as definition
from mpicoll.simulate.costs import INTER, INTRA, Costs

if TYPE_CHECKING:
    from mpicoll.model.build import Found

#: From one size measured to the next, a line of the model has so many steps.
_STEPS = 3

#: Seconds for a number of ranks and bytes; None where the model says nothing.
Says = Callable[[int, int], "float | None"]


def collect(
    runs: Sequence[Run],
    cells: Sequence[Cell] = (),
    found: Found | None = None,
    *,
    oversubscribed: bool = False,
    remarks: Iterable[str] = (),
) -> Content:
    """Everything that a report of some runs shows.

    Args:
        runs: what was measured.
        cells: of it what can be put together; see :func:`mpicoll.model.cells.gather`.
        found: a model of it, if there is one.
        oversubscribed: as the cells were gathered.
        remarks: what the reader should know, besides.

    Raises:
        ValueError: a collective is unknown.
    """
    measured = sections(runs)
    if found is not None:
        alike, _ = usable(runs, oversubscribed=oversubscribed)
        for key in dict.fromkeys(key_of(point) for _, point in alike):
            measured[key] = with_model(measured[key], cells, found)
    told = (*remarks, *(found.remarks if found else ()))
    shown = tuple(measured.values()), tuple(maps(cells)), found, tuple(advice(cells))
    return Content(runs, *shown, noise(cells), told)


def with_model(section: Section, cells: Sequence[Cell], found: Found) -> Section:
    """A section with what a model says of it."""
    here: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        if cell.collective == section.collective and section.ranks in (0, cell.ranks):
            here.setdefault(short(cell.collective, cell.choice), {})[cell.ranks] = cell
    series = tuple(
        _with_line(section, one, _says(found, here[one.choice])) if one.choice in here else one
        for one in section.series
    )
    near = {cell.ranks: len(set(cell.nodes)) == 1 for row in here.values() for cell in row.values()}
    crossovers = tuple(
        replace(
            crossover,
            before=short(section.collective, crossover.before),
            after=short(section.collective, crossover.after),
        )
        for crossover in found.crossovers
        if crossover.told
        and (crossover.place.collective, crossover.place.ranks)
        == (section.collective, section.ranks)
    )
    bound = tuple(_bound(section, found.model.general, near))
    return replace(section, series=series, bound=bound, crossovers=crossovers)


def _says(found: Found, row: dict[int, Cell]) -> Says:
    predicted = choose.modelled(found.model)

    def says(ranks: int, nbytes: int) -> float | None:
        cell = row.get(ranks)
        # A curve through the measurements says nothing new, and one rank sends no message.
        if cell is None or is_native(cell) or ranks < 2:
            return None
        seconds = predicted(replace(cell, nbytes=nbytes))
        return seconds if math.isfinite(seconds) else None

    return says


def _with_line(section: Section, series: Series, says: Says) -> Series:
    residuals = []
    for mark in series.marks:
        seconds = says(mark.ranks, mark.size)
        if seconds is not None:
            residuals.append((section.at(mark), seconds / mark.seconds - 1))
    line = []
    for ranks, nbytes in _places(section, [section.at(mark) for mark in series.marks]):
        seconds = says(ranks, nbytes)
        if seconds is not None:
            line.append((nbytes if section.ranks else ranks, seconds))
    return replace(series, line=tuple(line), residuals=tuple(residuals))


def _places(section: Section, measured: Sequence[int]) -> list[tuple[int, int]]:
    """Ranks and bytes of the points of a line: those measured, and sizes in between."""
    if not section.ranks:
        return [(ranks, 0) for ranks in measured]
    sizes = {*measured}
    for low, high in pairwise(sorted(measured)):
        sizes |= {round(low * (high / low) ** (i / _STEPS)) for i in range(1, _STEPS)}
    return [(section.ranks, nbytes) for nbytes in sorted(sizes)]


def _bound(section: Section, costs: Costs, near: dict[int, bool]) -> Iterable[tuple[int, float]]:
    """What no algorithm goes below: the collective's bound with the least costs of a message."""
    bound = definition(section.points[0][1].base).bound
    for ranks, nbytes in _places(section, section.measured):
        if ranks < 2:
            continue
        link = INTRA if near.get(ranks, True) else INTER
        pieces = costs.links.get(link) or next(iter(costs.links.values()))
        alpha = costs.step + min(piece.alpha for piece in pieces)
        beta = min(piece.beta for piece in pieces)
        seconds = costs.call + bound(ranks, nbytes, alpha, beta, costs.gamma)
        if seconds:
            yield (nbytes if section.ranks else ranks), seconds


# --- who is fastest where -------------------------------------------------------------------------


def maps(cells: Sequence[Cell]) -> list[Map]:
    """The best choice for each size and number of ranks, and what the default choice costs."""
    rows: dict[tuple[str, bool], dict[int, dict[int, Square]]] = {}
    for table in choose.tables(cells):
        if table.place.ranks < 2 or table.sizes == (0,):
            continue
        squares = {table.sizes[index]: square for index, square in _squares(table)}
        rows.setdefault((table.place.collective, table.place.near), {})[table.place.ranks] = squares
    found = []
    for (collective, near), measured in rows.items():
        columns = _columns([sorted(row) for row in measured.values()])
        aligned = {
            ranks: tuple(
                next((row[nbytes] for nbytes in row if least <= nbytes <= most), None)
                for least, most in columns
            )
            for ranks, row in sorted(measured.items())
        }
        found.append(Map(collective, near, columns, aligned))
    return found


def _columns(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """The sizes of each column of a map.

    A size that was asked for is rounded to whole elements of P equal blocks, so it differs a little
    from row to row; where it is clear which ones belong together, they share a column.
    """
    if len({len(row) for row in rows}) == 1:
        columns = tuple((min(sizes), max(sizes)) for sizes in zip(*rows, strict=True))
        if all(left[1] < right[0] for left, right in pairwise(columns)):
            return columns
    return tuple((nbytes, nbytes) for nbytes in sorted({*chain(*rows)}))


def _squares(table: Table) -> Iterator[tuple[int, Square]]:
    """A square for the index of each size of a table."""
    default = choose.by_table(tuning.BUILTIN)
    times = table.times(lambda cell: cell.seconds)
    for index, best in enumerate(choose.winners(times)):
        picked = default(table, index)
        if picked is None:
            continue
        column = [cell for row in table.cells.values() if (cell := row[index])]
        tested = choose.regrets(column, {"default": lambda _: default}).get("default")
        regret = tested.mean if tested else float(times[picked][index] / times[best][index] - 1)
        best, picked = (short(table.place.collective, words) for words in (best, picked))
        yield index, Square(best, picked, regret, tested is not None)
