"""What all requests have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.engine import progress
from mpicoll.runtime.state import State
from mpicoll.runtime.watch import Patience, Ticket


class Watched(ABC):
    """A request that mpicoll looks after, beyond what the MPI library does."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether it has been started, and not been found complete by its owner."""

    @abstractmethod
    def _complete(self, status: MPI.Status | None) -> bool:
        """Whether what is pending is complete.

        If so it is pending no more, and the owner hears of the status, or of what went wrong.
        """

    @abstractmethod
    def _is_complete(self, status: MPI.Status | None) -> bool:
        """Whether what is pending is complete, or has failed; changes nothing but the status."""

    def patience(self) -> Callable[[], object]:
        """What to call while waiting for it: offers the processor, and keeps the time limit."""
        return os.sched_yield

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until it is complete on this rank."""
        progress.until(lambda: self.Test(status), self.patience())
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait until it is complete on this rank."""
        self.Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether it is complete on this rank."""
        caller.check()
        progress.poll()
        if self.pending:
            return self._complete(status)
        fill(status)
        return True

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Whether it is complete on this rank, and None."""
        return self.Test(status), None

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether ``Wait`` would return, or raise, at once."""
        caller.check()
        progress.poll()
        if self.pending:
            return self._is_complete(status)
        fill(status)
        return True


class Limited(Watched):
    """A request with a time limit, if there is one."""

    _state: State
    _ticket: Ticket | None = None

    def patience(self) -> Callable[[], object]:
        """What to call while waiting for it; raises TimeoutError, and gives it up, at the limit."""
        if self._ticket is None or self._state.watch is None:
            return os.sched_yield
        patience = Patience(self._state.watch, self._ticket)

        def pause() -> None:
            if self._is_over():
                return
            try:
                patience.pause()
            except TimeoutError as error:
                if self._give_up(error):
                    raise

        return pause

    def _is_over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.Get_status()

    def _give_up(self, error: TimeoutError) -> bool:
        """The limit is exceeded; whether it has not ended meanwhile."""
        self._state.guard.fail(error, self)
        return True


def fill(status: MPI.Status | None) -> None:
    """What MPI calls an empty status."""
    if status is not None:
        status.Set_source(MPI.ANY_SOURCE)
        status.Set_tag(MPI.ANY_TAG)
        status.Set_error(MPI.SUCCESS)
        status.Set_elements(MPI.BYTE, 0)


def copy_status(source: MPI.Status, target: MPI.Status) -> None:
    """Let a status say what another one says of a message."""
    target.Set_source(source.Get_source())
    target.Set_tag(source.Get_tag())
    target.Set_error(source.Get_error())
    # Of what was sent MPI says no count, and Open MPI leaves any.
    target.Set_elements(MPI.BYTE, max(source.Get_elements(MPI.BYTE), 0))
    target.Set_cancelled(source.Is_cancelled())
