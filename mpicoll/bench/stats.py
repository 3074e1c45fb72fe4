"""Statistics of repetitions: medians with intervals that assume no distribution.

Times of collectives are skewed and have several modes, so a mean with a standard deviation says
little. The interval used here is bounded by two of the samples themselves, chosen by their ranks
so that the median lies between them with 95 % confidence whatever the distribution.

Source: J.-Y. Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010,
section 2.2; as recommended by T. Hoefler and R. Belli, Scientific Benchmarking of Parallel
Computing Systems, SC 2015.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

Z_95 = 1.959963984540054


class Summary(NamedTuple):
    """What is reported of a set of times, all in the unit of the times given.

    ``low`` and ``high`` bound the 95 % interval of the median; they are None where there are too
    few samples for one.
    """

    median: float
    low: float | None
    high: float | None
    p95: float
    p99: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval relative to the median; infinite without interval."""
        if self.low is None or self.high is None:
            return math.inf
        if self.median == 0:
            return 0.0 if self.high == self.low else math.inf
        return (self.high - self.low) / (2 * self.median)


def interval_ranks(n: int, z: float = Z_95) -> tuple[int, int] | None:
    """Ranks, counted from 1, of the two order statistics that bound the median of n samples.

    None where n is too small for the confidence wanted (n < 8 at 95 %).
    """
    spread = z * math.sqrt(n)
    low, high = math.floor((n - spread) / 2), math.ceil(1 + (n + spread) / 2)
    return (low, high) if low >= 1 and high <= n else None


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Nearest-rank percentile of values in ascending order: always one of the samples."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def summarise(times: Sequence[float]) -> Summary:
    """Median, 95 % interval and tail of the times.

    Raises:
        ValueError: if there are none.
    """
    if not times:
        raise ValueError("there is no time to summarise; at least one repetition is needed")
    ordered = sorted(times)
    ranks = interval_ranks(len(ordered))
    return Summary(
        median=median(ordered),
        low=ordered[ranks[0] - 1] if ranks else None,
        high=ordered[ranks[1] - 1] if ranks else None,
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        n=len(ordered),
    )
