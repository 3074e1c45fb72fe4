"""The table of a sweep: its columns, units and rows, for every format that prints it.

The columns and their order follow nccl-tests, with the interval and the number of repetitions
added. ``algbw`` is the size over the time; ``busbw`` corrects it for the collective, so that it
can be compared with the speed of a link whatever the number of ranks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import NamedTuple

from mpicoll.bench.records import Point
from mpicoll.bench.sizes import format_size
from mpicoll.collectives import collective


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

BATCH_MARK = "*"


def bandwidths(point: Point) -> tuple[float, float]:
    """Algorithm and bus bandwidth in GB/s (1e9 bytes a second), from the median time."""
    time = point.summary.median
    algbw = point.size / time / 1e9 if time else 0.0
    return algbw, algbw * collective(point.collective).bus_factor(point.ranks)


def microseconds(seconds: float | None) -> str:
    """A time in microseconds with what its size deserves of decimals; ``-`` for none."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 10000 else f"{value:.0f}"


def row(point: Point) -> tuple[str, ...]:
    """The cells of a point, in the order of the columns.

    The number of repetitions carries a star where each was a batch of calls.
    """
    summary = point.summary
    algbw, busbw = bandwidths(point)
    return (
        format_size(point.size),
        str(point.count),
        point.type,
        point.redop,
        str(point.root),
        point.algorithm,
        str(point.ranks),
        microseconds(summary.median),
        f"{algbw:.3f}",
        f"{busbw:.3f}",
        "N/A" if point.wrong is None else str(point.wrong),
        microseconds(summary.low),
        microseconds(summary.high),
        f"{summary.n}{BATCH_MARK if point.batch > 1 else ''}",
    )


def ordered(points: Iterable[Point]) -> list[Point]:
    """Points by collective, ranks, size and algorithm; algorithms as first met."""
    points = list(points)
    collectives = list(dict.fromkeys(p.collective for p in points))
    algorithms = sorted(dict.fromkeys(p.algorithm for p in points), key=_native_last)
    return sorted(
        points,
        key=lambda p: (
            collectives.index(p.collective),
            p.ranks,
            p.size,
            algorithms.index(p.algorithm),
        ),
    )


def _native_last(algorithm: str) -> tuple[bool, str]:
    return algorithm == "native", algorithm


def notes(points: Iterable[Point]) -> list[str]:
    """What must be said beside the table for it to be read rightly."""
    points, said = list(points), []
    if any(p.oversubscribed for p in points):
        said.append(
            "More ranks than cores: ranks waited for one another's core, so these times show how "
            "this machine shares its cores, not how fast the algorithms are."
        )
    batches = sorted({p.batch for p in points if p.batch > 1})
    if batches:
        calls = f"{batches[0]}" if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
        said.append(f"{BATCH_MARK} each repetition is a batch of {calls} calls; time is per call.")
    short = sum(p.stop == "time" for p in points)
    if short:
        said.append(f"{short} of {len(points)} points ended by time, not by precision.")
    return said


def as_csv(points: Iterable[Point]) -> str:
    """The table as comma-separated values with numbers in full: bytes, seconds and GB/s."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["collective", "size_bytes", "count", "type", "redop", "root", "algo", "P", "time_s"]
        + ["algbw_GBps", "busbw_GBps", "wrong", "ci_lo_s", "ci_hi_s", "n", "batch", "stop"]
    )
    for point in points:
        summary = point.summary
        algbw, busbw = bandwidths(point)
        writer.writerow(
            [point.collective, point.size, point.count, point.type, point.redop, point.root]
            + [point.algorithm, point.ranks, summary.median, algbw, busbw, point.wrong]
            + [summary.low, summary.high, summary.n, point.batch, point.stop]
        )
    return out.getvalue()
