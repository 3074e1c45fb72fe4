"""What all requests have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from mpi4py import MPI

__all__ = ["Watched", "fill"]


class Watched(ABC):
    """A request that mpicoll looks after, beyond what the MPI library does."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether it has been started, and not been found complete by its owner."""

    @abstractmethod
    def patience(self) -> Callable[[], object]:
        """What to call while waiting for it: offers the processor, and keeps the time limit."""

    @abstractmethod
    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until the collective is complete on this rank."""

    @abstractmethod
    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait until the collective is complete on this rank."""

    @abstractmethod
    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete on this rank."""

    @abstractmethod
    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether ``Wait`` would return, or raise, at once."""


def fill(status: MPI.Status | None) -> None:
    """What MPI calls an empty status."""
    if status is not None:
        status.Set_source(MPI.ANY_SOURCE)
        status.Set_tag(MPI.ANY_TAG)
        status.Set_error(MPI.SUCCESS)
        status.Set_elements(MPI.BYTE, 0)
