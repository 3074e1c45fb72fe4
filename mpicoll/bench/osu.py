"""Points as the OSU micro-benchmarks print them, for programs that read that.

One table for each collective, algorithm, type and number of ranks. Two of its conventions differ
from the rest of this package: a size is what one rank gives to or gets from one other (of a vector
of P blocks, one block), and a time is a mean. The mean here is over the repetitions, each of which
lasts as long as on the slowest rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from mpicoll.base.wording import plural
from mpicoll.bench.records import Point

# Of these a rank's own message is one of P blocks, and OSU's size is that of one.
_BY_BLOCK = ("allgather", "gather", "scatter", "alltoall")

_WIDTH = 20


def size(point: Point) -> int:
    """The size in bytes that the OSU benchmark of the collective names."""
    return point.size // point.ranks if point.base in _BY_BLOCK else point.size


def tables(points: Iterable[Point], full: bool = False) -> str:
    """All tables, for points in the order of a report."""

    def title(point: Point) -> tuple[str, str, str, int]:
        return point.collective, point.choice, point.type, point.ranks

    text = []
    for (collective, choice, kind, ranks), rows in groupby(sorted(points, key=title), title):
        text.append(
            f"# OSU MPI {collective.capitalize()} Latency Test (as mpicoll measures it)\n"
            f"# algorithm {choice}, type {kind}, {plural(ranks, 'rank')}; means over "
            "repetitions of the slowest rank's time\n"
        )
        heads = ["Avg Latency(us)"]
        if full:
            heads += ["Min Latency(us)", "Max Latency(us)", "P50(us)", "P95(us)", "P99(us)"]
            heads += ["Iterations"]
        text.append(f"{'# Size':<10}" + "".join(f"{head:>{_WIDTH}}" for head in heads) + "\n")
        text += [_line(point, full) for point in sorted(rows, key=lambda point: point.size)]
        text.append("\n")
    return "".join(text)


def _line(point: Point, full: bool) -> str:
    times, summary = point.times, point.summary
    shown = [sum(times) / len(times)]
    if full:
        shown += [min(times), max(times), summary.median, summary.p95, summary.p99]
    cells = [f"{1e6 * seconds:.2f}" for seconds in shown]
    if full:
        cells.append(str(summary.n * point.batch))
    return f"{size(point):<10}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells) + "\n"
