"""What is attached to communicator handles: it ends with them, and before MPI does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from mpi4py import MPI

from mpicoll.engine import transport


class Attached(Protocol):
    """What can be attached."""

    def close(self) -> None:
        """The handle is being freed."""


class _Attributes:
    """The engine's class where that cannot run, by mpi4py's attributes."""

    def __init__(self) -> None:
        self._keyval = MPI.Intracomm.Create_keyval(delete_fn=_freed)

    def find(self, comm: MPI.Intracomm) -> Any:
        return comm.Get_attr(self._keyval)

    def attach(self, comm: MPI.Intracomm, attached: Attached) -> None:
        comm.Set_attr(self._keyval, attached)


def _freed(comm: MPI.Comm, keyval: int, attached: Attached) -> None:
    attached.close()


@cache
def _attributes() -> Any:
    return _Attributes() if transport.engine_problem() else transport.Attributes()


def find(comm: MPI.Intracomm) -> Any:
    """What is attached to a communicator's handle, None if nothing is.  Local."""
    return _attributes().find(comm)


def attach(comm: MPI.Intracomm, attached: Attached) -> None:
    """Let something end with a communicator's handle, by whichever object that is freed.  Local."""
    _attributes().attach(comm, attached)


def before_the_end(call: Callable[[], None]) -> None:
    """Call a function in MPI_Finalize, while everything can still be freed."""
    keyval = MPI.Intracomm.Create_keyval(delete_fn=lambda comm, keyval, value: call())
    # MPI_Finalize deletes the attributes of COMM_SELF first.
    MPI.COMM_SELF.Set_attr(keyval, call)
