"""Which choice is fastest at which sizes, as far as launches tell it from noise.

What is compared are logarithms of medians of launches, launch by launch: what slows a launch down
as a whole meets all choices.  How far such a difference is wrong is told by how it varies between
launches, but never less than it usually does among the rows of the table (V. G. Tusher,
R. Tibshirani, G. Chu, PNAS 98 (2001)): few launches are alike by chance in some of many rows.

At first every size has its fastest choice.  Then neighbouring sizes are put together, the least
sure change of choice first, until every change is told: on its own sizes each choice is faster than
its neighbour's, by more than chance makes of two equal ones anywhere in the table.  So a choice
that is a little faster at many sizes in a row is told, and one that is so at a single size is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri

from mpicoll.model.cells import Array, Cell
from mpicoll.tuning import NATIVE

#: Chance that some change of choice in a table is told where nothing differs.
LEVEL = 0.01
#: A choice that is faster by less than this is as good as the other.
LEAST_GAIN = 0.02
#: Standard deviation of the logarithm of a ratio where a single launch tells nothing of it:
#: launches of one program differ by some per cent.
ONE_LAUNCH = 0.05
#: The interval of a gain holds it in 95 % of all cases.
_WIDE = NormalDist().inv_cdf(0.975)

#: Cells of one choice, one for each size; None where it was not measured.
Row = Sequence[Cell | None]


class Gain(NamedTuple):
    """How much faster one choice is than another over some sizes.

    Attributes:
        share: time of the other over its own, less 1; the geometric mean over the sizes.
        low, high: its 95 % interval.
        told: whether it is more than noise and :data:`LEAST_GAIN`.  One launch tells nothing, nor
            do ranks that share cores.
    """

    share: float
    low: float
    high: float
    told: bool


class Segment(NamedTuple):
    """Sizes, by their indices from ``start`` to before ``end``, and the choice for them."""

    start: int
    end: int
    choice: str

    @property
    def sizes(self) -> range:
        return range(self.start, self.end)


@dataclass(frozen=True)
class Comparisons:
    """The choices of one collective on one number of ranks, held against each other.

    Attributes:
        rows: by choice.
        count: number of sizes.
    """

    rows: Mapping[str, Row]
    count: int

    def segments(self) -> list[Segment]:
        """The sizes with the choice that is fastest, as far as it is told."""
        found = _joined(Segment(i, i + 1, self._best(range(i, i + 1))) for i in range(self.count))
        while True:
            surety = [self._change(one, other) for one, other in pairwise(found)]
            if not surety or min(surety) >= self.limit:
                return found
            weak = surety.index(min(surety))
            sizes = range(found[weak].start, found[weak + 1].end)
            both = Segment(sizes.start, sizes.stop, self._best(sizes))
            found = _joined([*found[:weak], both, *found[weak + 2 :]])

    def gain(self, choice: str, other: str, sizes: Iterable[int]) -> Gain | None:
        """How much faster a choice is than another; None where not both were measured."""
        differences = self._differences(choice, other, sizes)
        if differences is None:
            return None
        mean, error = float(differences.mean()), self._error(differences)
        low, high = mean - _WIDE * error, mean + _WIDE * error
        told = differences.shape[1] > 1 and not self._crowded
        told &= mean >= self.limit * error and mean >= math.log1p(LEAST_GAIN)
        return Gain(math.expm1(mean), math.expm1(low), math.expm1(high), told)

    @cached_property
    def limit(self) -> float:
        """How many standard errors a difference must have to be told."""
        comparisons = max(1, self.count * (len(self.rows) - 1))
        return NormalDist().inv_cdf(1 - LEVEL / comparisons)

    @cached_property
    def launches(self) -> int:
        """The most launches of any cell."""
        cells = (cell for row in self.rows.values() for cell in row if cell)
        return max(len(cell.launches) for cell in cells)

    @cached_property
    def _crowded(self) -> bool:
        return any(cell.crowded for row in self.rows.values() for cell in row if cell)

    def _best(self, sizes: range) -> str:
        """The choice with the least time over some sizes, of those measured at all of them."""
        sums = {
            choice: sum(math.log(cell.seconds) for cell in mine if cell)
            for choice, row in self.rows.items()
            if all(mine := [row[index] for index in sizes])
        }
        return min(sums, key=lambda choice: sums[choice])

    def _change(self, one: Segment, other: Segment) -> float:
        """How sure it is, in standard errors, that two neighbours want different choices.

        Infinite where they cannot be put together.
        """
        union = range(one.start, other.end)
        if not any(all(row[index] for index in union) for row in self.rows.values()):
            return math.inf
        pairs = ((one, other.choice), (other, one.choice))
        return min(self._sure(mine, theirs) for mine, theirs in pairs)

    def _sure(self, mine: Segment, other: str) -> float:
        differences = self._differences(mine.choice, other, mine.sizes)
        if differences is None:
            return math.inf
        mean, error = float(differences.mean()), self._error(differences)
        sure = mean / error
        return sure if mean >= math.log1p(LEAST_GAIN) else min(sure, self.limit * 0.99)

    def _differences(self, choice: str, other: str, sizes: Iterable[int]) -> Array | None:
        """Logarithms of the ratios of times, of shape (sizes, launches); None without any."""
        rows = [_difference(self.rows[choice][i], self.rows[other][i]) for i in sizes]
        if not all(len(row) for row in rows):
            return None
        least = min(map(len, rows))
        return np.array([row[:least] for row in rows])

    def _error(self, differences: Array) -> float:
        """The standard error of the mean of some differences."""
        sizes, launches = differences.shape
        usual = self._usual / math.sqrt(sizes)
        own = float(differences.mean(axis=0).std(ddof=1)) if launches > 1 else 0.0
        return max(own, usual) / math.sqrt(launches)

    @cached_property
    def _usual(self) -> float:
        """The usual standard deviation of a difference between launches, at one size."""
        found = []
        for index in range(self.count):
            best = self._best(range(index, index + 1))
            for choice in self.rows:
                row = _difference(self.rows[best][index], self.rows[choice][index])
                if choice != best and len(row) > 1:
                    # The median of variances of few values lies below the true one: it is that of
                    # the chi-squared distribution.
                    freedom = len(row) - 1
                    found.append(row.var(ddof=1) * freedom / chdtri(freedom, 0.5))
        return max(math.sqrt(float(np.median(found))), 1e-9) if found else ONE_LAUNCH


def _difference(cell: Cell | None, other: Cell | None) -> Array:
    """Logarithms of the other's time over the cell's, by launch."""
    if cell is None or other is None:
        return np.empty(0)
    mine, theirs = cell.medians, other.medians
    return np.array([math.log(theirs[name] / mine[name]) for name in mine if name in theirs])


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """The same, neighbours with one choice put together."""
    found: list[Segment] = []
    for segment in segments:
        if found and found[-1].choice == segment.choice:
            found[-1] = found[-1]._replace(end=segment.end)
        else:
            found.append(segment)
    return found


def without_doubtful(comparisons: Comparisons, segments: Sequence[Segment]) -> list[Segment]:
    """The same, with the library's own wherever a gain over it is not significant.

    The first and the last sizes of a segment go to the library if, by themselves, they gain less
    than :data:`LEAST_GAIN`; what is left must be told.
    """
    if NATIVE not in comparisons.rows:
        return list(segments)

    def gain(choice: str, sizes: range) -> Gain | None:
        return comparisons.gain(choice, NATIVE, sizes)

    def kept(segment: Segment) -> list[Segment]:
        start, end, choice = segment
        if choice == NATIVE or gain(choice, segment.sizes) is None:
            return [segment]

        def is_little(sizes: range) -> bool:
            found = gain(choice, sizes)
            return found is not None and found.share < LEAST_GAIN

        first = max((i + 1 for i in segment.sizes if is_little(range(start, i + 1))), default=start)
        last = min((i for i in range(first, end) if is_little(range(i, end))), default=end)
        core = gain(choice, range(first, last)) if first < last else None
        if core is None or not core.told:
            return [segment._replace(choice=NATIVE)]
        parts = (Segment(start, first, NATIVE), Segment(first, last, choice))
        return [part for part in (*parts, Segment(last, end, NATIVE)) if part.start < part.end]

    return _joined(part for segment in segments for part in kept(segment))
