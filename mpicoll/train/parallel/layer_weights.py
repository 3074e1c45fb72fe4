"""Parameters that are gathered layer by layer, from the pieces of all replicas, ahead of need."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.precision import Rounding, computing
from mpicoll.train.parallel.weights import Weights
from mpicoll.train.step.tasks import Task


class Coming(Protocol):
    """Parameters of a layer that are being gathered."""

    def Test(self) -> object:
        """Make progress."""

    def finish(self) -> dict[str, Array]:
        """Wait; they are of the type to compute in."""


#: Begins to gather parameters, by layer and names; collective among replicas.
Start = Callable[[int, Sequence[str]], Coming]


class LayerWeights(Weights):
    """One layer's parameters are gathered while those of the one before are used.

    All replicas have the same program, and each task makes all its gathers in the order of its
    layers: those that a failed task has not made, `done` makes.  Between them come the sums of
    gradients, as in a task that has not failed: the ranks begin all collectives in one order.

    Args:
        start: Begins to gather a layer.
        layers: Numbers and parameters of the layers with any, ascending, of each chunk.
        buffers: By name.
        dtype: Type to compute in.
        program: The tasks of a step.
        keep: Whether parameters stay to the end, once they are there.

    Attributes:
        waited: Seconds in which this rank has waited for layers.
    """

    def __init__(
        self,
        start: Start,
        layers: Mapping[int, Mapping[int, Sequence[str]]],
        buffers: Mapping[str, Array],
        dtype: np.dtype,
        program: Sequence[Task],
        keep: bool,
    ) -> None:
        self._start, self._dtype, self._keep = start, dtype, keep
        tasks = [task for task in program if not task.is_message]
        names = gathers(tasks, layers, keep)
        #: Of each task to come, how many gathers it makes.
        self._counts = deque(map(len, names))
        self._next = deque(use for own in names for use in own)
        self._flying: deque[tuple[int, Coming]] = deque()
        self._layer: int | None = None  # that was taken last by the task under way
        self._due: int | None = None  # of the task under way
        self._own = _Own(buffers, self._take)
        self.most, self.waited = 1, 0.0
        with suppress(MemoryError):  # the first task begins it, if there is no memory for it yet
            self._start_next()

    def of(self, task: Task) -> tuple[Parameters, Rounding]:
        self._begin()
        _, rounded = computing({}, self._dtype)
        return self._own, rounded

    def done(self, task: Task, passed: Callable[[Task, int], object]) -> None:
        self._begin()
        while self._due:
            self._start_next()  # before the sum of the layer that was taken last
            if self._layer is not None:
                passed(task, self._layer)
            self._take()
        self._start_next()  # before the sums of the last layer
        self._layer = None
        self._counts.popleft()
        self._due = None
        if not self._keep:
            self._own.arrays = {}

    def poll(self) -> None:
        for _, coming in self._flying:
            coming.Test()

    @property
    def under_way(self) -> object:
        return self._flying

    def close(self) -> None:
        self._own.arrays = {}

    def _begin(self) -> None:
        if self._due is None:
            self._due = self._counts[0]

    def _take(self) -> None:
        """The next layer of this task is there, and another one begun."""
        assert self._due, "the task asks for parameters of its layers, in their order"
        if not self._keep:
            self._own.arrays = {}  # before the next ones are there
        self._start_next()  # unless it was begun before
        asked = time.perf_counter()
        layer, coming = self._flying[0]
        found = coming.finish()
        self.waited += time.perf_counter() - asked
        self._flying.popleft()
        self._layer = layer
        self._due -= 1
        self._start_next()  # if this fails, so does the task: its sums must not come before
        self._own.arrays |= computing(found, self._dtype)[0]

    def _start_next(self) -> None:
        if self._next and not self._flying:
            layer, names = self._next[0]
            self._flying.append((layer, self._start(layer, names)))
            self._next.popleft()


def gathers(
    tasks: Sequence[Task], layers: Mapping[int, Mapping[int, Sequence[str]]], keep: bool
) -> list[list[tuple[int, list[str]]]]:
    """Layers that each task gathers, and their parameters; if they stay, each of these once."""
    there: set[str] = set()
    found = []
    for task in tasks:
        own = layers[task.chunk]
        uses = []
        for layer in [*own] if task.kind in "FR" else [*reversed([*own])]:
            names = [name for name in own[layer] if not keep or name not in there]
            there.update(names)
            if names:
                uses.append((layer, names))
        found.append(uses)
    return found


class _Own(Mapping[str, Array]):
    """Buffers, and the parameters that are there: more, once one of them is asked for.

    Attributes:
        arrays: The parameters.
    """

    def __init__(self, buffers: Mapping[str, Array], following: Callable[[], object]) -> None:
        self._buffers, self._following = buffers, following
        self.arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name in self._buffers:
            return self._buffers[name]
        while name not in self.arrays:
            self._following()
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._buffers
        yield from self.arrays

    def __len__(self) -> int:
        return len(self._buffers) + len(self.arrays)
