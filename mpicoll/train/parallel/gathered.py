"""Units of parameters that are whole only while they are used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.parallel.units import Division, Unit, sendable
from mpicoll.train.ranks.workers import Running


class Gathered:
    """Parameters by name, which can be read while their unit is gathered.

    Units are gathered into a few buffers that they use in turn, those that come next already while
    one is used.

    Args:
        units: All units.
        division: How they are divided.
        ahead: How many are gathered before they are used.
        keep: Whether they stay, each in a buffer of its own, until `drop`.
        dtype: Type of what is gathered.

    Attributes:
        nbytes: Of the buffers.
        seconds: Waited for units, since somebody set it to zero.
        flights: Of those gathered since somebody emptied it: name, and when it began and was there.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        division: Division,
        ahead: int,
        keep: bool,
        dtype: np.dtype[Any],
    ) -> None:
        self._units = {unit.name: unit for unit in units}
        self._unit_of = {name: unit for unit in units for name in unit.spans}
        self._ahead, self._keep = ahead, keep
        slots = len(units) if keep else min(1 + ahead, len(units))
        self._slot = {unit: unit.index % slots for unit in units}
        longest = max(unit.length for unit in units)
        lengths = [unit.length if keep else longest for unit in units]
        buffers = [np.zeros(length, dtype) for length in lengths[:slots]]
        self.nbytes = sum(buffer.nbytes for buffer in buffers)
        self._vectors = {unit: buffers[self._slot[unit]][: unit.length] for unit in units}
        self._division = division
        self._next: deque[Unit] = deque()  # to be used, in this order, and not started
        self._flying: deque[Unit] = deque()  # under way
        self._running: dict[Unit, Running] = {}
        self._busy: dict[int, Unit] = {}  # by slot
        self._views: dict[Unit, dict[str, Array]] = {}
        self._began: dict[Unit, float] = {}
        self.seconds = 0.0
        self.flights: list[tuple[str, float, float]] = []

    def __getitem__(self, name: str) -> Array:
        """A view.

        Raises:
            KeyError: There is no such parameter.
            RuntimeError: It is not gathered.
        """
        unit = self._unit_of[name]
        if unit not in self._views:
            raise RuntimeError(
                f"parameter {name} is not gathered, or has been freed: read it in "
                f"`with parameters.unit({unit.name!r}):`"
            )
        return self._views[unit][name]

    def expect(self, order: Sequence[str]) -> None:
        """Say which units will be used next, in order: they are gathered ahead."""
        self._next.extend(self._units[name] for name in order)
        self._start_next(self._ahead + 1)

    @contextmanager
    def unit(self, name: str) -> Iterator[dict[str, Array]]:
        """A unit, whole within the statement; collective.

        Args:
            name: What the names of its parameters begin with.

        Yields:
            Its parameters.

        Raises:
            KeyError: There is no such unit.
            RuntimeError: Others are expected before it, or are in all buffers.
        """
        unit = self._units[name]
        held = unit in self._views
        if not held:
            self._gather(unit)
        self._start_next(self._ahead)
        try:
            yield self._views[unit]
        finally:
            if not (held or self._keep):
                self._free(unit)
            self._start_next(self._ahead + 1)

    def poll(self) -> None:
        """Move on what is under way."""
        for running in self._running.values():
            running.Test()

    def drop(self) -> None:
        """Free what was kept: the parameters have changed."""
        for unit in list(self._views):
            self._free(unit)

    def _gather(self, unit: Unit) -> None:
        if not self._flying:
            if self._next:
                self._start_next(1)
            else:
                self._start(unit)
        expected = (self._flying or self._next)[0]
        if expected is not unit:
            raise RuntimeError(
                f"unit {unit.name} is used where unit {expected.name} is expected: use units in "
                "the order that was said"
            )
        if not self._flying:
            self._start(unit)  # which says why it could not be started
        asked = time.perf_counter()
        self._running.pop(unit).Wait()
        there = time.perf_counter()
        self.seconds += there - asked
        self.flights.append((f"gather {unit.name}", self._began.pop(unit), there))
        self._flying.popleft()
        self._views[unit] = unit.views(self._vectors[unit])

    def _start_next(self, most: int) -> None:
        """Gather what comes next, while there are buffers and at most so many are under way."""
        while self._next and len(self._flying) < most:
            unit = self._next[0]
            if unit in self._views and self._keep:
                self._next.popleft()
                continue
            if self._slot[unit] in self._busy:
                return
            self._start(self._next.popleft())

    def _start(self, unit: Unit) -> None:
        slot = self._slot[unit]
        if slot in self._busy:
            raise RuntimeError(
                f"unit {unit.name} shares a buffer with unit {self._busy[slot].name}, which is in "
                f"use: leave that first, or give ahead of at least {self._ahead + 1}"
            )
        self._busy[slot] = unit
        own = slice(unit.start, unit.start + unit.count)
        self._vectors[unit][own] = unit.weights
        self._began[unit] = time.perf_counter()
        self._running[unit] = self._division.gather(unit.index, sendable(self._vectors[unit]))
        self._flying.append(unit)

    def _free(self, unit: Unit) -> None:
        del self._views[unit], self._busy[self._slot[unit]]
