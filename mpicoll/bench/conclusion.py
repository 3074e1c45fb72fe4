"""What a sweep says in the end: the best algorithm, its gain over native, and the noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median

from mpicoll.base.sizes import format_size
from mpicoll.base.wording import behind, plural
from mpicoll.bench.records import Point
from mpicoll.bench.stats import Summary
from mpicoll.tuning import NATIVE


def against_fastest(points: Sequence[Point]) -> list[str]:
    """How far each point is behind the fastest of the same collective, ranks, type and size."""
    return behind([p.summary.median for p in points], [(*_group(p), p.size) for p in points])


def fastest_first(points: Iterable[Point]) -> list[Point]:
    """Points by collective as first met, ranks, type and size; the fastest first."""
    points = list(points)
    first = {name: place for place, name in enumerate(dict.fromkeys(p.collective for p in points))}
    return sorted(
        points, key=lambda p: (first[p.collective], p.ranks, p.type, p.size, p.summary.median)
    )


def conclusion(points: Iterable[Point]) -> list[str]:
    """Three lines for each collective, number of ranks and type: best, gain, noise."""
    groups = [list(of) for _, of in groupby(fastest_first(points), _group)]
    lines = []
    for group in groups:
        if len(groups) > 1:
            lines.append(f"{group[0].collective}, P = {group[0].ranks}, {group[0].type}:")
        lines += _three(group)
    return lines


def _group(point: Point) -> tuple[str, int, str]:
    return point.collective, point.ranks, point.type


def _three(points: list[Point]) -> Iterator[str]:
    """The lines of points of one group, fastest first."""
    sizes = {size: list(of) for size, of in groupby(points, lambda p: p.size)}
    yield f"best algorithm: {'; '.join(_stretches(_best(sizes)))}"
    yield f"gain over native: {_gain(sizes.values())}"
    yield f"noise: {_noise(points)}"


def _best(sizes: Mapping[int, list[Point]]) -> Iterator[tuple[int, str]]:
    """Of each size the fastest algorithm; that of the size before where the noise hides which."""
    choice = ""
    for size, (fastest, *others) in sizes.items():
        before = next((p for p in others if p.choice == choice), None)
        if before is None or _apart(fastest.summary, before.summary):
            choice = fastest.choice
        yield size, choice


def _stretches(best: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Of each algorithm the sizes at which it is the best, as stretches."""
    for choice, of in groupby(best, lambda pair: pair[1]):
        stretch = [format_size(size) for size, _ in of]
        span = stretch[0] if len(stretch) == 1 else f"{stretch[0]} to {stretch[-1]}"
        yield f"{choice} ({span})"


def _gain(sizes: Iterable[list[Point]]) -> str:
    gains: list[tuple[float, int]] = []
    told = 0
    for best, *others in sizes:
        native = next((p for p in (best, *others) if p.choice == NATIVE), None)
        if native is None or not best.summary.median:
            continue
        mine, theirs = best.summary, native.summary
        is_told = _apart(mine, theirs)  # of noisy times the least is always less than native's
        gains.append((theirs.median / mine.median if is_told else 1.0, best.size))
        told += is_told
    if not gains:
        return "unknown, native was not measured; name it among --algorithms"
    mean = math.exp(math.fsum(math.log(gain) for gain, _ in gains) / len(gains))
    if not told:
        return f"none at any of {plural(len(gains), 'size')}: all differences are within the noise"
    most, where = max(gains)
    rest = "" if told == len(gains) else "; the others are within the noise and count as 1x"
    return (
        f"{mean:.2f}x on average, at most {most:.2f}x ({format_size(where)}); faster at {told} of "
        f"{plural(len(gains), 'size')}{rest}"
    )


def _apart(a: Summary, b: Summary) -> bool:
    """Whether the interval of a lies below that of b."""
    return a.high is not None and b.low is not None and a.high < b.low


def _noise(points: list[Point]) -> str:
    widths = [width for p in points if math.isfinite(width := p.summary.half_width)]
    crowded = (
        "; more ranks than cores, so times do not compare algorithms"
        if points[0].oversubscribed
        else ""
    )
    if not widths:
        return f"unknown, too few repetitions for an interval{crowded}"
    return (
        f"95 % intervals of -+ {100 * median(widths):.1f} %, at most -+ {100 * max(widths):.1f} %, "
        f"within this launch{crowded}"
    )
