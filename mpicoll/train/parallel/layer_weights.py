"""Parameters that are gathered layer by layer, from the pieces of all replicas, in each task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.precision import Rounding, computing
from mpicoll.train.parallel.weights import Weights
from mpicoll.train.step.tasks import Task

#: Gathers the parameters of a layer, of the type to compute in; collective among replicas.
Gather = Callable[[int], dict[str, Array]]


class LayerWeights(Weights):
    """At most one layer's parameters are there at a time.

    All replicas have the same program, and each task makes all its gathers in the order of its
    layers: those that a failed task has not made, `done` makes.

    Args:
        gather: Gathers a layer.
        layers: Numbers of the layers with parameters, ascending, of each chunk.
        buffers: By name.
        dtype: Type to compute in.
    """

    def __init__(
        self,
        gather: Gather,
        layers: Mapping[int, Sequence[int]],
        buffers: Mapping[str, Array],
        dtype: np.dtype,
    ) -> None:
        self._gather, self._layers = gather, layers
        self._buffers, self._dtype = buffers, dtype
        self._task: Task | None = None
        self._own = _Own(buffers, self._next)
        self._coming: deque[int] = deque()
        self.most = 1

    def of(self, task: Task) -> tuple[Parameters, Rounding]:
        self._begin(task)
        _, rounded = computing({}, self._dtype)
        return self._own, rounded

    def done(self, task: Task) -> None:
        self._begin(task)
        while self._coming:
            self._next()
        self._own.arrays, self._task = {}, None

    def close(self) -> None:
        """Nothing is there between tasks."""

    def _begin(self, task: Task) -> None:
        if self._task != task:
            self._task = task
            order = self._layers[task.chunk]
            self._coming = deque(order if task.kind in "FR" else reversed(order))

    def _next(self) -> None:
        self._own.arrays = {}  # before the next ones are there
        found = self._gather(self._coming[0])
        self._coming.popleft()  # if there was no memory for it, `done` makes this gather
        self._own.arrays = dict(computing(found, self._dtype)[0])


class _Own(Mapping[str, Array]):
    """Buffers, and the parameters of one layer: the next one's, once one of them is asked for.

    Attributes:
        arrays: Those of the layer.
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
