"""The table of a sweep: its columns, units and rows, for every format that prints it.

The columns and their order follow nccl-tests, with the interval and the number of repetitions
added. ``algbw`` is the size over the time; ``busbw`` corrects it for the collective, so that it
can be compared with the speed of a link whatever the number of ranks.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mpicoll.base.sizes import format_size
from mpicoll.base.wording import plural
from mpicoll.bench import environment
from mpicoll.bench.records import Point
from mpicoll.bench.stats import Summary
from mpicoll.schedule.collectives import collective


class Column(NamedTuple):
    """A column: its name, the text of a cell, its unit (empty if none), whether it has numbers."""

    name: str
    cell: Callable[[Point, Summary], str]
    unit: str = ""
    number: bool = True


BATCH_MARK = "*"
OVERSUBSCRIBED_MARK = "!"


def bandwidths(point: Point, summary: Summary) -> tuple[float, float] | tuple[None, None]:
    """Algorithm and bus bandwidth in GB/s (1e9 bytes a second), from the median time.

    None where ranks shared cores: what such times show is the sharing.
    """
    if point.oversubscribed:
        return None, None
    time = summary.median
    algbw = point.size / time / 1e9 if time else 0.0
    return algbw, algbw * collective(point.base).bus_factor(point.ranks)


def microseconds(seconds: float | None) -> str:
    """A time in microseconds with what its size deserves of decimals; ``-`` for none."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 10000 else f"{value:.0f}"


def _gigabytes(value: float | None) -> str:
    """A bandwidth with three digits that say something, and at least three decimals."""
    if value is None:
        return "-"
    small = -math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{min(9, max(3, small + 2))}f}"


def _slowest(ranks: Sequence[int]) -> str:
    """The rank that was the slowest most often, and how often."""
    rank, times = Counter(ranks).most_common(1)[0]
    return f"{rank} ({100 * times // len(ranks)} %)"


#: The number of repetitions carries a star where each was a batch of calls, that of ranks an
#: exclamation mark where there were not enough cores for them.
COLUMNS = (
    Column("size", lambda p, s: format_size(p.size), "B"),
    Column("count", lambda p, s: str(p.count), "elements"),
    Column("type", lambda p, s: p.type, number=False),
    Column("redop", lambda p, s: p.redop, number=False),
    Column("root", lambda p, s: str(p.root)),
    Column("algo", lambda p, s: p.choice, number=False),
    Column("P", lambda p, s: f"{p.ranks}{OVERSUBSCRIBED_MARK * p.oversubscribed}", "ranks"),
    Column("time", lambda p, s: microseconds(s.median), "us"),
    Column("algbw", lambda p, s: _gigabytes(bandwidths(p, s)[0]), "GB/s"),
    Column("busbw", lambda p, s: _gigabytes(bandwidths(p, s)[1]), "GB/s"),
    Column("#wrong", lambda p, s: "N/A" if p.wrong is None else str(p.wrong)),
    Column("ci_lo", lambda p, s: microseconds(s.low), "us"),
    Column("ci_hi", lambda p, s: microseconds(s.high), "us"),
    Column("n", lambda p, s: f"{s.n}{BATCH_MARK * (p.batch > 1)}"),
)

#: Columns of the full table, after those.
MORE_COLUMNS = (
    Column("p95", lambda p, s: microseconds(s.p95), "us"),
    Column("p99", lambda p, s: microseconds(s.p99), "us"),
    Column("first", lambda p, s: microseconds(p.first), "us"),
    Column("batch", lambda p, s: str(p.batch), "calls"),
    Column("late", lambda p, s: str(p.late)),
    Column("slowest", lambda p, s: _slowest(p.slowest), "rank"),
    Column("stop", lambda p, s: p.stop, number=False),
)


#: Columns of the terminal that are left out where it is too narrow, the first to go first.
MINOR = (
    *("count", "root", "redop", "late", "stop", "batch", "first", "type", "n", "#wrong"),
    *("algbw", "p95", "slowest", "p99", "ci_lo", "ci_hi"),
)


def row(point: Point, columns: Iterable[Column] = COLUMNS) -> tuple[str, ...]:
    """The cells of a point."""
    summary = point.summary
    return tuple(column.cell(point, summary) for column in columns)


def manner(point: Point) -> str:
    """How the times of a point came about."""
    said = ["median of the slowest rank's time, 95 % interval", f"{point.cache} buffers"]
    said.append("in place" if point.in_place else "")
    said.append("" if point.start == "barrier" else "starts on synchronised clocks")
    said.append(f"block lengths of 1 -+ {point.skew:g} times their mean" if point.skew else "")
    said.append("buffers on GPUs" if point.device == "gpu" else "")
    return "; ".join(filter(None, said))


def ordered(points: Iterable[Point]) -> list[Point]:
    """Points by collective, ranks, type, size and algorithm; collectives as first met."""
    points = list(points)
    collectives = list(dict.fromkeys(p.collective for p in points))
    choices = sorted(
        {p.choice: p for p in points}.values(),
        key=lambda p: (p.algorithm == "native", p.algorithm, list(p.parameters.items())),
    )
    position = {p.choice: number for number, p in enumerate(choices)}
    return sorted(
        points,
        key=lambda p: (
            collectives.index(p.collective),
            p.ranks,
            p.type,
            p.size,
            position[p.choice],
        ),
    )


def warnings(facts: Mapping[str, Any], points: Iterable[Point]) -> list[str]:
    """What a reader must know before believing the numbers of a run."""
    points, said = list(points), []
    for ranks in sorted({p.ranks for p in points if p.oversubscribed}):
        where = [
            f"{plural(crowd, 'rank')} ran on {plural(cores, 'core')} of {host}"
            for host, crowd, cores in environment.crowded(facts, ranks)
        ]
        said.append(
            f"{', '.join(where) or f'{ranks} ranks ran on fewer cores'}: they waited for one "
            f"another's core. Times at P = {ranks} show how this machine shares its cores, not how "
            "fast the algorithms are."
        )
    wrong = sum(p.wrong or 0 for p in points)
    if wrong:
        said.append(f"the results have {plural(wrong, 'wrong element')}; see the column #wrong.")
    if any(p.wrong is None for p in points):
        said.append("Results were not checked for wrong elements.")
    return said


def notes(points: Iterable[Point]) -> list[str]:
    """What must be said beside the table for its marks and numbers to be read rightly."""
    points, said = list(points), []
    batches = sorted({p.batch for p in points if p.batch > 1})
    if batches:
        calls = f"{batches[0]}" if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
        said.append(f"{BATCH_MARK} each repetition is a batch of {calls} calls; time is per call.")
    short = sum(p.stop == "time" for p in points)
    if short:
        said.append(f"{short} of {plural(len(points), 'point')} ended by time, not by precision.")
    late = sum(p.late for p in points)
    if late:
        said.append(
            f"{plural(late, 'repetition')} began late on some rank, dropped and made again."
        )
    return said


def as_csv(points: Iterable[Point]) -> str:
    """The table as comma-separated values with numbers in full: bytes, seconds and GB/s."""
    lines = [*map(_csv_line, points)]
    out = io.StringIO()
    if lines:
        writer = csv.DictWriter(out, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return out.getvalue()


_UNIT = re.compile("_(bytes|s|GBps)$")

#: Columns of these values: what a point has by that name, with its unit after it.
_VALUES = (
    *("collective", "size_bytes", "count", "type", "redop", "root", "algo", "P", "time_s"),
    *("algbw_GBps", "busbw_GBps", "wrong", "ci_lo_s", "ci_hi_s", "n", "batch", "stop"),
    *("oversubscribed", "p95_s", "p99_s", "first_s", "launch", "cache", "start", "late"),
    *("in_place", "skew", "device"),
)


def _csv_line(point: Point) -> dict[str, Any]:
    summary, values = point.summary, point.as_dict()
    values |= {"algo": point.choice, "P": point.ranks}
    values["algbw"], values["busbw"] = bandwidths(point, summary)
    for name in ("oversubscribed", "in_place"):
        values[name] = int(values[name])
    return {name: values[_UNIT.sub("", name)] for name in _VALUES}
