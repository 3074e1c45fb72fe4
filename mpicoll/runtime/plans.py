"""The plans of one communicator: built, kept for later calls of the same shape, and run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np

from mpicoll.engine import planning, runner, transport
from mpicoll.engine.lanes import BLOCKING, Lane, Lanes
from mpicoll.engine.lowering import shortest_read
from mpicoll.engine.plan import PIECE, Plan, Shape
from mpicoll.engine.scaling import Scale, pattern
from mpicoll.runtime.calls import Call
from mpicoll.runtime.guard import Guard
from mpicoll.tuning import Choice

#: Plans kept for each communicator, and the bytes of temporary space that they may hold together.
PLANS, SPACE = 256, 256 << 20
#: Plans that others are scaled from; their space comes on top of that.
SCALES = 64


class Runnable:
    """A plan, and what its runs leave for the next one.

    Args:
        plan: what to do; None where that is scaled from another one's.
        shape: of the plan.
        execution: of what is scaled.

    Attributes:
        plan, shape: the same.
        execution: the compiled engine's, made by the first run; None where Python runs the plan.
        temporary: the space that Python runs it in, made by the first run.
    """

    def __init__(
        self, plan: Plan | None, shape: Shape, execution: transport.Execution | None = None
    ) -> None:
        self.plan, self.shape = plan, shape
        self.execution = execution
        self.temporary: list[np.ndarray] | None = None

    @property
    def space(self) -> int:
        """Bytes of temporary space."""
        if self.plan is not None:
            return sum(self.plan.temporary)
        assert self.execution is not None
        return int(self.execution.held)


class Plans:
    """The plans of one communicator at a time.

    Args:
        lanes: what keeps runs at a time apart.
        connected: what messages go through.

    Attributes:
        device: what the compiled engine's messages go through; None where Python runs the plans.
        piece: bytes of the longest message that is not read from the sender's memory.
    """

    def __init__(self, lanes: Lanes, connected: transport.Transport) -> None:
        self.device, self._reads = connected.device, connected.reads
        self.piece = min(connected.slot or PIECE, PIECE)
        self._lanes = lanes
        #: Plans are used by all threads that make progress.
        self._lock = threading.Lock()
        self._kept: OrderedDict[Shape, Runnable] = OrderedDict()  # used last, last
        self._space = 0
        #: By pattern: what the plans of other lengths are scaled from.
        self._scales: OrderedDict[Hashable, tuple[Scale, Runnable]] = OrderedDict()

    def serve(self, guard: Guard, on_drop: Callable[[], object]) -> None:
        """Run the calls of another communicator from now on.

        Args:
            guard: waits for the runs, and is told of their failures.
            on_drop: called when a plan is not kept any longer.
        """
        self._guard, self._on_drop = guard, on_drop

    def build(self, shape: Shape) -> Runnable:
        """A new plan, scaled from another one where that can be."""
        scale, first = self._scales.get(pattern(shape), (None, None))
        part = 0 if scale is None else scale.part_of(shape)
        if scale is not None and first is not None and part:
            execution = transport.Execution(None, self.device, first.execution, scale.part, part)
            return Runnable(None, shape, execution)
        return Runnable(self.plan(shape), shape)

    def plan(self, shape: Shape) -> Plan:
        """What to do, of messages that are not too long for what they go through."""
        return planning.build(shape, self._piece_of(shape))

    def _piece_of(self, shape: Shape) -> int:
        whole = self._reads and shortest_read(shape, 0, 0, 0) is not None
        return PIECE if whole else self.piece

    def _measure(self, runnable: Runnable) -> None:
        """Let plans of other lengths be scaled from one that has run."""
        kind = pattern(runnable.shape)
        if runnable.plan is None or kind is None or kind in self._scales:
            return
        scale = Scale(runnable.plan, self._piece_of(runnable.shape))
        if scale.part:
            self._scales[kind] = scale, runnable
            if len(self._scales) > SCALES:
                self._scales.popitem(last=False)

    def borrow(self, shape: Shape) -> Runnable:
        """A plan of this shape.

        While it runs, it is not in the cache, so that nobody else can start it.
        """
        with self._lock:
            kept = self._take(shape)
        # The fast path runs plans that are in the cache.
        if kept is None or (kept.execution is not None and kept.execution.active):
            return self.build(shape)
        return kept

    def give_back(self, runnable: Runnable) -> None:
        """Put a plan into the cache, as the one used last."""
        if runnable.execution is not None:
            runnable.execution.drop()
            self._measure(runnable)
        with self._lock:
            self._take(runnable.shape)  # one more was built while this one ran
            self._kept[runnable.shape] = runnable
            self._space += runnable.space
            while len(self._kept) > PLANS or (self._space > SPACE and len(self._kept) > 1):
                self._take(next(iter(self._kept)))
                self._on_drop()

    def _take(self, shape: Shape) -> Runnable | None:
        """Take a plan out of the cache, if it is there."""
        kept = self._kept.pop(shape, None)
        if kept is not None:
            self._space -= kept.space
        return kept

    def run(self, call: Call, choice: Choice, step: runner.Step | None = None) -> Runnable:
        """Run a call by an algorithm; ``step`` is told of every step that ends."""
        runnable = self.borrow(call.shape(choice))
        kept: list[object] = [runnable]
        # After a failure messages may be under way that no later call must receive.
        with self._guard.failing(kept):
            execution = self.execute(runnable, BLOCKING, call, step)
            kept.append(execution)
            execution.wait(self._guard.idle)
        self.give_back(runnable)
        return runnable

    def execute(
        self, runnable: Runnable, lane: Lane, call: Call, step: runner.Step | None = None
    ) -> runner.Execution:
        """Start a plan of a call; what is returned must be kept until it is done."""
        comm = self._lanes.comms[lane.comm]
        if self.device is not None:
            execution = self._compiled(runnable)
            execution.start(comm, lane.comm, lane.number, *call.memory(), call.reduction)
            return execution
        assert runnable.plan is not None  # what is scaled is compiled
        if runnable.temporary is None:
            runnable.temporary = runner.temporary_of(runnable.plan)
        memory, space = call.memory(), runnable.temporary
        return runner.Execution(
            runnable.plan, comm, *memory, call.reduction, lane.number, step, space
        )

    def bind(self, runnable: Runnable, lane: Lane, call: Call) -> transport.Execution:
        """The compiled engine's execution of a plan, bound to a call's buffers for many runs."""
        execution, comm = self._compiled(runnable), self._lanes.comms[lane.comm]
        execution.prepare(comm, lane.comm, lane.number, *call.memory(), call.reduction)
        return execution

    def _compiled(self, runnable: Runnable) -> transport.Execution:
        if runnable.execution is None:
            runnable.execution = transport.Execution(runnable.plan, self.device)
        return runnable.execution

    def clear(self) -> None:
        """Forget all plans."""
        self._kept.clear()
        self._scales.clear()
