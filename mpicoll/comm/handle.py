"""What changes the state of a communicator's handle, and what becomes of the one beside it.

The messages of mpicoll's collectives travel on a private communicator.  So each method of mpi4py's
that changes the state of a handle either reaches that one too, or need not.
"""

from __future__ import annotations

from typing import Any

from mpicoll.comm.dispatch import Dispatch
from mpicoll.runtime.state import find

#: The methods of mpi4py's that change the state of a handle, and what else they change here.
CHANGING = {
    "Revoke": "the private communicator is revoked",
    "Free": "the private communicator is freed",
    "free": "the private communicator is freed",
    "Disconnect": "the private communicator is freed",
    "Set_info": "hints of mpicoll's hold for its collectives",
    "Set_errhandler": "nothing: what goes wrong on the private one is reported to the handle's",
    "Set_attr": "nothing: the private communicator has no attributes of the user's",
    "Delete_attr": "nothing: the private communicator has no attributes of the user's",
    "Set_name": "nothing: errors are reported on the handle",
    "Ack_failed": "nothing: collectives receive from named ranks alone",
    "Attach_buffer": "nothing: collectives send no buffered messages",
    "Detach_buffer": "nothing: collectives send no buffered messages",
    "Flush_buffer": "nothing: collectives send no buffered messages",
    "Iflush_buffer": "nothing: collectives send no buffered messages",
}


class Handle(Dispatch):
    """A communicator whose state is that of its handle."""

    def Revoke(self) -> None:
        """Revoke the communicator: calls on it fail, on all ranks, with ``MPI.ERR_REVOKED``."""
        super().Revoke()
        state: Any = self._state or find(self)
        if state is not None:
            state.revoke()
