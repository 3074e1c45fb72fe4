"""A server's part of the parameters: what it does with what workers push and pull. No messages.

Workers are numbered in the order of their ranks. A shard is told what arrives, in the order in
which each worker sent it, and says whom to answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.json_lines import Appender, Attempt
from mpicoll.train.optimizers import Optimizer, empty_state
from mpicoll.train.servers.consistency import Adaptive, Consistency

#: Ways to scale the learning rate of one worker's push.
PUSH_RATES = ("share", "staleness", "full")


@dataclass(frozen=True)
class Push:
    """A gradient of one step of one worker.

    Attributes:
        clock: Steps the worker completed before this one, in the whole run.
        samples: Samples it is of; none for 0.
        total: Samples of the step, of all workers together.
        finite: Whether all of the gradient is, in all shards.
        seconds, processor: Time computed, and processor time in it.
        version: Updates in the parameters it was computed from.
    """

    clock: int
    samples: int
    total: int
    finite: bool
    seconds: float
    processor: float
    version: int


@dataclass(frozen=True)
class Event:
    """An entry of a shard's trace.

    Attributes:
        kind: `push` (counted), `pull` (answered), `send` (unasked) or `leave`.
        worker: Whose.
        clock: The worker's clock: before the step pushed, at the pull, or the last for which what
            was sent is good.
        bound: S at that moment.
    """

    kind: str
    worker: int
    clock: int
    bound: float


@dataclass
class _Worker:
    """What a shard knows of a worker."""

    clock: int
    active: bool = False  # until the shard begins
    waiting: bool = False  # for parameters
    version: int = 0  # updates in the parameters it was given last
    last: float = -1.0  # clock for which these are good
    pending: deque[tuple[Push, Array]] = field(default_factory=deque)  # bsp, oldest first


class Shard:
    """Parameters, optimizer and clocks of one server.

    Args:
        weights: Its parameters, shape (elements,), changed in place.
        optimizer: What makes an update of a gradient.
        workers: Number of workers.
        model: The consistency model.
        rate: Learning rate of a step, counted from 1 over the run.
        push_rate: How the rate of one push is scaled where each makes an update of its own:
            `share` by its share of the samples of the step, `staleness` by 1 / (1 + updates since
            its worker got its parameters), `full` by nothing.
        record: Whether to keep a trace.

    Attributes:
        state: Arrays of the optimizer.
        updates: Updates made.
        skipped: Steps (bsp) or pushes (else) left out as not finite.
        trace: What happened, in order.
        granted: Largest clock at which parameters were given out.
        adaptive: What chooses the bound, None where it is fixed.
    """

    def __init__(
        self,
        weights: Array,
        optimizer: Optimizer,
        workers: int,
        model: Consistency,
        rate: Callable[[int], float],
        push_rate: str,
        record: bool = False,
    ) -> None:
        self.weights = weights
        self.state = empty_state(optimizer, weights)
        self.updates = self.skipped = self.granted = 0
        self.trace: list[Event] = []
        self._optimizer, self._model = optimizer, model
        self._rate, self._push_rate, self._keep = rate, push_rate, record
        self._step = 0  # bsp: the clock whose gradients are awaited
        self._workers = [_Worker(0) for _ in range(workers)]
        self.adaptive = Adaptive(model, workers) if model.kind == "adaptive" else None

    def begin(self, clock: int) -> None:
        """All workers start (again) at a clock."""
        for worker in self._workers:
            worker.clock, worker.active, worker.waiting = clock, True, False
            worker.last = clock - 1.0
            worker.pending.clear()
        self.granted = self._step = clock

    @property
    def bound(self) -> float:
        """S now."""
        return self._model.low if self.adaptive is None else self.adaptive.bound

    @property
    def idle(self) -> bool:
        """Whether all workers have left."""
        return not any(worker.active for worker in self._workers)

    def least(self) -> float:
        """Least clock of the workers that have not left; infinite if all have."""
        return min((w.clock for w in self._workers if w.active), default=math.inf)

    def push(self, number: int, push: Push, gradient: Array) -> None:
        """A worker completed a step.

        Args:
            number: Of the worker.
            push: What it says.
            gradient: Its part of the gradient of the step: the sum over its samples, divided by
                those of all. Not kept.
        """
        worker = self._workers[number]
        if push.clock != worker.clock:
            raise RuntimeError(
                f"worker {number} pushes clock {push.clock}, awaited is {worker.clock}"
            )
        worker.clock += 1
        self.granted = max(self.granted, push.clock)  # perhaps by another shard
        self._record("push", number, push.clock)
        if self.adaptive is not None:
            self.adaptive.note(number, push.seconds, push.processor)
        if self._model.kind == "bsp":
            worker.pending.append((push, gradient.copy()))
        else:
            self._apply_one(worker, push, gradient)
        self._advance()

    def take_over(self) -> None:
        """Who gave out parameters before is no more: any worker may have got them at its clock."""
        self.granted = max(self.granted, *(worker.clock for worker in self._workers))

    def is_active(self, number: int) -> bool:
        """Whether a worker has not left."""
        return self._workers[number].active

    def has(self, number: int, clock: int) -> bool:
        """Whether a worker's push of a clock has come."""
        return clock < self._workers[number].clock

    def pull(self, number: int) -> None:
        """A worker asks for parameters at its clock."""
        self._workers[number].waiting = True

    def leave(self, number: int) -> None:
        """A worker has finished, failed or departed: nobody waits for it any more."""
        worker = self._workers[number]
        if not worker.active:
            return
        worker.active = worker.waiting = False
        self._record("leave", number, worker.clock)
        self._advance()

    def answers(self, held: Container[int] = ()) -> list[int]:
        """Workers that get their parameters now; each is asked for once.

        Args:
            held: Workers that get none yet.

        Raises:
            RuntimeError: The bound would be broken: a fault of this class.
        """
        found = []
        for number, worker in enumerate(self._workers):
            if not worker.waiting or number in held or not self._may_get(worker):
                continue
            worker.waiting = False
            self._give("pull", number, worker.clock)
            found.append(number)
        return found

    def due(self, every: int, free: Iterable[int]) -> list[tuple[int, int]]:
        """Workers that are sent parameters unasked, now: each must know that they were.

        That is who may not begin its step with what it has and may with what there is, and who has
        not seen the last `every` updates. What is sent is good for as many steps as the bound
        allows, at most `every`.

        Args:
            every: Updates from one message to the next.
            free: Workers that something can be sent to.

        Returns:
            Number of each, and the last clock for which what it gets is good.

        Raises:
            RuntimeError: As `answers`.
        """
        found = []
        for number in free:
            worker = self._workers[number]
            owed = worker.clock > worker.last and self._may_get(worker)
            news = self.updates - worker.version >= every and self._model.kind != "bsp"
            if worker.active and (owed or news):
                last = int(min(self.least() + self.bound, worker.clock + every - 1))
                self._give("send", number, last)
                found.append((number, last))
        return found

    def _give(self, kind: str, number: int, last: int) -> None:
        """Parameters go out to a worker, good for its steps up to a clock."""
        worker = self._workers[number]
        ahead = last - self.least()
        if ahead > self._model.high:
            raise RuntimeError(
                f"worker {number} would be {ahead} steps ahead, {self._model.high} are allowed"
            )
        worker.version, worker.last = self.updates, last
        self.granted = max(self.granted, last)
        self._record(kind, number, last)

    def _may_get(self, worker: _Worker) -> bool:
        return worker.clock - self.least() <= self.bound

    def _advance(self) -> None:
        """The least clock may have moved."""
        if self._model.kind == "bsp":
            # A worker that pulls from another shard may be a step ahead of what came to this one.
            while self._step < self.least() and any(w.pending for w in self._workers):
                self._apply_all()
        elif self.adaptive is not None and not self.idle:
            self.adaptive.advance(int(self.least()))

    def _apply_all(self) -> None:
        """One update of the gradients of all workers, added up in the order of their ranks."""
        pushes = [
            worker.pending.popleft()
            for worker in self._workers
            if worker.pending and worker.pending[0][0].clock == self._step
        ]
        self._step += 1
        if all(push.finite for push, _ in pushes):
            total = np.zeros_like(self.weights)
            for _, gradient in pushes:
                total += gradient
            self._update(total, self._rate(self._step))
        else:
            self.skipped += 1

    def _apply_one(self, worker: _Worker, push: Push, gradient: Array) -> None:
        """An update of one worker's mean gradient."""
        if not push.finite:
            self.skipped += 1
        elif push.samples:
            share = push.samples / push.total
            factors = {
                "share": share,
                "staleness": 1 / (1 + max(0, self.updates - push.version)),
                "full": 1.0,
            }
            self._update(gradient / share, self._rate(push.clock + 1) * factors[self._push_rate])

    def _update(self, gradient: Array, rate: float) -> None:
        self.updates += 1
        self._optimizer.update(self.weights, gradient, self.state, rate, self.updates)

    def _record(self, kind: str, number: int, clock: int) -> None:
        if self._keep:
            self.trace.append(Event(kind, number, clock, self.bound))


@dataclass
class ShardRange:
    """Where a shard is.

    Attributes:
        rank: The rank that answers for it.
        start, end: Its part of the vector of all parameters.
    """

    rank: int
    start: int
    end: int


def write_trace(path: Path, shard: Shard, stamp: Attempt) -> None:
    """Add what a shard has granted, and when, to a file."""
    with Appender(path) as file:
        for event in shard.trace:
            file.append(stamp, asdict(event))
        for change in shard.adaptive.changes if shard.adaptive else ():
            file.append(stamp, {"kind": "change", **asdict(change)})
