"""Gradients of one rank, added up over the microbatches of a step.

A parameter that several layers share has a sum for each of them: layers may be on other ranks, and
sums that are made layer by layer have the same bits wherever the layers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.exchange import tree
from mpicoll.train.step.tasks import Task

#: Number of a layer, and the name of a parameter that it has.
Use = tuple[int, str]


class Sums:
    """One vector for the gradients of all uses, or several where a tree is added up along.

    Args:
        shapes: Of the parameter of each use.
        dtype: Type to add up in.
        parts: The parts of the batch that this rank's microbatches are.
        count: Number of parts of the whole batch, added along the tree over them
            (`mpicoll.train.exchange.tree`); None: one microbatch after the other.

    Attributes:
        rows: Shape (sums, elements): of all microbatches, or of each of the tree's subtrees.
        nbytes: Of all memory that is kept.
        waited: Seconds of the last step in which this rank has waited for sums of other ranks.
    """

    waited = 0.0

    def __init__(
        self,
        shapes: Mapping[Use, tuple[int, ...]],
        dtype: np.dtype,
        parts: range,
        count: int | None,
    ) -> None:
        self._leaves = None if count is None else tree.program(parts, count)
        slots, sums = 1, 1
        if count is not None and self._leaves is not None:
            slots, sums = tree.slots(self._leaves), len(tree.subtrees(parts, count))
        sizes = {use: int(np.prod(shape, dtype=int)) for use, shape in shapes.items()}
        memory = np.zeros((slots, sum(sizes.values())), dtype)
        self.rows, self._views, start = memory[:sums], [dict[Use, Array]() for _ in memory], 0
        for use, size in sizes.items():
            for row, views in zip(memory, self._views, strict=True):
                views[use] = row[start : start + size].reshape(shapes[use])
            start += size
        self.nbytes = memory.nbytes
        self._begun: set[Use] = set()

    def begin(self) -> None:
        """A new step: nothing has been added."""
        self._begun.clear()

    def add(self, use: Use, gradient: Array, microbatch: int) -> None:
        """Add the gradient of a microbatch; they come in ascending order."""
        if self._leaves is None:
            view = self._views[0][use]
            if use in self._begun:
                view += gradient
            else:
                view[...] = gradient
                self._begun.add(use)
            return
        leaf = self._leaves[microbatch]
        self._views[leaf.slot][use][...] = gradient
        for target, source in leaf.folds:
            self._views[target][use] += self._views[source][use]

    def add_nothing(self, layers: range, microbatch: int) -> None:
        """As `add` for all uses by some layers, of a microbatch without samples."""
        if self._leaves is not None:
            for use in self._views[0]:
                if use[0] in layers:
                    self.add(use, np.zeros((), self.rows.dtype), microbatch)

    def passed(self, task: Task, layer: int) -> None:
        """A task has passed a layer, whether it has computed or failed."""

    def done(self, task: Task) -> None:
        """A task is over, likewise."""

    def poll(self) -> None:
        """Move on what is under way."""

    @property
    def under_way(self) -> object:
        """What MPI may still read or write if the step ends early; None for nothing."""
        return None

    def close(self) -> None:
        """The step is complete; what nothing was added to is zero."""
        if self._leaves is None:
            self._clear(self._views[0])

    def _clear(self, uses: Iterable[Use]) -> None:
        """What nothing was added to is zero."""
        for use in uses:
            if use not in self._begun:
                self._views[0][use][...] = 0

    def not_finite(self) -> str:
        """The name of a parameter whose gradient in the first row is not; "" if all are."""
        if np.isfinite(self.rows[0]).all():
            return ""
        views = self._views[0].items()
        return next(name for (_, name), view in views if not np.isfinite(view).all())

    @property
    def uses(self) -> dict[Use, Array]:
        """Views of the first row."""
        return self._views[0]

    def totals(self) -> dict[str, Array]:
        """The gradient of each parameter in the first row: of those with one use, as a view."""
        return totals(self.uses)


def totals(uses: Mapping[Use, Array]) -> dict[str, Array]:
    """The gradient of each parameter: the sum over its uses, or the only one itself."""
    by_name: dict[str, dict[int, Array]] = {}
    for (layer, name), array in uses.items():
        by_name.setdefault(name, {})[layer] = array
    return {name: total(arrays) for name, arrays in by_name.items()}


def total(uses: Mapping[int, Array]) -> Array:
    """The sum over the layers that share a parameter, the last layer first; of one, itself."""
    first, *others = (uses[layer] for layer in sorted(uses, reverse=True))
    return sum(others, start=first)
