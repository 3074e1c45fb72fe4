"""The MPI library's own requests, and what mpicoll has to add to them.

They keep what the caller has passed alive, a temporary for example, which mpi4py leaves to the
caller.  With ``MPICOLL_TIMEOUT``, ``MPICOLL_CHECK=1`` or ``survive=True`` their own ``Wait``,
``Test``, ... and mpicoll's functions for several requests (:class:`mpicoll.requests.Request`) also
look at the clock, hear of deaths, and raise where the ranks do not agree.  The library's
``Waitall`` and its like take them for what they are, and do none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from mpi4py import MPI

from mpicoll.engine import transport
from mpicoll.engine.lanes import Pool
from mpicoll.requests.base import Limited
from mpicoll.requests.standalone import StandalonePrequest
from mpicoll.runtime import agree
from mpicoll.runtime.calls import Prepared
from mpicoll.runtime.observe import observing
from mpicoll.runtime.state import State
from mpicoll.runtime.watch import Ticket
from mpicoll.tuning import NATIVE


class OwnedRequest(MPI.Request):
    """A request that keeps its operation's arguments alive as long as it is there."""

    kept: object = None


class OwnedPrequest(MPI.Prequest):
    """The same for a persistent operation."""

    kept: object = None


class CountedPrequest(OwnedPrequest):
    """A persistent collective, whose starts are counted."""

    _state: State
    _prepared: Prepared

    def Start(self) -> None:
        """Start the collective."""
        MPI.Prequest.Start(self)
        self._state.count(self._prepared.definition.name, NATIVE)


class _NotBuilt:
    """What stands for the engine's class where that is not built."""


class FastPrequest(transport.CountedPrequest or _NotBuilt, OwnedPrequest):  # type: ignore[misc]
    """The same, which the engine starts."""


class _LimitedPrequest(Limited):
    """A persistent request with a time limit; a trace, hooks and counters hear of its starts."""

    _prepared: Prepared
    _number = 0

    def _bind(self, state: State, prepared: Prepared) -> None:
        """It is made now.  Collective."""
        self._state, self._prepared = state, prepared
        if state.watch is not None:
            self._number = state.watch.new_counter()

    def _start_by(self, start: Callable[[], None]) -> None:
        """Start it by a function."""
        state, prepared = self._state, self._prepared
        with observing(state, prepared, complete=False):
            start()
            if state.watch is not None:
                self._ticket = state.watch.enter(prepared.described(), self._number)
        state.count(prepared.definition.name, NATIVE)


class LibraryRequest(Limited, OwnedRequest):
    """A request that is looked after; see the module."""

    _comparison: agree.Comparison | None = None

    @property
    def pending(self) -> bool:
        return self != MPI.REQUEST_NULL

    def _complete(self, status: MPI.Status | None) -> bool:
        comparison = self._comparison
        if comparison is not None and comparison.error is not None:
            self._state.guard.abandon(self)
            raise comparison.error
        over = comparison is None or comparison.over
        return over and self._look(MPI.Request.Test, status)

    def _begin(self) -> None:
        """It has been started; after a death it is asked what was not complete."""
        if self._state.alarm is not None:
            self._state.started[id(self)] = self

    def _look(self, test: Callable[..., bool], status: MPI.Status | None) -> bool:
        """Whether it is complete; raises RankLost if it never will be, for a death."""
        guard = self._state.guard
        if guard.alarm is None:
            over = test(self, status)
        else:
            try:
                over = test(self, status)
                if not over:
                    guard.look()
            except BaseException as error:
                guard.fail_by(error, self)
        if over and test is MPI.Request.Test:
            self._state.started.pop(id(self), None)
        return over

    def _is_complete(self, status: MPI.Status | None) -> bool:
        comparison = self._comparison
        if comparison is not None and (comparison.error is not None or not comparison.over):
            return comparison.over
        return self._look(MPI.Request.Get_status, status)


def started(
    request: MPI.Request,
    state: State,
    ticket: Ticket | None,
    comparison: agree.Comparison | None,
    arguments: object,
) -> OwnedRequest:
    """The request of an operation that has just been started, looked after if that is wanted."""
    if ticket is None and comparison is None and state.alarm is None:
        made = OwnedRequest(request)
    else:
        made = LibraryRequest(request)
        made._state, made._ticket, made._comparison = state, ticket, comparison
        made._begin()
    made.kept = arguments
    return made


class LibraryPrequest(_LimitedPrequest, LibraryRequest, OwnedPrequest):
    """A persistent request that is looked after; see the module.

    Also where a trace or hooks are there when it is made, which hear of its starts.
    """

    _started = False

    @property
    def pending(self) -> bool:
        return self._started

    def Start(self) -> None:
        """Start the collective."""
        self._state.guard.check()
        self._start_by(self._start)

    def _start(self) -> None:
        MPI.Prequest.Start(self)
        self._started = True
        self._begin()

    def _complete(self, status: MPI.Status | None) -> bool:
        self._started = not super()._complete(status)
        return not self._started


def bound(
    request: MPI.Prequest, state: State, prepared: Prepared, arguments: object, observed: bool
) -> OwnedPrequest:
    """The request of an operation that has just been made, looked after if that is wanted.

    ``observed``: whether a trace or hooks hear of its starts.
    """
    made: CountedPrequest | FastPrequest | LibraryPrequest
    if state.waits or observed:
        made = LibraryPrequest(request)
        made._bind(state, prepared)
    elif transport.CountedPrequest is not None:
        made = FastPrequest(request)
        made.count_by(state.counter(prepared.definition.name, NATIVE))
    else:
        made = CountedPrequest(request)
        made._state, made._prepared = state, prepared
    made.kept = arguments
    return made


class PersistentFallback(_LimitedPrequest, StandalonePrequest):
    """A persistent collective where the MPI library, before MPI 4.0, has none of its own.

    Its starts are on a communicator of its own, as they may come in another order on each rank.
    That is the communicator's, which hands it to another one later, and frees it with itself:
    freeing this, or dropping it, is local.

    Args:
        state: of the communicator.  Collective over it.
        prepared: the call.
        comm: whose error handler is told of what goes wrong.
        begin: starts the library's non-blocking collective on a communicator.
        pool: where it takes that communicator from, such as ``state.lanes.whole``.
    """

    _request: MPI.Request = MPI.REQUEST_NULL

    def __init__(
        self,
        state: State,
        prepared: Prepared,
        comm: MPI.Intracomm,
        begin: Callable[[MPI.Intracomm], MPI.Request],
        pool: Pool[int],
    ) -> None:
        self._bind(state, prepared)
        number, self._unbind = pool.take(self, state.guard.pause)
        self._comm, self._begin = state.lanes.comms[number], begin
        handler = comm.Get_errhandler()
        self._comm.Set_errhandler(handler)
        handler.Free()

    def __bool__(self) -> bool:
        return self._unbind.alive

    def Start(self) -> None:
        """Start the collective.

        Raises:
            RuntimeError: it is under way; or a collective on the communicator has failed.
            ValueError: it, or its communicator, has been freed.
        """
        if not self:
            raise ValueError("Start of a request that has been freed; make a new one")
        self._state.guard.check()
        super().Start()

    def _start(self) -> None:
        self._start_by(self._start_another)

    def _start_another(self) -> None:
        self._request = self._begin(self._comm)
        self._state.restarted.add(self)

    def _complete(self, status: MPI.Status | None) -> bool:
        self._pending = not self._request.Test(status)
        if not self._pending:
            self._state.restarted.discard(self)
        return not self._pending

    def _is_complete(self, status: MPI.Status | None) -> bool:
        return self._request.Get_status(status)

    def _close(self) -> None:
        if self:
            self._unbind()
            del self._begin, self._prepared

    def Cancel(self) -> NoReturn:
        """Collectives cannot be cancelled."""
        raise RuntimeError("a collective cannot be cancelled, which MPI forbids; Wait for it")
