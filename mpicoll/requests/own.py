"""Non-blocking and persistent collectives by mpicoll's own algorithms.

These are not requests of the MPI library, whose ``Waitall`` refuses them.  :meth:`Request.Waitall`
and its variants accept both kinds.  They make progress while this process is inside any call of
mpicoll, or all the time with a progress thread (see :mod:`mpicoll.engine.progress`), and not
elsewhere.  Without the thread, a program hangs if a rank waits in a receive of the MPI library for
a message that another rank sends only after such a collective.

``MPICOLL_TIMEOUT`` limits a call that waits for them.  With ``MPICOLL_CHECK=1`` they wait for the
ranks to agree before they send anything, without blocking the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.engine import progress, transport
from mpicoll.engine.lanes import Lane
from mpicoll.engine.plan import Plan
from mpicoll.engine.runner import Execution
from mpicoll.requests.base import Limited, fill
from mpicoll.requests.standalone import Standalone
from mpicoll.runtime import agree
from mpicoll.runtime.calls import Prepared
from mpicoll.runtime.observe import Observation, observe
from mpicoll.runtime.plans import Runnable
from mpicoll.runtime.state import State

__all__ = ["Prequest", "Request"]

#: Stages of a request: not started, or found complete by its owner; complete; under way.
INACTIVE, COMPLETE, ACTIVE = range(3)


class Request(Limited, Standalone):
    """A collective under way.  It keeps its buffers alive until it is complete.

    ``Wait`` and ``Test`` raise what went wrong; then the communicator cannot be used any more.

    Args:
        state: of the communicator.
        prepared: the call.
        report: told of a failure before it is raised.

    Attributes:
        plan: what it does; of those that :meth:`begin` makes, unless it is scaled from another one.
    """

    plan: Plan | None

    def __init__(
        self, state: State, prepared: Prepared, report: Callable[[BaseException], None]
    ) -> None:
        assert prepared.call is not None
        self._state, self._prepared, self._report = state, prepared, report
        self._call = prepared.call
        self._name = prepared.definition.method
        self._shape = self._call.shape(prepared.choice)
        self._plan: Runnable | None = None
        self._lane: Lane | None = None
        self._execution: Execution | None = None
        self._comparison: agree.Comparison | None = None
        self._observation: Observation | None = None
        self._error: BaseException | None = None
        self._complaint: BaseException | None = None  # a hook's
        self._stage = INACTIVE

    @classmethod
    def begin(
        cls, state: State, prepared: Prepared, report: Callable[[BaseException], None]
    ) -> Request:
        """Start a call."""
        request = cls(state, prepared, report)
        request._ticket, request._comparison = state.guard.start(prepared)
        runnable = request._plan = state.plans.borrow(request._shape)
        request.plan = runnable.plan
        request._lane = state.lanes.join(request)
        request._activate()
        return request

    def __repr__(self) -> str:
        how = "active" if self._stage == ACTIVE else "inactive"
        return f"<{type(self).__name__} of {self._name} by {self._shape.algorithm}, {how}>"

    @property
    def pending(self) -> bool:
        return self._stage != INACTIVE

    @property
    def owner(self) -> State:
        """See :class:`mpicoll.engine.progress.Operation`."""
        return self._state

    # --- running ---

    def _activate(self) -> None:
        self._stage, self._execution = ACTIVE, None
        self._observation = observe(self._state, self._prepared)
        progress.add(self)
        progress.poll()

    def advance(self) -> None:
        """See :class:`mpicoll.engine.progress.Operation`."""
        try:
            if self._execution is None and self._may_start():
                self._execution = self._execute()
            if self._execution is None or not self._execution.test():
                self._state.guard.look()
                return
            self._call.write_back()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return
        self._finish()

    def _execute(self) -> Execution:
        assert self._plan is not None and self._lane is not None
        self._call.load()
        step = self._observation.step if self._observation is not None else None
        return self._state.plans.execute(self._plan, self._lane, self._call, step)

    def _may_start(self) -> bool:
        assert self._lane is not None
        if self._comparison is not None:
            if self._comparison.error is not None:
                raise self._comparison.error
            if not self._comparison.over:
                return False
        return self._state.lanes.is_first(self, self._lane)

    def _finish(self) -> None:
        self._execution = None
        self._state.count(self._shape.collective, self._shape.algorithm)
        self._tell(None)
        self._release()
        progress.remove(self)
        self._stage = COMPLETE  # last: whoever waits goes on from here

    def _fail(self, error: BaseException) -> None:
        """Messages may be under way: buffers and requests must stay, and no call follow."""
        error = self._state.guard.fail(error, self)
        self._tell(error)
        progress.remove(self)
        self._error = error

    def _tell(self, failure: BaseException | None) -> None:
        """Tell trace and hooks of the end; whatever those raise is for who waits."""
        observation, self._observation = self._observation, None
        if observation is not None:
            try:
                observation.end(failure)
            except Exception as error:
                self._complaint = error

    def _release(self) -> None:
        """Give back all that the call has needed."""
        assert self._plan is not None and self._lane is not None
        self._state.lanes.leave(self, self._lane)
        self._state.plans.give_back(self._plan)
        self._plan = self._lane = None
        del self._call, self._prepared

    # --- waiting ---

    def _is_over(self) -> bool:
        return self._stage != ACTIVE or self._error is not None

    def _is_complete(self, status: MPI.Status | None) -> bool:
        if self._is_over():
            fill(status)
        return self._is_over()

    def _complete(self, status: MPI.Status | None) -> bool:
        if not self._is_over():
            return False
        if self._error is not None:
            self._report(self._error)
            raise self._error
        self._stage = INACTIVE
        fill(status)
        complaint, self._complaint = self._complaint, None
        if complaint is not None:
            raise complaint
        return True

    def _give_up(self, error: TimeoutError) -> bool:
        with progress.lock:
            if self._is_over():
                return False
            self._fail(error)
        return True

    # --- mpi4py's methods ---

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        caller.check()
        progress.until(self._is_over, self.patience())
        self._complete(status)
        return True

    def Free(self) -> None:
        if self._stage == ACTIVE:
            raise RuntimeError(
                f"Free of {self._name} under way, which MPI forbids; complete it by Wait first"
            )

    def Cancel(self) -> NoReturn:
        """Collectives cannot be cancelled.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{self._name} cannot be cancelled, which MPI forbids; Wait for it")


class _NotBuilt:
    """What stands for the engine's flights where it is not built: there are none."""


class FastRequest(transport.Flight or _NotBuilt, Request):  # type: ignore[misc]
    """A call like an earlier one, which the engine starts: without hooks, a trace or a limit."""

    _ticket = _comparison = _observation = _complaint = None

    @property
    def _state(self) -> State:  # type: ignore[override]
        return self._comm._state

    @property
    def _report(self) -> Callable[[BaseException], None]:  # type: ignore[override]
        return self._comm._report

    def __repr__(self) -> str:
        collective, algorithm = self.name
        how = "active" if self._stage == ACTIVE else "inactive"
        return f"<{Request.__name__} of {collective} by {algorithm}, {how}>"

    @property
    def _name(self) -> str:  # type: ignore[override]
        return self.name[0]

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        if status is None and self.finish_alone():
            return True
        return Request.Wait(self, status)


class Prequest(Request):
    """A persistent collective: bound to its buffers, started by ``Start`` any number of times.

    Collective: ranks that are to compare their calls do so here, and not at each start.
    """

    def __init__(
        self, state: State, prepared: Prepared, report: Callable[[BaseException], None]
    ) -> None:
        super().__init__(state, prepared, report)
        self._number = 0 if state.watch is None else state.watch.new_counter()
        self._plan = self._state.plans.build(self._shape)
        with state.guard.failing():
            self._lane, self._unbind = state.lanes.persistent.take(self, state.guard.pause)
        self._starter = state.fast_path.starter(self._plan, self._lane, self._call)

    def __bool__(self) -> bool:
        return self._unbind.alive

    def Start(self) -> None:
        """Start the collective.

        Raises:
            RuntimeError: it is under way; or a collective on the communicator has failed.
            ValueError: it, or its communicator, has been freed.
        """
        starter = self._starter
        if starter is not None and starter.start(self):
            return
        if not self._unbind.alive:
            raise ValueError(
                f"Start of {self._name} by a request that has been freed; make a new one"
            )
        self._state.guard.check()
        if self._stage == ACTIVE:
            raise RuntimeError(f"Start of {self._name} under way; complete it by Wait first")
        if self._state.watch is not None:
            self._ticket = self._state.watch.enter(self._prepared.described(), self._number)
        self._activate()

    def Free(self) -> None:
        """Free an inactive request: its lane, and its hold on the buffers.

        Raises:
            RuntimeError: the collective is under way.
        """
        super().Free()
        if self._unbind.alive:
            self._unbind()
            self._plan = self._lane = self._starter = None
            del self._call, self._prepared

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        starter = self._starter
        if status is None and starter is not None and starter.wait(self):
            return True
        return super().Wait(status)

    @staticmethod
    def Startall(requests: Sequence[Prequest | MPI.Prequest]) -> None:
        """Start persistent requests, mpicoll's or the MPI library's."""
        for request in requests:
            request.Start()

    def _may_start(self) -> bool:
        return True  # on a lane of its own

    def _release(self) -> None:
        pass  # until freed
