"""What mpicoll keeps for one communicator handle, and what the handle's end does to it.

It is an MPI attribute of the handle: all objects on one handle find the same, and freeing the
handle, by whichever object, frees it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import hooks, ops, tuning
from mpicoll.base import caller
from mpicoll.cuda import driver, group
from mpicoll.engine import plan, planning, progress, runner, transport
from mpicoll.engine.lanes import BLOCKING, Lane, Lanes
from mpicoll.engine.lowering import shortest_read
from mpicoll.engine.windows import Windows
from mpicoll.runtime import agree, trace
from mpicoll.runtime.calls import METHODS as CALLS
from mpicoll.runtime.calls import Call, Prepared
from mpicoll.runtime.settings import Settings, read
from mpicoll.runtime.watch import Ticket, Watch
from mpicoll.schedule.collectives import Collective

__all__ = ["METHODS", "State", "Stats", "attach", "find"]

#: Plans kept for each communicator, and the bytes of temporary space that they may hold together.
PLANS, SPACE = 256, 256 << 20


#: Methods that can go the short way, by the numbers that it has for them.
METHODS = {
    "Allreduce": 0,
    "Reduce": 1,
    "Bcast": 2,
    "Barrier": 3,
    "Allgather": 4,
    "Reduce_scatter_block": 5,
    "Alltoall": 6,
    "Gather": 7,
    "Scatter": 8,
    "Scan": 9,
    "Exscan": 10,
}
#: The collectives of these methods.
_COLLECTIVES = [CALLS[method].name for method in METHODS]


@dataclass(frozen=True)
class Stats:
    """What ran on a communicator, on this rank.

    Attributes:
        calls: number of calls by (collective, algorithm).
        fallbacks: those of them that the MPI library served only because mpicoll could not, by
            (collective, reason).
    """

    calls: dict[tuple[str, str], int]
    fallbacks: dict[tuple[str, str], int]


class State:
    """What mpicoll keeps for one communicator handle.

    Attributes:
        private: carries the collectives' messages.
        settings: equal on all ranks.
        nodes: a number for each rank that is the same for the ranks of one node; equal on all.
        calls, fallbacks: see :class:`Stats`.
        lanes: keep collectives under way together apart.
        failure: the first error that left messages behind.
        closed: the handle was freed.
        watch: the time limit of its calls, if there is one.
        tracer: writes down what its calls do, if that is wanted.
    """

    def __init__(
        self, private: MPI.Intracomm, settings: Settings, hints: tuning.Table | None = None
    ) -> None:
        self.private = private
        self.settings = settings
        self.size, self.rank = private.Get_size(), private.Get_rank()
        self.nodes = _nodes(private)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self.lanes = Lanes(private)
        self.failure: BaseException | None = None
        self.closed = False
        self.watch = Watch(private, settings.timeout) if settings.timeout else None
        #: Called while a call waits: offers the processor to others, and keeps the time limit.
        self.pause: Callable[[], object] = self.watch.pause if self.watch else os.sched_yield
        self.tracer = _tracer(private, settings.trace) if settings.trace else None
        #: What the compiled engine's messages go through; None where Python runs the plans.
        self.device: Any = None
        self.device, slot, self._reads = transport.connect(private, settings.transport)
        self._piece = min(slot or plan.PIECE, plan.PIECE)
        near = self.device is not None and transport.is_near(self.device)
        # What all ranks say: no other node; that there may be arrays in device memory.
        said = private.allreduce(near | driver.is_wanted() << 1, MPI.BAND)
        self._near = bool(said & 1)
        #: How arrays in device memory travel; None where that is not agreed.
        self.gpus = group.connect(private, settings.gpu, settings.timeout) if said & 2 else None
        if self.tracer is not None:
            self.device = None  # what Python runs can be traced; all else is as without a trace
        #: Arrays of its ranks that others read where they lie.
        self.windows = Windows(private, self.device)
        #: Where large ones go through the host, once one has (:mod:`mpicoll.runtime.staging`), or
        #: why they cannot.
        self.staging: Any = None
        #: What lets GPUs reduce there (:mod:`mpicoll.runtime.relay`), False if it cannot be had.
        self.relay: Any = None
        #: The short way for calls that have been made before, None if there is none.
        self.front = self._front()
        if self.front is not None and self.gpus is not None and self.gpus.peers is not None:
            names = [(name, group.CUDA_IPC) for name in _COLLECTIVES]
            self.front.serve_devices(self.gpus.peers, names)
        self.hint(hints or {})
        if settings.progress:
            progress.start()
        #: Collectives of the MPI library's, started on communicators of their own, until complete.
        self.restarted: set[object] = set()
        self._abandoned: list[object] = []
        self._comparisons: list[agree.Comparison] = []
        #: Plans and counters are used by all threads that make progress.
        self._lock = threading.Lock()
        self._plans: OrderedDict[plan.Shape, plan.Plan] = OrderedDict()  # used last, last
        self._space = 0
        _OPEN[self] = None

    @property
    def under_way(self) -> list[progress.Operation]:
        """Non-blocking collectives and started plans, until complete."""
        return [operation for operation in progress.under_way if operation.owner is self]

    def hint(self, hints: tuning.Table) -> None:
        """Prefer what the communicator's hints ask for; the same on all ranks."""
        self.hints = hints
        #: What chooses where the caller names no algorithm; the same on all ranks.
        self.table = tuning.for_layout(
            tuning.combined(self.settings.table, hints), self._near, tuning.is_grouped(self.nodes)
        )
        if self.front is not None:
            self.front.forget()

    def _front(self) -> Any:
        plain = not (self.settings.check or self.watch or self.tracer)
        if self.device is None or not plain or MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return None
        return transport.front(
            self.private,
            self._pause,
            progress.poll,
            progress.under_way,
            hooks.installed,
            caller.parent,
            self.fail,
        )

    def learn(
        self, call: Call, arguments: tuple[Any, ...], choice: tuning.Choice, planned: plan.Plan
    ) -> None:
        """Let a call of the same arguments, buffers apart, go the short way from now on.

        Args:
            call: the parsed call.
            arguments: send buffer, receive buffer, operator, root, counts.
            choice: how it was run.
            planned: what ran it.
        """
        definition = call.definition
        if not self._is_plain(definition, arguments, choice) or not call.is_direct:
            return
        method, name = definition.method, (definition.name, choice.algorithm)
        known = tuning.named(choice), name, call, planned.spare[0]
        self.front.learn(METHODS.get(method, method), arguments, *known)

    def pass_on(
        self,
        definition: Collective,
        arguments: tuple[Any, ...],
        choice: tuning.Choice,
        function: Callable[..., Any],
        numbers: tuple[int, ...],
    ) -> None:
        """The same for a call that the MPI library serves."""
        if not self._is_plain(definition, arguments, choice):
            return
        method, name = definition.method, (definition.name, choice.algorithm)
        known = tuning.named(choice), name, function, numbers
        self.front.pass_on(METHODS.get(method, method), arguments, *known)

    def _is_plain(
        self, definition: Collective, arguments: tuple[Any, ...], choice: tuning.Choice
    ) -> bool:
        """Whether a call may go the short way; a user's operator may be another one next time."""
        op = arguments[2]
        return (
            self.front is not None
            and (op is None or op.is_predefined)
            and tuning.is_default(definition.name, choice, self.nodes)
        )

    def counted(self) -> dict[tuple[str, str], int]:
        """Number of calls by (collective, algorithm)."""
        return dict(self.calls + Counter(self.front.calls() if self.front is not None else {}))

    def _pause(self) -> None:
        progress.poll()
        self.pause()

    def check(self) -> None:
        """Raise if the communicator cannot be used, any more or by this thread or process."""
        caller.check()
        if self.closed:
            raise ValueError("this communicator has been freed; build Intracomm on another one")
        if self.failure is not None:
            raise RuntimeError(
                f"this communicator cannot be used any more, because a collective on it failed: "
                f"{type(self.failure).__name__}: {self.failure}; build Intracomm on another one"
            ) from self.failure

    def enter(self, prepared: Prepared) -> None:
        """This rank enters its next call, a blocking one or the making of a persistent operation.

        All ranks make the same calls in the same order.

        Raises:
            Disagreement: on all ranks, where they are asked to compare and do not agree.
        """
        if self.watch is not None:
            self.watch.begin(prepared.described())
        if self.settings.check:
            agree.compare(self._share(prepared.facts()))

    def refuse(self, definition: Collective, error: Exception) -> None:
        """This rank cannot make its next call; the others hear of it if they are to compare."""
        if self.settings.check:
            if self.watch is not None:
                self.watch.begin(definition.method)
            self._share(_refusal(definition, error))
        elif self.watch is not None:
            self.watch.refuse()

    def start(self, prepared: Prepared) -> tuple[Ticket | None, agree.Comparison | None]:
        """The same as :meth:`enter` for a call that must not wait for others.

        Returns the number that the call has for the time limit, and whether the ranks agree.
        """
        ticket = None if self.watch is None else self.watch.enter(prepared.described())
        return ticket, self._compare(prepared.facts()) if self.settings.check else None

    def refuse_start(self, definition: Collective, error: Exception) -> None:
        """The same as :meth:`refuse` for a call that must not wait for others."""
        if self.settings.check:
            if self.watch is not None:
                self.watch.enter(definition.method)
            self._compare(_refusal(definition, error))
        elif self.watch is not None:
            self.watch.refuse()

    def _compare(self, facts: agree.CallSignature) -> agree.Comparison:
        comparison = agree.Comparison(self.private, facts, self.fail)
        self._comparisons = [c for c in self._comparisons if not c.over] + [comparison]
        return comparison

    def _share(self, facts: agree.CallSignature) -> list[dict[str, Any]]:
        """The facts of all ranks, if they have agreed on all that was started before."""
        try:
            progress.until(lambda: all(c.over for c in self._comparisons), self.pause)
        except BaseException as error:
            self.fail(error)
            raise
        self.check()
        return agree.share(self.private, facts, self.wait)

    def wait(self, request: MPI.Request, *buffers: object) -> None:
        """Wait for a request within the time limit; its buffers are kept if it does not end."""
        try:
            while not request.Test():
                self._pause()
        except BaseException as error:
            self.fail(error, request, *buffers)
            raise

    def run(
        self,
        shape: plan.Shape,
        send: np.ndarray | None,
        recv: np.ndarray | None,
        reduction: ops.Reduction | None,
        step: runner.Step | None = None,
    ) -> plan.Plan:
        """Run a plan of this shape; ``step`` is told of every step that ends."""
        planned = self.borrow(shape)
        execution: runner.Execution | None = None
        try:
            execution = self.execute(planned, BLOCKING, send, recv, reduction, step)
            execution.wait(self._pause)
        except BaseException as error:
            # Messages may be under way that no later call must receive.
            self.fail(error, planned, execution)
            raise
        self.give_back(planned)
        return planned

    def execute(
        self,
        planned: plan.Plan,
        lane: Lane,
        send: np.ndarray | None,
        recv: np.ndarray | None,
        reduction: ops.Reduction | None,
        step: runner.Step | None = None,
    ) -> runner.Execution:
        """Start a plan; what is returned must be kept until it is done."""
        comm = self.lanes.comms[lane.comm]
        if self.device is None:
            return runner.Execution(planned, comm, send, recv, reduction, lane.number, step)
        program = self._program(planned)
        program.start(comm, lane.comm, lane.number, send, recv, reduction)
        return program

    def _program(self, planned: plan.Plan) -> Any:
        if not planned.spare:
            planned.spare.append(transport.program(planned, self.device))
        return planned.spare[0]

    def starter(self, planned: plan.Plan, lane: Lane, call: Call) -> Any:
        """The short way of a persistent call, None if it has none."""
        if self.front is None or not call.is_direct:
            return None
        program = self._program(planned)
        comm = self.lanes.comms[lane.comm]
        program.prepare(comm, lane.comm, lane.number, *call.memory(), call.reduction)
        name = planned.shape.collective, planned.shape.algorithm
        return transport.starter(self.front, program, name, progress.pollers, progress.lock)

    def count(self, collective: str, algorithm: str) -> None:
        """A call has run."""
        with self._lock:
            self.calls[collective, algorithm] += 1

    def abandon(self, *things: object) -> None:
        """Keep what MPI, or another rank, may still use."""
        self._abandoned += things

    def fail(self, error: BaseException, *kept: object) -> None:
        """Let every later call raise: the first error is the one that tells why.

        ``kept``: what MPI, or another rank, may still use.
        """
        self.abandon(*kept)
        if self.failure is None and self.watch is not None:
            self.watch.fail()
        self.failure = self.failure or error
        self._end_front()

    def _end_front(self) -> None:
        if self.front is not None:
            self.front.open = False

    def borrow(self, shape: plan.Shape) -> plan.Plan:
        """A plan of this shape.

        While it runs, it is not in the cache, so that nobody else can start it.
        """
        with self._lock:
            planned = self._take(shape)
        if planned is None or (self.device is not None and transport.is_active(planned)):
            planned = self.build(shape)
        return planned

    def build(self, shape: plan.Shape) -> plan.Plan:
        """A new plan, of messages that are not too long for what they go through."""
        whole = self._reads and shortest_read(shape, 0, 0, 0) is not None
        return planning.build(shape, plan.PIECE if whole else self._piece)

    def give_back(self, planned: plan.Plan) -> None:
        """Put a plan into the cache, as the one used last."""
        if self.device is not None:
            transport.drop_buffers(planned)
        with self._lock:
            self._take(planned.shape)  # one more was built while this one ran
            self._plans[planned.shape] = planned
            self._space += sum(planned.temporary)
            while len(self._plans) > PLANS or (self._space > SPACE and len(self._plans) > 1):
                self._take(next(iter(self._plans)))
                if self.front is not None:
                    self.front.forget()

    def _take(self, shape: plan.Shape) -> plan.Plan | None:
        """Take a plan out of the cache, if it is there."""
        planned = self._plans.pop(shape, None)
        if planned is not None:
            self._space -= sum(planned.temporary)
        return planned

    def close(self) -> None:
        """Free everything, unless messages may still be under way."""
        if self.closed:
            return
        self.closed = True
        self._end_front()
        _OPEN.pop(self, None)
        self._plans.clear()
        if self.failure is None and not (self.under_way or self.restarted):
            self.device = None
            self.staging = self.relay = None
            self.windows.close()
            if self.gpus is not None:
                self.gpus.close()
            if self.front is not None:
                self.front.forget()
            for comm in reversed(self.lanes.comms):
                comm.Free()
        else:
            _LOST.append(self)  # MPI may still use the memory of what was under way


#: All that is not closed, oldest first.
_OPEN: dict[State, None] = {}
#: Numbers of the communicators whose rank 0 is this process.
_NAMES = itertools.count()
#: What was closed with messages under way.
_LOST: list[State] = []


def _freed(comm: MPI.Comm, keyval: int, state: State) -> None:
    state.close()


def _refusal(definition: Collective, error: Exception) -> agree.CallSignature:
    """What the other ranks are told of an error in this rank's arguments."""
    return {"collective": definition.method, "error": f"{type(error).__name__}: {error}"}


def _finalizing(comm: MPI.Comm, keyval: int, value: object) -> None:
    progress.stop()
    for state in reversed([*_OPEN]):
        state.close()


@cache
def _keyval() -> int:
    """The attribute that carries :class:`State`.

    MPI_Finalize deletes the attributes of COMM_SELF first, while everything can still be freed.
    """
    MPI.COMM_SELF.Set_attr(MPI.Intracomm.Create_keyval(delete_fn=_finalizing), _OPEN)
    return MPI.Intracomm.Create_keyval(delete_fn=_freed)


def find(comm: MPI.Intracomm) -> State | None:
    """What belongs to the communicator's handle, if it is there.  Local."""
    found: Any = comm.Get_attr(_keyval())
    return found


def attach(
    comm: MPI.Intracomm, settings: Settings | None = None, hints: tuning.Table | None = None
) -> State:
    """What belongs to the communicator's handle, made now if it is not there yet.  Collective.

    Args:
        comm: any intracommunicator.
        settings: those of the communicator that this one comes from; else rank 0 reads its
            environment.
        hints: those that it is made with.

    Raises:
        ValueError: on all ranks, if rank 0's environment has a setting that is not understood.
        RuntimeError: on all ranks, if it asks for a thread that MPI does not allow.
    """
    caller.check()
    state = find(comm)
    if state is None:
        with progress.meanwhile():
            state = _made(comm, settings, hints)
    return state


def _made(comm: MPI.Intracomm, settings: Settings | None, hints: tuning.Table | None) -> State:
    # Unlike MPI_Comm_dup this copies no attributes, hints or topology of the user's.
    private = MPI.Intracomm(MPI.Intracomm.Split(comm, 0, comm.Get_rank()))
    private.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        state = State(private, settings or read(private), hints)
    except BaseException:
        private.Free()
        raise
    comm.Set_attr(_keyval(), state)
    return state


def _nodes(private: MPI.Intracomm) -> tuple[int, ...]:
    """The number of each rank's node, in the order of their first ranks.  Collective."""
    node = MPI.Intracomm(private.Split_type(MPI.COMM_TYPE_SHARED, private.Get_rank()))
    first = private.allgather(node.bcast(private.Get_rank()))
    node.Free()
    numbers = {rank: number for number, rank in enumerate(dict.fromkeys(first))}
    return tuple(numbers[rank] for rank in first)


def _tracer(private: MPI.Intracomm, path: str) -> trace.Tracer:
    """The trace of a communicator, under a name that its rank 0 gives it.  Collective.

    Raises:
        ValueError: on all ranks, if one cannot write its file.
    """
    world = MPI.COMM_WORLD
    place = world.Get_rank(), world.Get_size()
    name = private.bcast(f"{place[0]}.{next(_NAMES)}")
    made, problem = None, ""
    try:
        made = trace.Tracer(path, place, name, private.Get_rank())
    except OSError as error:
        problem = str(error)
    problem = next(filter(None, private.allgather(problem)), "")
    if made is None or problem:
        raise ValueError(f"MPICOLL_TRACE={path!r}: {problem}; name files that can be written")
    return made
