"""Runs the program of one rank: computes, sends and receives, task by task.

Where a task fails, or what it needs has failed elsewhere, the rank goes on through its program: it
computes no more, and what it would have sent says that it is lost.  So all messages of a step are
sent and received, and every rank comes to the end of it.
"""

from __future__ import annotations

import math
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.chunks import Slopes
from mpicoll.train.models.layers import random_states, set_random_states
from mpicoll.train.parallel.program import Failure, Held, Plan, Span
from mpicoll.train.parallel.sums import Sums
from mpicoll.train.parallel.weights import Update, Weights
from mpicoll.train.parallel.wires import Parcel, Wire, Wires
from mpicoll.train.step.tasks import RECEIVES, Task


class Executor:
    """One run of a program.

    Args:
        plan: What to do.
        wires: The messages; None for a program without any.
        weights: The parameters.
        buffers: Names of the buffers of each chunk.
        sums: Where gradients are added up; None in evaluation.
        batches: The microbatches: the first chunk reads their inputs, the last one their targets.
        update: Updates parameters between microbatches, where the program says so.
        spans: Takes when each task was done; None for no record.
        failure: What has gone wrong before.

    Attributes:
        samples: Of all microbatches.
        losses: Sum of each microbatch's losses over its samples, divided by `Batch.total`; on the
            rank of the last chunk.
        outputs: In evaluation, of each microbatch the loss of each sample, and the model's outputs;
            there.
        doing: The task that it is in, or has ended last.
        failure: The first that went wrong on this rank, that ends the step.
        skipped: Of a step that goes on: microbatches that were left out, and why.
        held: The most microbatches kept at a time, counted for each chunk.
    """

    def __init__(
        self,
        plan: Plan,
        wires: Wires | None,
        weights: Weights,
        buffers: Mapping[int, Sequence[str]],
        sums: Sums | None,
        batches: Sequence[Batch],
        update: Update | None = None,
        spans: list[Span] | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._plan, self._wires, self._weights = plan, wires, weights
        self._buffers, self._sums, self._batches = buffers, sums, batches
        self._update, self._spans = update, spans
        # What has been handed on, by direction, edge and microbatch; None is what is lost.
        self._values: dict[tuple[str, int, int], Array | None] = {}
        self._kept: dict[tuple[int, int], Held] = {}
        self._lost: set[int] = set()  # microbatches that have failed here or elsewhere
        self.samples = sum(len(batch.samples) for batch in batches)
        self._doing: dict[str, Callable[[Task, Array | None], None]] = {
            "F": self._forward,
            "R": self._forward_again,
            "B": self._backward,
            "I": self._backward_input,
            "W": self._backward_weight,
            "U": self._check,
        }
        self.losses: dict[int, float] = {}
        self.outputs: dict[int, tuple[Array, Array]] = {}
        self.doing: Task | None = None
        self.failure = failure
        self.skipped: dict[int, str] = {}
        self.held = 0

    def run(self) -> None:
        """Go through the program.

        Raises:
            TimeoutError: A message has not come within `MPICOLL_TIMEOUT`.
        """
        if self._sums is not None:
            self._sums.begin()
        if self._wires is not None:
            self._wires.expect(
                (self._wire(task), self._parcel(task))
                for task in self._plan.program
                if task.kind in RECEIVES
            )
        for task in self._plan.program:
            start, self.doing = time.perf_counter(), task
            if task.kind in RECEIVES:
                self._receive(task)
            elif task.is_message:
                self._send(task)
            else:
                self._compute(task)
            if self._spans is not None:
                self._spans.append(Span(task, start, time.perf_counter()))
        if self._wires is not None:
            self._wires.finish()
        self._weights.close()
        if self._sums is not None:
            self._sums.close()

    @property
    def is_lost(self) -> bool:
        """Whether something of this step has failed here or elsewhere."""
        return bool(self._lost) or self.failure is not None

    # --- messages ---

    def _wire(self, task: Task) -> Wire:
        chunk = task.source if task.kind in RECEIVES else task.destination
        return Wire(task.chunk, task.kind.endswith("F"), self._plan.place(chunk))

    def _parcel(self, task: Task) -> Parcel:
        samples = len(self._batches[task.microbatch].samples)
        return Parcel((samples, *self._plan.shapes[task.chunk]), self._plan.dtype)

    def _receive(self, task: Task) -> None:
        assert self._wires is not None
        place = task.kind[-1], task.chunk, task.microbatch
        self._values[place] = self._wires.take(self._wire(task))

    def _send(self, task: Task) -> None:
        assert self._wires is not None
        array = self._values.pop((task.kind[-1], task.chunk, task.microbatch))
        self._wires.put(self._wire(task), array, self._parcel(task))

    # --- computing ---

    def _compute(self, task: Task) -> None:
        given = self._taken(task)
        if not self._need_not(task):
            try:
                if self._batches[task.microbatch].samples.size:
                    self._doing[task.kind](task, given)
                else:
                    self._do_nothing(task)
            except Exception as error:
                self.failure = Failure.of(task, error)
        if self._need_not(task):
            self._kept.pop(task[1:3], None)
            self._hand_on(task, None)
        if task.kind == "U":
            self._update_weights(task)
        else:
            self._weights.done(task, _ignored if self._sums is None else self._sums.passed)
            if self._sums is not None:
                self._sums.done(task)

    def _poll(self) -> None:
        """Move on, between two layers, what is under way."""
        for moving in (self._weights, self._wires, self._sums):
            if moving is not None:
                moving.poll()

    def _taken(self, task: Task) -> Array | None:
        """What a task is given by the chunk before, or on the way back by the one behind."""
        kind, chunk, microbatch, _ = task
        if kind == "F" and chunk > 0:
            found = self._values.pop(("F", chunk, microbatch))
        elif kind in "BI" and chunk < self._plan.last:
            found = self._values.pop(("B", chunk + 1, microbatch))
        else:
            return None
        if found is None:
            self._lost.add(microbatch)
        return found

    def _hand_on(self, task: Task, array: Array | None) -> None:
        """Give what a task has made to the chunk behind, or on the way back to the one before.

        Raises:
            ValueError: It is not what the model says.
        """
        kind, chunk, microbatch, _ = task
        edge = chunk + 1 if kind == "F" else chunk
        if kind in "RWU" or edge not in self._plan.shapes:
            return
        if array is not None:
            shape, dtype = self._parcel(Task(kind, edge, microbatch))
            if array.dtype == np.float32 and dtype.itemsize < 4:  # computed in float32 alone
                array = array.astype(dtype)
            if (array.shape, array.dtype) != (shape, dtype):
                raise ValueError(
                    f"chunk {chunk} made {array.dtype} of shape {array.shape} where {dtype} of "
                    f"shape {shape} is awaited: let its layers give what their output_shape says, "
                    "in the type of the model"
                )
        self._values["F" if kind == "F" else "B", edge, microbatch] = array

    def _need_not(self, task: Task) -> bool:
        """Whether a task is in vain; in a step without updates, all are with the first."""
        if self._update is None:
            return self.is_lost
        return self.failure is not None or task.microbatch in self._lost

    def _lose(self, task: Task, text: str) -> None:
        """Something is not finite: the step ends, or goes on without this microbatch."""
        if self._update is None:
            self.failure = Failure(f"{task}: {text}")
        else:
            self._lost.add(task.microbatch)
            self.skipped[task.microbatch] = text

    def _do_nothing(self, task: Task) -> None:
        """A microbatch without samples."""
        kind, chunk, microbatch, _ = task
        if kind == "F" and chunk == self._plan.last:
            self.losses[microbatch] = 0.0
        edge = chunk + 1 if kind == "F" else chunk
        if edge in self._plan.shapes:
            self._hand_on(task, np.empty((0, *self._plan.shapes[edge]), self._plan.dtype))
        if kind in "BW" and self._sums is not None:
            self._sums.add_nothing(self._plan.chunks[chunk].numbers, microbatch)

    def _forward(self, task: Task, given: Array | None) -> None:
        chunk, batch = self._plan.chunks[task.chunk], self._batches[task.microbatch]
        parameters, rounded = self._weights.of(task)
        values = batch.inputs if given is None else given
        held = Held()
        if self._sums is not None and self._plan.recomputes:
            buffers = {name: parameters[name].copy() for name in self._buffers[task.chunk]}
            held = Held(values, buffers, random_states(chunk.layers))
        trained = None if self._sums is None else batch
        outputs, memories = chunk.forward(parameters, values, trained, rounded, self._poll)
        slopes = None
        if task.chunk == self._plan.last:
            slopes = self._measure(task, outputs)
        if self._sums is not None:
            if not self._plan.recomputes:
                held = Held(memories=memories, slopes=slopes)
            self._kept[task[1:3]] = held
            self.held = max(self.held, len(self._kept))
        self._hand_on(task, outputs)

    def _measure(self, task: Task, outputs: Array) -> Array:
        """Loss of the model's outputs; its slopes by them."""
        batch = self._batches[task.microbatch]
        losses, slopes = self._plan.loss.evaluate(outputs, batch.targets)
        if self._sums is None:
            self.outputs[task.microbatch] = losses, outputs
        loss = float(losses.sum(dtype=np.float64)) / batch.total
        self.losses[task.microbatch] = loss
        if self._sums is not None and not math.isfinite(loss):
            self._lose(task, f"the loss is {loss}")
        slopes /= batch.total
        return slopes

    def _forward_again(self, task: Task, given: Array | None) -> None:
        chunk, batch = self._plan.chunks[task.chunk], self._batches[task.microbatch]
        parameters, rounded = self._weights.of(task)
        held = self._kept[task[1:3]]
        assert held.inputs is not None and held.buffers is not None
        now = random_states(chunk.layers)
        if held.states is not None:
            set_random_states(chunk.layers, held.states)
        try:
            # Copies of the buffers: the first pass has changed them already.
            given_then = ChainMap(held.buffers, cast("dict[str, Array]", parameters))
            outputs, memories = chunk.forward(given_then, held.inputs, batch, rounded, self._poll)
        finally:
            if now is not None:
                set_random_states(chunk.layers, now)
        slopes = self._measure(task, outputs) if task.chunk == self._plan.last else None
        self._kept[task[1:3]] = Held(memories=memories, slopes=slopes)

    def _backward(self, task: Task, given: Array | None) -> None:
        parameters, rounded = self._weights.of(task)
        held = self._kept.pop(task[1:3])
        assert held.memories is not None
        error = held.slopes if task.chunk == self._plan.last else given
        chunk = self._plan.chunks[task.chunk]
        for slopes in chunk.backward(parameters, held.memories, error, rounded):
            self._add(task, slopes)
            error = slopes.error
            del slopes  # before the next layer's are there
        self._hand_on(task, error)

    def _backward_input(self, task: Task, given: Array | None) -> None:
        parameters, rounded = self._weights.of(task)
        held = self._kept[task[1:3]]
        assert held.memories is not None
        error, kept = self._plan.chunks[task.chunk].backward_input(
            parameters,
            held.memories,
            held.slopes if task.chunk == self._plan.last else given,
            rounded,
            self._poll,
        )
        self._kept[task[1:3]] = Held(memories=held.memories, kept=kept)
        self._hand_on(task, error)

    def _backward_weight(self, task: Task, given: Array | None) -> None:
        parameters, _ = self._weights.of(task)
        held = self._kept.pop(task[1:3])
        assert held.memories is not None and held.kept is not None
        chunk = self._plan.chunks[task.chunk]
        for slopes in chunk.backward_weight(parameters, held.memories, held.kept):
            self._add(task, slopes)
            del slopes  # before the next layer's are there

    def _add(self, task: Task, slopes: Slopes) -> None:
        assert self._sums is not None
        for name, gradient in slopes.gradients.items():
            self._sums.add((slopes.layer, name), gradient, task.microbatch)
        self._poll()

    def _check(self, task: Task, given: Array | None) -> None:
        """Before an update: a gradient that is not finite is left out."""
        assert self._sums is not None
        name = self._sums.not_finite()
        if name:
            self._lose(task, f"the gradient of {name} is not finite")

    def _update_weights(self, task: Task) -> None:
        assert self._sums is not None and self._update is not None
        idle = self._need_not(task) or not self._batches[task.microbatch].samples.size
        try:
            gradients = None if idle else self._sums.totals()
            self._weights.update(task.chunk, self._update, gradients)
        except Exception as error:
            self.failure = Failure.of(task, error)
        self._sums.begin()


def _ignored(task: Task, layer: int) -> None:
    """In evaluation there are no sums."""
