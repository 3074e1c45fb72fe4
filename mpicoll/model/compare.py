"""Do two sets of launches differ?  A verdict needs a size of the effect, and significance.

What is compared are medians of launches, launch k of one side with launch k of the other: measured
alternately, what drifts on the machine meets both.  Two statistics are used, each a trimmed mean
over its standard error (K. K. Yuen, Biometrika 61 (1974)): of the logarithms of the paired ratios,
strong where launches drift together, and of the difference of the sides, strong where they do not.
Trimming takes away launches that came out far off.  Their distribution is not assumed but found, by
giving the launches to the sides in all possible ways (or many).  The largest statistic of all rows
in each of these ways is what a row is held against, step by step (P. H. Westfall, S. S. Young,
Resampling-Based Multiple Testing, 1993): so the chance of any false verdict in a whole comparison
is the level, however many rows there are.  Rows are all points, and the mean over sizes of each
choice on each number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import stdtr

from mpicoll.model.cells import Array, Cell

#: Launches a side that a verdict needs, and the chance of a false one.
LEAST_LAUNCHES, LEVEL = 7, 0.01
#: Relative difference below which nothing is called different.
LEAST_EFFECT = 0.02
_MOST_WAYS = 4000
_TRIMMED = 0.2
_SAME = 1e-9  # relative; below it nothing differs

FASTER, SLOWER, NONE = "faster", "slower", "no verdict"


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        collective, choice, ranks: what is compared.
        nbytes: bytes of the whole vector; None for the mean over all sizes.
        first, second: seconds, the medians of the sides; None for the mean over sizes.
        ratio: median of the paired ratios, second over first.
        low, high: the least and the largest of them.
        p: chance that some row of the comparison comes out so far apart where nothing differs; 1
            where there are too few launches.
        verdict: of the second side: :data:`FASTER`, :data:`SLOWER` or :data:`NONE`.
    """

    collective: str
    choice: str
    ranks: int
    nbytes: int | None
    first: float | None
    second: float | None
    ratio: float
    low: float
    high: float
    p: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """All rows, and how many launches each side had.

    Attributes:
        rows: the points in their order, each choice's mean after them.
        launches: pairs of launches that were compared.
        alone: points that only one side has, or not in all launches.
    """

    rows: tuple[Row, ...]
    launches: int
    alone: int

    @property
    def slower(self) -> bool:
        """Whether anything is slower on the second side."""
        return any(row.verdict == SLOWER for row in self.rows)


def compare(
    first: Sequence[Cell],
    second: Sequence[Cell],
    *,
    effect: float = LEAST_EFFECT,
    level: float = LEVEL,
) -> Comparison:
    """Compare the cells of two sides.

    Args:
        first, second: the sides; their launches are paired in the order given.
        effect: relative difference that is worth a verdict.
        level: chance of any false verdict.

    Raises:
        ValueError: they have no point in common.
    """
    theirs = {cell: cell for cell in second}
    both = [(cell, theirs[cell]) for cell in first if cell in theirs]
    if not both:
        raise ValueError("the two sides have no point in common; measure the same on both")
    launches = max(min(len(a.launches), len(b.launches)) for a, b in both)
    pairs = [(a, b) for a, b in both if min(len(a.launches), len(b.launches)) == launches]
    points = np.array([[_logarithms(cell, launches) for cell in pair] for pair in pairs])
    groups: dict[tuple[str, str, int], list[int]] = {}
    for number, (cell, _) in enumerate(pairs):
        groups.setdefault((cell.collective, cell.choice, cell.ranks), []).append(number)
    groups = {key: members for key, members in groups.items() if len(members) > 1}
    means = [points[members].mean(axis=0) for members in groups.values()]
    values = np.concatenate([points, np.array(means).reshape(-1, 2, launches)])
    chances = adjusted(values) if launches >= LEAST_LAUNCHES else np.ones(len(values))
    places = [(a.collective, a.choice, a.ranks, a.nbytes, a.seconds, b.seconds) for a, b in pairs]
    rows = [
        _row(place, value, p, effect, level)
        for place, value, p in zip(
            [*places, *((*key, None, None, None) for key in groups)], values, chances, strict=True
        )
    ]
    alone = len(first) + len(second) - 2 * len(pairs)
    return Comparison(tuple(rows), launches, alone)


def _logarithms(cell: Cell, launches: int) -> list[float]:
    return [math.log(seconds) for seconds in list(cell.medians.values())[:launches]]


def _row(
    place: tuple[str, str, int, int | None, float | None, float | None],
    value: Array,
    p: float,
    effect: float,
    level: float,
) -> Row:
    ratios = np.exp(value[1] - value[0])
    ratio = float(np.median(ratios))
    verdict = NONE
    if p <= level and abs(ratio - 1) >= effect:
        verdict = SLOWER if ratio > 1 else FASTER
    return Row(*place, ratio, float(ratios.min()), float(ratios.max()), float(p), verdict)


def adjusted(values: Array) -> Array:
    """For each row the chance that any row comes out so far apart where nothing differs.

    Args:
        values: logarithms of times, of shape (rows, 2, launches).
    """
    rows, _, launches = values.shape
    flat = values.reshape(rows, 2 * launches)
    ways = _ways(launches)
    found = _statistic(flat[:, ways[:, :launches]], flat[:, ways[:, launches:]])
    observed = found[:, 0]  # the first way is the one observed
    order = np.argsort(observed)
    # Step down: a row is held against those that differ no more than it does.
    largest = np.maximum.accumulate(found[order], axis=0)
    chances = (largest >= observed[order, None] - _SAME).mean(axis=1)
    stepped = np.maximum.accumulate(chances[::-1])[::-1]
    return np.asarray(stepped[np.argsort(order)])


def _ways(launches: int) -> np.ndarray:
    """Ways to give the launches to the sides, first the one observed: all of them, or many.

    The first launch stays where it is: with the sides exchanged a way has the same statistic.
    """
    others = range(1, 2 * launches)
    if math.comb(len(others), launches - 1) <= _MOST_WAYS:
        chosen = [(0, *way) for way in combinations(others, launches - 1)]
        return np.array([[*way, *sorted({*others} - {*way})] for way in chosen])
    generator = np.random.default_rng(0)
    drawn = [generator.permutation(2 * launches) for _ in range(_MOST_WAYS - 1)]
    return np.array([np.arange(2 * launches), *drawn])


def _statistic(first: Array, second: Array) -> Array:
    """The larger of the two statistics, as minus the logarithm of a chance.

    A standard error from a few launches is small by chance in some of many rows, so what is usual
    among the rows is added to each (V. G. Tusher, R. Tibshirani, G. Chu, PNAS 98 (2001)).

    Args:
        first, second: logarithms of times, of shape (rows, ways, launches).
    """
    left = first.shape[-1] - 2 * _cut(first.shape[-1])
    difference, error = _trimmed(second - first)
    (a, error_a), (b, error_b) = _trimmed(first), _trimmed(second)
    # Of the t distribution; scipy.stats would take longer to import than all else.
    chances = [
        stdtr(degrees, -np.abs(apart) / np.maximum(wrong + np.median(wrong, axis=0), _SAME))
        for apart, wrong, degrees in (
            (difference, error, left - 1),
            (b - a, np.hypot(error_a, error_b), 2 * (left - 1)),
        )
    ]
    with np.errstate(divide="ignore"):  # a chance of 0
        return np.asarray(-np.log(np.minimum(*chances)))


def _trimmed(values: Array) -> tuple[Array, Array]:
    """Trimmed mean and its standard error, along the last axis."""
    n = values.shape[-1]
    cut = _cut(n)
    ordered = np.sort(values, axis=-1)
    middle = ordered[..., cut : n - cut]
    ordered[..., :cut] = middle[..., :1]
    ordered[..., n - cut :] = middle[..., -1:]
    left = n - 2 * cut
    squares = ((ordered - ordered.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    return middle.mean(axis=-1), np.sqrt(squares / (left * (left - 1)))


def _cut(launches: int) -> int:
    return max(1, int(_TRIMMED * launches))
