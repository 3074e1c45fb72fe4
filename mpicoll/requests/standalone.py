"""Requests that are none of the MPI library's."""

from __future__ import annotations

from abc import abstractmethod

from mpicoll.requests.base import Watched
from mpicoll.requests.several import Completion


class Standalone(Completion, Watched):
    """A request that is none of the MPI library's."""

    _pending = True

    @property
    def pending(self) -> bool:
        return self._pending

    def __bool__(self) -> bool:
        return self.pending

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


class StandalonePrequest(Standalone):
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
        super().Free()
        self._close()

    @abstractmethod
    def _close(self) -> None:
        """Free what is not under way."""
