"""The readable runner: executes a plan over MPI point-to-point messages, in Python.

All receives of a phase are posted before its sends, no call blocks, and every channel moves on as
soon as its own messages are complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from mpicoll import ops
from mpicoll.engine import progress
from mpicoll.engine.plan import Fold, Move, Phase, Plan, PlannedMessage
from mpicoll.engine.spans import Span
from mpicoll.ops import Reduction
from mpicoll.schedule import MAX_OPEN_CHANNELS

#: ``step(kind, peer, bytes, channel, phase, start)`` notes what ends now.
Step: TypeAlias = Callable[[str, int | None, int, int, int, float], None]


class Execution:
    """One run of a plan.  The object must be kept until :attr:`done`: it holds the buffers.

    Args:
        plan: what to do.
        comm: a communicator of the library's own, on which nobody else sends with these tags.
        send, recv: the user's buffers as 1-D ``uint8`` arrays, or None where the rank has none.
        reduction: the operator, for collectives that reduce.
        lane: which part of the tags to use (see :func:`tag`).
        step: told of every step that ends.
        temporary: the plan's temporary space, see :func:`temporary_of`; its own if not given.
    """

    def __init__(
        self,
        plan: Plan,
        comm: MPI.Comm,
        send: np.ndarray | None,
        recv: np.ndarray | None,
        reduction: Reduction | None = None,
        lane: int = 0,
        step: Step | None = None,
        temporary: Sequence[np.ndarray] | None = None,
    ) -> None:
        self._step = step
        self._plan, self._comm, self._lane = plan, comm, lane
        self._most_open = plan.most_open
        self._reduction = reduction
        nothing = np.empty(0, np.uint8)
        self._buffers = [
            nothing if send is None else send,
            nothing if recv is None else recv,
            *(temporary_of(plan) if temporary is None else temporary),
        ]
        self._requests: list[MPI.Request] = []
        self._owners: list[tuple[_Running, bool]] = []
        self._posted: list[_Posted] = []  # beside the requests, for the trace alone
        self._left = [0] * (plan.channels[0].segments if plan.channels else 0)
        self.done = False
        self._move(plan.before)
        for channel in plan.channels:
            self._left[channel.segment] += 1
        self._to_open = [
            number
            for number, channel in enumerate(plan.channels)
            if channel.segment < channel.window
        ]
        self._open()
        self._finish_if_idle()

    def test(self) -> bool:
        """Make what progress is possible without waiting; True once everything is done."""
        if not self.done:
            self._progress(completed(self._requests))
        return self.done

    def wait(self, pause: Callable[[], object] = os.sched_yield) -> None:
        """Progress until everything is done; lets signals in.

        Args:
            pause: called while nothing moves.  It lets others use the processor, and may raise.
        """
        idle = 0
        while not self.done:
            progress.poll()
            found = completed(self._requests)
            if found:
                idle = 0
                self._progress(found)
            else:
                idle += 1
                if idle > progress.PATIENCE:
                    pause()

    def _progress(self, found: Sequence[int] | None) -> None:
        if not found:
            return
        touched: dict[int, _Running] = {}
        for index in found:
            running, receive = self._owners[index]
            if receive:
                running.receives -= 1
            else:
                running.sends -= 1
            touched[running.number] = running
            if self._step is not None:
                self._step(*self._posted[index])
        gone = set(found)
        if self._step is not None:
            self._posted = [p for i, p in enumerate(self._posted) if i not in gone]
        self._requests = [r for i, r in enumerate(self._requests) if i not in gone]
        self._owners = [o for i, o in enumerate(self._owners) if i not in gone]
        for running in touched.values():
            self._advance(running)
        self._open()
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if self._requests or self.done:
            return
        self._move(self._plan.after)
        self._buffers = []
        self.done = True

    def _open(self) -> None:
        """Open the channels that may; one without messages is complete at once."""
        while self._to_open:
            number = self._to_open.pop(0)
            running = _Running(number, self._plan.channels[number].phases)
            self._post(running)
            self._advance(running)

    def _advance(self, running: _Running) -> None:
        """Close every phase that is complete and post the next one."""
        while running.is_complete():
            phase = running.phases[running.current]
            place = (running.number, running.current)
            self._move(phase.stores, *place)
            for fold in phase.folds:
                start = 0.0 if self._step is None else time.time()
                assert self._reduction is not None
                fold_spans(self._reduction, fold, self._bytes)
                if self._step is not None:
                    self._step("fold", None, fold.target.length, *place, start)
            running.current += 1
            self._post(running)
        if running.current == len(running.phases) and not running.closed:
            running.closed = True
            self._close(running.number)

    def _close(self, number: int) -> None:
        """A channel is complete; the segment that waits for its segment may open."""
        channel = self._plan.channels[number]
        self._left[channel.segment] -= 1
        opens = channel.segment + channel.window
        if not self._left[channel.segment] and opens < channel.segments:
            each = len(self._plan.channels) // channel.segments
            self._to_open += range(opens * each, (opens + 1) * each)

    def _post(self, running: _Running) -> None:
        if running.current == len(running.phases):
            return
        phase = running.phases[running.current]
        self._move(phase.moves, running.number, running.current)
        label = tag(self._lane, running.number, self._most_open)
        self._start(self._comm.Irecv, phase.receives, label, running, True)
        self._start(self._comm.Isend, phase.sends, label, running, False)
        running.receives += len(phase.receives)
        running.sends += len(phase.sends)

    def _start(
        self,
        call: Callable[..., MPI.Request],
        messages: Sequence[PlannedMessage],
        label: int,
        running: _Running,
        receive: bool,
    ) -> None:
        for message in messages:
            buffer = self._bytes(message.span)
            self._requests.append(call([buffer, MPI.BYTE], message.peer, label))
            self._owners.append((running, receive))
            if self._step is not None:
                kind = "recv" if receive else "send"
                place = (running.number, running.current)
                self._posted.append((kind, message.peer, message.span.length, *place, time.time()))

    def _bytes(self, span: Span) -> np.ndarray:
        return self._buffers[span.buffer][span.offset : span.offset + span.length]

    def _move(self, moves: Sequence[Move], channel: int = 0, phase: int = 0) -> None:
        for move in moves:
            start = 0.0 if self._step is None else time.time()
            self._bytes(move.target)[:] = self._bytes(move.source)
            if self._step is not None:
                self._step("copy", None, move.target.length, channel, phase, start)


def fold_spans(reduction: Reduction, fold: Fold, memory: Callable[[Span], np.ndarray]) -> None:
    """Fold what is partly in the accumulator's type; ``memory``: the bytes of a span."""
    narrow, wide = reduction.dtype, reduction.wide
    if not (fold.wide_first or fold.wide_target) or wide == narrow:
        operands = [memory(span).view(narrow) for span in fold.operands]
        reduction.fold(memory(fold.target).view(narrow), operands)
        return
    widened = ops.reduction(reduction.name, wide)
    # Only part of the senders had room: the partial value stays in the accumulator's type.
    kinds = [wide if fold.wide_first else narrow] + [narrow] * (len(fold.operands) - 1)
    operands = [
        memory(span).view(kind).astype(wide, copy=False)
        for span, kind in zip(fold.operands, kinds, strict=True)
    ]
    target = memory(fold.target).view(wide if fold.wide_target else narrow)
    if fold.wide_target:
        widened.fold(target, operands)
    else:
        result = np.empty(target.size, wide)
        widened.fold(result, operands)
        target[:] = result


def completed(requests: list[MPI.Request]) -> list[int] | None:
    """Indices of the requests that are complete; None if there are none.

    Raises:
        MPI.Exception: why the first of them has failed that has.
    """
    statuses: list[MPI.Status] = []
    try:
        found: list[int] | None = MPI.Request.Testsome(requests, statuses)
    except MPI.Exception as error:
        raise first_failure(statuses) or error from None
    problem = first_failure(statuses)
    if problem is not None:
        raise problem
    return found


def first_failure(statuses: Sequence[MPI.Status]) -> MPI.Exception | None:
    """Why the first of several requests has failed that has: MPI itself says only that one has."""
    for status in statuses:
        if status.Get_error() not in (MPI.SUCCESS, MPI.ERR_PENDING):
            return MPI.Exception(status.Get_error())
    return None


#: Kind, peer, bytes, channel, phase, time.
_Posted: TypeAlias = tuple[str, int, int, int, int, float]


class _Running:
    """A channel under way."""

    __slots__ = ("closed", "current", "number", "phases", "receives", "sends")

    def __init__(self, number: int, phases: Sequence[Phase]) -> None:
        self.number, self.phases = number, phases
        self.current = self.receives = self.sends = 0
        self.closed = False

    def is_complete(self) -> bool:
        """The current phase has all that it waits for."""
        if self.current == len(self.phases) or self.receives:
            return False
        return not (self.sends and self.phases[self.current].last)


def temporary_of(plan: Plan) -> list[np.ndarray]:
    """The temporary space that a plan runs in."""
    return [np.empty(length, np.uint8) for length in plan.temporary]


def tag(lane: int, channel: int, most_open: int) -> int:
    """The tag of a channel's messages; lanes keep operations under way together apart.

    A channel shares it with those alone that open once it is closed, as messages of one tag stay in
    order; any others may be open at the same time, however far apart their segments are.
    """
    return lane * MAX_OPEN_CHANNELS + channel % most_open
