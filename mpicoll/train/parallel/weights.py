"""The parameters that the tasks of a step compute with, in as many versions as are under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.precision import Rounding, computing
from mpicoll.train.step.tasks import Task

#: Changes parameters in place, given by name, by gradients of the same names.
Update = Callable[[dict[str, Array], dict[str, Array]], object]


class _Version(NamedTuple):
    arrays: dict[str, Array]
    given: Parameters
    rounded: Rounding


class Weights:
    """The parameters of the chunks of one rank.

    A step that updates them between microbatches keeps the versions that tasks still to come will
    see; the program says which.

    Args:
        parameters: By name. At the end of a step these arrays hold the newest version.
        buffers: By name; of them there is one version.
        names: Of the parameters of each chunk, by its number.
        dtype: Type to compute in; a narrow one's parameters are kept in float32.
        program: The tasks of a step.

    Attributes:
        most: The most versions of a chunk that were kept at a time, in the last step.
        waited: Seconds in which this rank has waited for parameters of other ranks.
    """

    waited = 0.0

    def __init__(
        self,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        names: Mapping[int, Sequence[str]],
        dtype: np.dtype[Any],
        program: Sequence[Task],
    ) -> None:
        self._parameters, self._buffers, self._dtype = parameters, buffers, dtype
        self._left = Counter(
            (task.chunk, task.version)
            for task in program
            if not task.is_message and task.kind != "U"
        )
        self._kept = {
            chunk: {0: self._version({name: parameters[name] for name in own})}
            for chunk, own in names.items()
        }
        self.most = 1

    def of(self, task: Task) -> tuple[Parameters, Rounding]:
        """Parameters and buffers that a task computes with, and how all results are rounded."""
        _, given, rounded = self._kept[task.chunk][task.version]
        return given, rounded

    def done(self, task: Task, passed: Callable[[Task, int], object]) -> None:
        """A task will not be asked for again; what no other needs is let go.

        Args:
            task: It.
            passed: Called with the number of each layer that a failed task has not come to, in
                its order.
        """
        place = task.chunk, task.version
        self._left[place] -= 1
        kept = self._kept[task.chunk]
        if not self._left[place] and task.version != max(kept):
            del kept[task.version]

    def poll(self) -> None:
        """Move on what is under way."""

    @property
    def under_way(self) -> object:
        """What MPI may still read or write if the step ends early; None for nothing."""
        return None

    def update(self, chunk: int, update: Update, gradients: dict[str, Array] | None) -> None:
        """Make the next version of a chunk; without gradients, an equal one."""
        kept = self._kept[chunk]
        newest = max(kept)
        arrays = kept[newest].arrays
        if self._left[chunk, newest]:
            arrays = {name: array.copy() for name, array in arrays.items()}
        else:
            del kept[newest]
        try:
            if gradients is not None:
                update(arrays, gradients)
        finally:  # the step goes on to its end, whatever the update has done
            kept[newest + 1] = self._version(arrays)
        self.most = max(self.most, len(kept))

    def close(self) -> None:
        """The step is over."""
        for kept in self._kept.values():
            for name, array in kept[max(kept)].arrays.items():
                if array is not self._parameters[name]:
                    self._parameters[name][...] = array
        self._kept = {}

    def _version(self, arrays: dict[str, Array]) -> _Version:
        own = {name: array.astype(self._dtype, copy=False) for name, array in arrays.items()}
        given, rounded = computing({**own, **self._buffers}, self._dtype)
        return _Version(arrays, given, rounded)
