"""Gradients that are summed over the replicas while the backward pass goes on."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.parallel.pieces import Pieces, Summing
from mpicoll.train.parallel.sums import Sums, Use
from mpicoll.train.step.tasks import Task


class PieceSums(Sums):
    """Sums of microbatches; with the last of these in them, they go to the replicas' pieces.

    One vector is under way at a time.  All replicas have the same program, and begin the vectors
    in one order: those that a failed task has not begun, `passed` and `done` begin.

    Args:
        shapes, dtype, parts: As of `Sums`.
        chunks: By number of the chunk, the pieces of the uses of its layers, the last layer first.

    Attributes:
        found: This rank's pieces of the sums over the replicas, once the step is complete.
    """

    def __init__(
        self,
        shapes: Mapping[Use, tuple[int, ...]],
        dtype: np.dtype,
        parts: range,
        chunks: Mapping[int, Pieces[Use]],
    ) -> None:
        super().__init__(shapes, dtype, parts, None)
        self._chunks, self._last = chunks, len(parts) - 1
        self._chunk_of = {use: c for c, pieces in chunks.items() for use in pieces.spans}
        self._flying: Summing[Use] | None = None
        self._summed: dict[Use, Array] = {}
        self._complete: set[Use] = set()
        self._begun_vectors = dict.fromkeys(chunks, 0)

    def begin(self) -> None:
        super().begin()
        self._summed, self._complete = {}, set()
        self._begun_vectors = dict.fromkeys(self._chunks, 0)
        self.waited = 0.0

    def add(self, use: Use, gradient: Array, microbatch: int) -> None:
        super().add(use, gradient, microbatch)
        if microbatch == self._last:
            self._complete.add(use)
            self._start(self._chunk_of[use])

    def passed(self, task: Task, layer: int) -> None:
        self._complete_uses(task, [u for u in self._chunks[task.chunk].spans if u[0] == layer])

    def done(self, task: Task) -> None:
        self._complete_uses(task, self._chunks[task.chunk].spans)

    def _complete_uses(self, task: Task, uses: Collection[Use]) -> None:
        if task.kind in "BW" and task.microbatch == self._last:
            self._clear(uses)
            self._complete.update(uses)
            self._start(task.chunk)

    def poll(self) -> None:
        if self._flying is not None:
            self._flying.Test()

    @property
    def under_way(self) -> object:
        return self._flying

    def close(self) -> None:
        super().close()
        self._await()

    @property
    def found(self) -> dict[Use, Array]:
        empty = np.empty(0, self.rows.dtype)
        return {use: self._summed.get(use, empty) for use in self.uses}

    def _start(self, chunk: int) -> None:
        """Begin the vectors that come next, as far as they are complete."""
        pieces = self._chunks[chunk]
        while (number := self._begun_vectors[chunk]) < len(pieces.vectors):
            if not self._complete.issuperset(pieces.vectors[number]):
                return
            self._await()
            self._flying = pieces.start_sum(number, self.uses, self.rows.dtype)
            self._begun_vectors[chunk] += 1

    def _await(self) -> None:
        """The vector under way is there."""
        if self._flying is None:
            return
        asked = time.perf_counter()
        self._summed |= self._flying.finish()
        self.waited += time.perf_counter() - asked
        self._flying = None
