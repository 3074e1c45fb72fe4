"""Requests that are none of the MPI library's."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.engine import progress
from mpicoll.requests.base import Watched, fill
from mpicoll.requests.several import Completion

__all__ = ["Standalone", "StandalonePlan"]


class Standalone(Completion, Watched):
    """A request that is none of the MPI library's."""

    _pending = True

    @property
    def pending(self) -> bool:
        """Whether it has been started, and not been found complete by its owner."""
        return self._pending

    def __bool__(self) -> bool:
        return self._pending

    def patience(self) -> Callable[[], object]:
        """What to call while waiting for it."""
        return os.sched_yield

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until it is complete on this rank."""
        progress.until(lambda: self.Test(status), self.patience())
        return True

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until it is complete on this rank."""
        self.Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether it is complete on this rank."""
        caller.check()
        if not self._pending:
            fill(status)
            return True
        progress.poll()
        self._pending = not self._complete(status)
        return not self._pending

    @abstractmethod
    def _complete(self, status: MPI.Status | None) -> bool:
        """Whether what is under way is complete; then the owner hears of it, and of the status."""

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Whether it is complete on this rank, and None."""
        return self.Test(status), None

    def free(self) -> None:
        """The same as ``Free``."""
        self.Free()

    def Free(self) -> None:
        """Free an inactive request.

        Raises:
            RuntimeError: it is under way.
        """
        if self._pending:
            raise RuntimeError("Free of what is under way; complete it by Wait first")


class StandalonePlan(Standalone):
    """The persistent form."""

    _pending = False

    def Start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: it is under way.
        """
        if self._pending:
            raise RuntimeError("Start of what is under way; complete it by Wait first")
        self._start()
        self._pending = True

    @abstractmethod
    def _start(self) -> None:
        """Start what is not under way."""

    def Free(self) -> None:
        """Free an inactive request.

        Raises:
            RuntimeError: it is under way.
        """
        super().Free()
        self._close()

    @abstractmethod
    def _close(self) -> None:
        """Free what is not under way."""
