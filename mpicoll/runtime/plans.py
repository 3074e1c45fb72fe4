"""The plans of one communicator: built, kept for later calls of the same shape, and run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from mpicoll.engine import planning, runner, transport
from mpicoll.engine.lanes import BLOCKING, Lane, Lanes
from mpicoll.engine.lowering import shortest_read
from mpicoll.engine.plan import PIECE, Plan, Shape
from mpicoll.runtime.calls import Call
from mpicoll.runtime.guard import Guard
from mpicoll.tuning import Choice

#: Plans kept for each communicator, and the bytes of temporary space that they may hold together.
PLANS, SPACE = 256, 256 << 20


class Runnable:
    """A plan, and what its runs leave for the next one.

    Attributes:
        plan: what to do.
        execution: the compiled engine's, made by the first run; None where Python runs the plan.
        temporary: the space that Python runs it in, made by the first run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.execution: transport.Execution | None = None
        self.temporary: list[np.ndarray] | None = None


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

    def serve(self, guard: Guard, on_drop: Callable[[], object]) -> None:
        """Run the calls of another communicator from now on.

        Args:
            guard: waits for the runs, and is told of their failures.
            on_drop: called when a plan is not kept any longer.
        """
        self._guard, self._on_drop = guard, on_drop

    def build(self, shape: Shape) -> Runnable:
        """A new plan, of messages that are not too long for what they go through."""
        whole = self._reads and shortest_read(shape, 0, 0, 0) is not None
        return Runnable(planning.build(shape, PIECE if whole else self.piece))

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
        with self._lock:
            self._take(runnable.plan.shape)  # one more was built while this one ran
            self._kept[runnable.plan.shape] = runnable
            self._space += sum(runnable.plan.temporary)
            while len(self._kept) > PLANS or (self._space > SPACE and len(self._kept) > 1):
                self._take(next(iter(self._kept)))
                self._on_drop()

    def _take(self, shape: Shape) -> Runnable | None:
        """Take a plan out of the cache, if it is there."""
        kept = self._kept.pop(shape, None)
        if kept is not None:
            self._space -= sum(kept.plan.temporary)
        return kept

    def run(self, call: Call, choice: Choice, step: runner.Step | None = None) -> Runnable:
        """Run a call by an algorithm; ``step`` is told of every step that ends."""
        runnable = self.borrow(call.shape(choice))
        execution: runner.Execution | None = None
        try:
            execution = self.execute(runnable, BLOCKING, call, step)
            execution.wait(self._guard.idle)
        except BaseException as error:
            # Messages may be under way that no later call must receive.
            self._guard.fail(error, runnable, execution)
            raise
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
