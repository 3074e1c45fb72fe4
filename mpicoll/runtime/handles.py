"""What is attached to communicator handles: it ends with them, and before MPI does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from mpi4py import MPI


class Attached(Protocol):
    """What can be attached."""

    def close(self) -> None:
        """The handle is being freed."""


def _freed(comm: MPI.Comm, keyval: int, attached: Attached) -> None:
    attached.close()


@cache
def _keyval() -> int:
    return MPI.Intracomm.Create_keyval(delete_fn=_freed)


def find(comm: MPI.Intracomm) -> Any:
    """What is attached to a communicator's handle, None if nothing is.  Local."""
    return comm.Get_attr(_keyval())


def attach(comm: MPI.Intracomm, attached: Attached) -> None:
    """Let something end with a communicator's handle, by whichever object that is freed.  Local."""
    comm.Set_attr(_keyval(), attached)


def before_the_end(call: Callable[[], None]) -> None:
    """Call a function in MPI_Finalize, while everything can still be freed."""
    keyval = MPI.Intracomm.Create_keyval(delete_fn=lambda comm, keyval, value: call())
    # MPI_Finalize deletes the attributes of COMM_SELF first.
    MPI.COMM_SELF.Set_attr(keyval, call)
