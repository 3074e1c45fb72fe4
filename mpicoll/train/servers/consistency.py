"""How far workers of a parameter server may run ahead of each other.

The clock of a worker is the number of its completed steps. At a bound S, parameters at clock c are
given out only if c - min <= S, where min is the least clock of the workers that are still at work;
so they contain every update of clock <= c - S - 1, and the worker's own.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass

KINDS = ("bsp", "ssp", "adaptive", "async")


@dataclass(frozen=True)
class Consistency:
    """A consistency model.

    Attributes:
        kind: `bsp` (one update a clock, of all workers' gradients), `ssp` (one an arriving
            gradient, at a bound), `adaptive` (the same, the bound is chosen while they run) or
            `async` (the same, no bound).
        low, high: Least and largest bound.
        at_least: `adaptive`: steps that the slowest makes in every window of `window` steps of the
            fastest.
    """

    kind: str
    low: float
    high: float
    at_least: int = 1

    @property
    def window(self) -> float:
        """Steps of the fastest in which any other makes `at_least`, at a bound of at most `high`.

        Who makes its last of W steps had its parameters W - 1 clocks after those of the first, when
        no other was more than `high` behind.
        """
        return self.high + self.at_least + 1


def parse(text: str) -> Consistency:
    """Read `bsp`, `ssp:S`, `adaptive:MIN,MAX`, `adaptive:MIN,MAX,M` or `async`; `ssp:0` is `bsp`.

    Raises:
        ValueError: It is none of these.
    """
    if text == "bsp" or re.fullmatch(r"ssp:0+", text):
        return Consistency("bsp", 0, 0)
    if text == "async":
        return Consistency("async", math.inf, math.inf)
    if match := re.fullmatch(r"ssp:(\d{1,6})", text):
        return Consistency("ssp", int(match[1]), int(match[1]))
    if match := re.fullmatch(r"adaptive:(\d{1,6}),(\d{1,6})(?:,(\d{1,6}))?", text):
        low, high, steps = int(match[1]), int(match[2]), int(match[3] or 1)
        if 1 <= low <= high and steps >= 1:
            return Consistency("adaptive", low, high, steps)
    raise ValueError(
        f"unknown consistency {text!r}: known are bsp, ssp:S, async and adaptive:MIN,MAX or "
        "adaptive:MIN,MAX,M with 1 <= MIN <= MAX and M >= 1, such as ssp:3 and adaptive:1,5"
    )


@dataclass(frozen=True)
class Change:
    """A change of an adaptive bound.

    Attributes:
        clock: Least clock of the workers when it was made.
        bound: The new bound.
        reason: Why.
    """

    clock: int
    bound: int
    reason: str


class Adaptive:
    """Chooses the bound from what each worker measured of itself (after Zhang et al. 2018).

    Every `every` clocks it compares the workers' own compute times, waiting excluded. A slowest
    worker whose processor was occupied throughout is slow for good: a larger bound would only age
    the parameters, and waiting for it costs the same in the end; the bound becomes the least. One
    that was held up while its processor did other things will catch up: the bound becomes the
    number of steps that the fastest makes in one of the slowest.

    Args:
        model: Of kind `adaptive`.
        workers: Number of workers.
        every: Clocks between two choices, and steps of a worker that are looked at.
    """

    #: Share of its compute time in which a worker must have used a processor to count as occupied.
    OCCUPIED = 0.9

    def __init__(self, model: Consistency, workers: int, every: int = 10) -> None:
        self._low, self._high, self._every = int(model.low), int(model.high), every
        self._times: list[deque[tuple[float, float]]] = [
            deque(maxlen=every) for _ in range(workers)
        ]
        self._last = 0
        self.bound = self._low
        self.changes: list[Change] = []

    def note(self, worker: int, seconds: float, processor: float) -> None:
        """A worker made a step.

        Args:
            worker: Its number.
            seconds: How long it computed.
            processor: Seconds of processor time in them.
        """
        self._times[worker].append((seconds, processor))

    def advance(self, clock: int) -> None:
        """The least clock of the workers; choose anew if it is time to."""
        if clock < self._last + self._every or not all(self._times):
            return
        self._last = clock
        means = [sum(t for t, _ in times) / len(times) for times in self._times]
        slowest = max(range(len(means)), key=means.__getitem__)
        ratio = means[slowest] / max(min(means), 1e-9)
        total = sum(t for t, _ in self._times[slowest])
        occupancy = sum(p for _, p in self._times[slowest]) / max(total, 1e-9)
        who = f"worker {slowest} takes {ratio:.2f} of the fastest's time, occupancy {occupancy:.2f}"
        if ratio > 1.5 and occupancy >= self.OCCUPIED:
            bound, why = self._low, f"{who}: slow for good"
        else:
            bound = min(max(math.ceil(ratio), self._low), self._high)
            why = f"{who}: the fastest may make as many steps in one of the slowest"
        if bound != self.bound:
            self.bound = bound
            self.changes.append(Change(clock, bound, why))
