"""Non-blocking and persistent collectives by mpicoll's own algorithms.

They are no requests of the MPI library, so its ``Waitall`` refuses them; :meth:`Request.Waitall`
and its like take both kinds.  They make progress while this process is inside any call of mpicoll
(see :mod:`mpicoll.progress`), not elsewhere: a rank that waits in a receive of the MPI library
for something that another rank sends only after such a collective, waits for ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, TypeVar

from mpi4py import MPI

from mpicoll import plan, progress
from mpicoll.call import Call
from mpicoll.lanes import Lane
from mpicoll.runner import Execution
from mpicoll.state import State

__all__ = ["Prequest", "Request"]

_R = TypeVar("_R", bound="Request")


class Request:
    """A collective under way.  It keeps its buffers alive until it is complete.

    ``Wait`` and ``Test`` raise what went wrong; then the communicator cannot be used any more.

    Args:
        state: of the communicator.
        call: the parsed call.
        shape: what to plan.
        report: told of a failure before it is raised.
    """

    def __init__(
        self,
        state: State,
        call: Call,
        shape: plan.Shape,
        report: Callable[[BaseException], None],
    ) -> None:
        self._state, self._call, self._report = state, call, report
        self._name = call.definition.method
        self._shape = shape
        self._plan: plan.Plan | None = None
        self._lane: Lane | None = None
        self._execution: Execution | None = None
        self._error: BaseException | None = None
        self._active = False

    @classmethod
    def begin(
        cls: type[_R],
        state: State,
        call: Call,
        shape: plan.Shape,
        report: Callable[[BaseException], None],
    ) -> _R:
        """Start a call."""
        request = cls(state, call, shape, report)
        request._plan = state.borrow(shape)
        request._lane = state.lanes.join(request)
        request._activate()
        return request

    def __bool__(self) -> bool:
        return self._active

    def __repr__(self) -> str:
        how = "active" if self._active else "inactive"
        return f"<{type(self).__name__} of {self._name} by {self._shape.algorithm}, {how}>"

    # --- running ---

    def _activate(self) -> None:
        self._active = True
        self._state.under_way[self] = None
        progress.add(self)
        progress.poll()

    def advance(self) -> bool:
        """Make what progress is possible without waiting; True once it is over."""
        if not self._active or self._error is not None:
            return True
        try:
            if self._execution is None:
                if not self._may_start():
                    return False
                self._execution = self._execute()
            if not self._execution.test():
                return False
        except BaseException as error:
            # Messages may be under way: buffers and requests must stay, and no call follow.
            self._error = error
            self._state.fail(error)
            if not isinstance(error, Exception):
                raise
            return True
        self._finish()
        return True

    def _execute(self) -> Execution:
        assert self._plan is not None and self._lane is not None
        memory, reduction = self._call.memory(), self._call.reduction
        return self._state.start(self._plan, self._lane, *memory, reduction)

    def _may_start(self) -> bool:
        assert self._lane is not None
        return self._state.lanes.is_first(self, self._lane)

    def _finish(self) -> None:
        self._active = False
        self._execution = None
        del self._state.under_way[self]
        self._state.calls[self._shape.collective, self._shape.algorithm] += 1
        self._release()

    def _release(self) -> None:
        """Give back all that the call has needed."""
        assert self._plan is not None and self._lane is not None
        self._state.lanes.leave(self, self._lane)
        self._state.give_back(self._plan)
        self._plan = self._lane = None
        del self._call

    def _over(self) -> bool:
        return not self._active or self._error is not None

    def _raise(self) -> None:
        if self._error is not None:
            self._report(self._error)
            raise self._error

    # --- mpi4py's methods ---

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until the collective is complete on this rank."""
        progress.until(self._over)
        self._raise()
        _fill(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete on this rank."""
        done = self.Get_status(status)
        self._raise()
        return done

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether ``Wait`` would return at once."""
        progress.poll()
        if self._over():
            _fill(status)
        return self._over()

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the collective is complete on this rank."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Whether the collective is complete on this rank, and None."""
        return self.Test(status), None

    def Free(self) -> None:
        """Free an inactive request.

        Raises:
            RuntimeError: the collective is under way.
        """
        if self._active:
            raise RuntimeError(
                f"Free of {self._name} under way, which MPI forbids; complete it by Wait first"
            )

    def free(self) -> None:
        """Free an inactive request."""
        self.Free()

    def Cancel(self) -> NoReturn:
        """Collectives cannot be cancelled.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{self._name} cannot be cancelled, which MPI forbids; Wait for it")

    @staticmethod
    def Waitall(
        requests: Sequence[Request | MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        """Wait for requests, mpicoll's or the MPI library's, in whatever order they complete."""
        progress.until(lambda: _all_complete(requests))
        _complete(requests, statuses)
        return True

    @staticmethod
    def Testall(
        requests: Sequence[Request | MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> bool:
        """Whether all requests, mpicoll's or the MPI library's, are complete."""
        done = _all_complete(requests)
        if done:
            _complete(requests, statuses)
        return done

    @staticmethod
    def waitall(requests: Sequence[Request | MPI.Request]) -> list[Any]:
        """Wait for requests, mpicoll's or the MPI library's; what each ``wait`` returns."""
        progress.until(lambda: _all_complete(requests))
        return [request.wait() for request in requests]


class Prequest(Request):
    """A persistent collective: bound to its buffers, started by ``Start`` any number of times."""

    def __init__(
        self,
        state: State,
        call: Call,
        shape: plan.Shape,
        report: Callable[[BaseException], None],
    ) -> None:
        super().__init__(state, call, shape, report)
        self._plan = plan.build(shape)
        self._lane = state.lanes.take()
        # Also where the object is dropped.
        self._unbind = weakref.finalize(self, state.lanes.give_back, self._lane)
        self._unbind.atexit = False

    def __bool__(self) -> bool:
        return self._unbind.alive

    def Start(self) -> None:
        """Start the collective.

        Raises:
            RuntimeError: it is under way; or a collective on the communicator has failed.
            ValueError: it, or its communicator, has been freed.
        """
        if not self._unbind.alive:
            raise ValueError(
                f"Start of {self._name} by a request that has been freed; make a new one"
            )
        if self._active:
            raise RuntimeError(f"Start of {self._name} under way; complete it by Wait first")
        self._state.check()
        self._activate()

    def Free(self) -> None:
        """Free an inactive request: its lane, and its hold on the buffers.

        Raises:
            RuntimeError: the collective is under way.
        """
        super().Free()
        if self._unbind.alive:
            self._unbind()
            self._plan = self._lane = None
            del self._call

    @staticmethod
    def Startall(requests: Sequence[Prequest | MPI.Prequest]) -> None:
        """Start persistent requests, mpicoll's or the MPI library's."""
        for request in requests:
            request.Start()

    def _may_start(self) -> bool:
        return True

    def _release(self) -> None:
        pass  # until freed


def _all_complete(requests: Sequence[Request | MPI.Request]) -> bool:
    return all(request.Get_status() for request in requests)


def _complete(requests: Sequence[Request | MPI.Request], statuses: list[MPI.Status] | None) -> None:
    """Complete requests that are ready; ``statuses`` grows as long as they are, as in mpi4py."""
    if statuses is not None:
        statuses += [MPI.Status() for _ in range(len(statuses), len(requests))]
    for index, request in enumerate(requests):
        request.Wait(statuses[index] if statuses is not None else None)


def _fill(status: MPI.Status | None) -> None:
    """What MPI calls an empty status."""
    if status is not None:
        status.Set_source(MPI.ANY_SOURCE)
        status.Set_tag(MPI.ANY_TAG)
        status.Set_error(MPI.SUCCESS)
        status.Set_elements(MPI.BYTE, 0)
