"""This rank's parts of parameters, gradients and optimizer, and the units that it gathers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.errors import RankLost
from mpicoll.train.exchange import norms
from mpicoll.train.models.flat import Parameters, described, require_names
from mpicoll.train.parallel.gathered import Gathered
from mpicoll.train.parallel.units import (
    GATHERS,
    EvenParts,
    Event,
    Unit,
    WholeUnits,
    buffered,
    grouped,
)
from mpicoll.train.ranks.workers import Running, Workers, require_equal, together


class ParameterShards(Mapping[str, Array]):
    """Parameters that are whole only while their unit is gathered; see `FullySharded`.

    Args:
        parameters, gather, ahead, keep: As of `FullySharded`.
        workers: The ranks.
        dtype: Type to gather and compute in, None for that of the parameters.

    Attributes:
        dtype: That type.
        units: Names of the units, in order.
        weights: This rank's parts of all units, one after the other.
        gradient: Of these, as far as they have been summed; made when it is first needed.
        keep, workers: As given.
        all_units: The units.
        finite: Whether all gradients that this rank has added were, since somebody set it.
        seconds: This rank has waited for collectives, since `begin`.
    """

    def __init__(
        self,
        parameters: Parameters,
        workers: Workers,
        gather: str,
        ahead: int,
        keep: bool,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        if gather not in GATHERS:
            raise ValueError(f"gather is {gather!r}: give one of {', '.join(GATHERS)}")
        if ahead < 0:
            raise ValueError(f"ahead is {ahead}: give a number of units, at least 0")
        self.workers = workers
        self._division = division = (EvenParts if gather == "all" else WholeUnits)(workers)
        self._ahead, self.keep = ahead, keep
        self.all_units: list[Unit] = []
        facts: dict[str, object] = {}
        start, given = 0, None
        with together(workers, "reading parameters"):
            for index, (name, names) in enumerate(grouped(list(parameters)).items()):
                arrays = {full: parameters[full] for full in names}
                given = _type_of(arrays, given)
                kept = np.promote_types(given, np.float32)
                unit = Unit(name, index, arrays, division, kept, start)
                self.all_units.append(unit)
                start += unit.count
                facts |= described(arrays)
            if given is None:
                raise ValueError("the model has no parameters: give at least one array")
            self.dtype: np.dtype[Any] = dtype or given
            self.weights: Array = np.zeros(start, self.all_units[0].weights.dtype)
            for unit in self.all_units:
                unit.move(self.weights)
        facts |= {"gather": gather, "ahead": ahead, "keep": keep}
        require_equal(workers, facts, "give all ranks the same")
        self.units = [unit.name for unit in self.all_units]
        self._by_name = dict(zip(self.units, self.all_units, strict=True))
        self._reducing: tuple[Unit, Running] | None = None
        self._holding: set[str] = set()  # units with gradients in `_held`
        self._done = 0  # events of those that `through` was told of
        self._own_seconds = 0.0
        self._began = 0.0
        self._reductions: list[tuple[str, float, float]] = []
        self.finite = True

    # What follows takes memory that is not there before it is needed.

    @cached_property
    def gradient(self) -> Array:
        return np.zeros_like(self.weights)

    @cached_property
    def _gathered(self) -> Gathered:
        return Gathered(self.all_units, self._division, self._ahead, self.keep, self.dtype)

    @cached_property
    def _found(self) -> Array:
        """Gradients of a unit, of this rank's samples."""
        return np.zeros(self.longest, self.weights.dtype)

    @cached_property
    def _held(self) -> dict[str, dict[str, Array]]:
        """Gradients of this rank's samples that wait for those of others, by unit."""
        dtype = self.weights.dtype
        return {unit.name: unit.views(np.zeros(unit.length, dtype)) for unit in self.all_units}

    @property
    def longest(self) -> int:
        """Elements of the longest unit."""
        return max(unit.length for unit in self.all_units)

    @property
    def gathered_nbytes(self) -> int:
        """Bytes of the buffers that units are gathered into."""
        lengths = [unit.length for unit in self.all_units]
        return buffered(lengths, self._ahead, self.keep) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of a gathered value."""
        return self.dtype.itemsize

    @property
    def collectives(self) -> tuple[str, str]:
        """Names of those that gather a unit, and that sum its gradients."""
        return self._division.collectives

    @property
    def buffers_nbytes(self) -> int:
        """Bytes of gathered units and of the gradients of one."""
        return self._gathered.nbytes + self._found.nbytes

    def __getitem__(self, name: str) -> Array:
        """A parameter whose unit is gathered.

        Raises:
            RuntimeError: It is not.
        """
        return self._gathered[name]

    def __iter__(self) -> Iterator[str]:
        return (name for unit in self.all_units for name in unit.spans)

    def __len__(self) -> int:
        return sum(len(unit.spans) for unit in self.all_units)

    def parts(self) -> Iterator[tuple[str, int, slice]]:
        """Of each parameter: its name, the first element that this rank owns, and where in
        `weights` its part is."""
        for unit in self.all_units:
            yield from unit.parts()

    # --- layer by layer ---

    def expect(self, order: Sequence[str]) -> None:
        """Say which units will be used next, in order: so they are gathered ahead; collective."""
        self._gathered.expect(order)

    def unit(self, name: str) -> AbstractContextManager[dict[str, Array]]:
        """Gather a unit, and free it at the end of the `with` statement; collective.

        Returns:
            What yields its parameters by name, which are not to be read any more behind it.

        Raises:
            KeyError: There is no such unit.
            RuntimeError: Another is expected, or all buffers are in use.
        """
        return self._gathered.unit(name)

    def unit_of(self, name: str) -> Unit:
        """The unit of a parameter."""
        return self._by_name[name.partition(".")[0]]

    def poll(self) -> None:
        """Move on what is under way."""
        self._gathered.poll()
        if self._reducing is not None:
            self._reducing[1].Test()

    def hold(self, gradients: Mapping[str, Array]) -> None:
        """Add gradients of a unit to those that this rank has, until `reduce` takes them along.

        It takes memory as of whole parameters.

        Args:
            gradients: Of all parameters of one unit, by name.
        """
        unit = self.unit_of(next(iter(gradients)))
        for name, view in self._held[unit.name].items():
            if unit.name in self._holding:
                view += gradients[name]
            else:
                view[...] = gradients[name]
        self._holding.add(unit.name)

    def reduce(self, gradients: Mapping[str, Array]) -> None:
        """Add the ranks' gradients of a unit to the parts of those that own them; collective.

        The sum is made while the caller goes on.

        Args:
            gradients: Of all parameters of one unit, by name.

        Raises:
            ValueError: They are not.
        """
        unit = self.unit_of(next(iter(gradients)))
        require_names(gradients, unit.spans)
        self.await_reduction()
        for name, view in unit.views(self._found).items():
            if unit.name in self._holding:
                np.add(self._held[unit.name][name], gradients[name], out=view)
            else:
                view[...] = gradients[name]
        self._holding.discard(unit.name)
        self.finite &= bool(np.isfinite(self._found[: unit.length]).all())
        self._start_reduction(unit)

    def norm(self) -> float:
        """Norm of the whole gradient, the same for every way to divide it; collective."""
        self.await_reduction()
        return norms.checked(self.workers, [self.gradient], clipped=True)[0]

    def changed(self) -> None:
        """This rank's parts are others now: forget what was gathered."""
        self._gathered.drop()

    def forget(self) -> None:
        """The sums of gradients have been used, or are of no use."""
        self.gradient[:] = 0
        self._holding.clear()
        for unit in self.all_units:
            unit.summed = False

    # --- what goes on where a rank fails ---

    def begin(self) -> None:
        """A new step: nothing has been waited for, and all gradients are finite."""
        self._own_seconds = self._gathered.seconds = 0.0
        self._reductions.clear()
        self._gathered.flights.clear()
        self.finite = True

    @property
    def seconds(self) -> float:
        return self._own_seconds + self._gathered.seconds

    @property
    def flights(self) -> list[tuple[str, float, float]]:
        """Of the collectives since `begin`: name, and when each began and was seen to be done."""
        return [*self._gathered.flights, *self._reductions]

    @contextmanager
    def through(
        self, events: Sequence[Event], failing: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Guard what makes these events, which may fail on some ranks only; collective.

        A rank that fails makes the rest of them without computing, so that no other waits for it,
        and raises then.

        Args:
            events: Of `units.program`, in order.
            failing: Called first where it fails.
        """
        self._done = 0
        self.expect([self.units[unit] for event, unit in events if event == "use"])
        try:
            yield
        except RankLost:  # nobody waits any more
            raise
        except Exception:
            failing()
            for event, unit in events[self._done :]:
                if event == "use":
                    with self.unit(self.units[unit]):
                        pass
                else:
                    self.await_reduction()
                    self._start_reduction(self.all_units[unit])
            self.await_reduction()
            raise
        self.await_reduction()

    def made(self) -> None:
        """The next event of `through` has begun."""
        self._done += 1

    def _start_reduction(self, unit: Unit) -> None:
        """Start to sum what is in the buffer of gradients."""
        mine, own = slice(unit.start, unit.start + unit.count), self.gradient[unit.own]
        if unit.summed:  # by adding them here, sums of earlier batches need no other place
            self._found[mine] += own
        self._began = time.perf_counter()
        vector = self._found[: unit.length]
        self._reducing = unit, self._division.reduce(unit.index, vector, own)

    def await_reduction(self) -> None:
        """The buffer of gradients is free."""
        if self._reducing is None:
            return
        unit, running = self._reducing
        asked = time.perf_counter()
        running.Wait()
        there = time.perf_counter()
        self._own_seconds += there - asked
        self._reductions.append((f"reduce {unit.name}", self._began, there))
        unit.summed, self._reducing = True, None


def _type_of(arrays: Parameters, known: np.dtype[Any] | None) -> np.dtype[Any]:
    """The type of all parameters.

    Raises:
        TypeError: They have several, or none that can be computed with.
    """
    for name, array in arrays.items():
        wanted = known or array.dtype
        known = wanted
        if array.dtype != wanted or wanted.itemsize > 8 or wanted.kind not in "fV":  # V: bfloat16
            raise TypeError(
                f"parameter {name} is {array.dtype}, the first is {wanted}: give all parameters "
                "the same floating type, of at most 8 bytes"
            )
    assert known is not None
    return known
