"""The table of a sweep: its columns, units and rows, for every format that prints it.

The columns and their order follow nccl-tests, with the interval and the number of repetitions
added. ``algbw`` is the size over the time; ``busbw`` corrects it for the collective, so that it
can be compared with the speed of a link whatever the number of ranks.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mpicoll.base.sizes import format_size
from mpicoll.base.wording import plural
from mpicoll.bench import environment
from mpicoll.bench.records import Point
from mpicoll.schedule.collectives import collective


class Column(NamedTuple):
    """A column: its name, its unit (empty if none), and whether it holds numbers."""

    name: str
    unit: str = ""
    number: bool = True


COLUMNS = (
    Column("size", "B"),
    Column("count", "elements"),
    Column("type", number=False),
    Column("redop", number=False),
    Column("root"),
    Column("algo", number=False),
    Column("P", "ranks"),
    Column("time", "us"),
    Column("algbw", "GB/s"),
    Column("busbw", "GB/s"),
    Column("#wrong"),
    Column("ci_lo", "us"),
    Column("ci_hi", "us"),
    Column("n"),
)

#: Columns of the full table, after those.
MORE_COLUMNS = (
    Column("p95", "us"),
    Column("p99", "us"),
    Column("first", "us"),
    Column("batch", "calls"),
    Column("late"),
    Column("slowest", "rank"),
    Column("stop", number=False),
)

BATCH_MARK = "*"
OVERSUBSCRIBED_MARK = "!"


def bandwidths(point: Point) -> tuple[float, float] | None:
    """Algorithm and bus bandwidth in GB/s (1e9 bytes a second), from the median time.

    None where ranks shared cores: what such times say of is the sharing.
    """
    if point.oversubscribed:
        return None
    time = point.summary.median
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


def row(point: Point) -> tuple[str, ...]:
    """The cells of a point, in the order of the columns.

    The number of repetitions carries a star where each was a batch of calls, that of ranks an
    exclamation mark where there were not enough cores for them.
    """
    summary = point.summary
    algbw, busbw = map(_gigabytes, bandwidths(point) or (None, None))
    return (
        format_size(point.size),
        str(point.count),
        point.type,
        point.redop,
        str(point.root),
        point.choice,
        f"{point.ranks}{OVERSUBSCRIBED_MARK if point.oversubscribed else ''}",
        microseconds(summary.median),
        algbw,
        busbw,
        "N/A" if point.wrong is None else str(point.wrong),
        microseconds(summary.low),
        microseconds(summary.high),
        f"{summary.n}{BATCH_MARK if point.batch > 1 else ''}",
    )


def more(point: Point) -> tuple[str, ...]:
    """The cells of a point in the further columns of the full table."""
    summary = point.summary
    often, times = Counter(point.slowest).most_common(1)[0]
    return (
        microseconds(summary.p95),
        microseconds(summary.p99),
        microseconds(point.first),
        str(point.batch),
        str(point.late),
        f"{often} ({100 * times // len(point.slowest)} %)",
        point.stop,
    )


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
    algorithms = sorted(dict.fromkeys(p.algorithm for p in points), key=_native_last)
    return sorted(
        points,
        key=lambda p: (
            collectives.index(p.collective),
            p.ranks,
            p.type,
            p.size,
            algorithms.index(p.algorithm),
        ),
    )


def _native_last(algorithm: str) -> tuple[bool, str]:
    return algorithm == "native", algorithm


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
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for line in map(_csv_line, points):
        if writer is None:
            writer = csv.DictWriter(out, line, lineterminator="\n")
            writer.writeheader()
        writer.writerow(line)
    return out.getvalue()


def _csv_line(point: Point) -> dict[str, Any]:
    summary = point.summary
    algbw, busbw = bandwidths(point) or (None, None)
    return {
        "collective": point.collective,
        "size_bytes": point.size,
        "count": point.count,
        "type": point.type,
        "redop": point.redop,
        "root": point.root,
        "algo": point.choice,
        "P": point.ranks,
        "time_s": summary.median,
        "algbw_GBps": algbw,
        "busbw_GBps": busbw,
        "wrong": point.wrong,
        "ci_lo_s": summary.low,
        "ci_hi_s": summary.high,
        "n": summary.n,
        "batch": point.batch,
        "stop": point.stop,
        "oversubscribed": int(point.oversubscribed),
        "p95_s": summary.p95,
        "p99_s": summary.p99,
        "first_s": point.first,
        "launch": point.launch,
        "cache": point.cache,
        "start": point.start,
        "late": point.late,
        "in_place": int(point.in_place),
        "skew": point.skew,
        "device": point.device,
    }
