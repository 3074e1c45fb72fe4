"""What changes the state of a communicator's handle, and what becomes of the one beside it.

The messages of mpicoll's collectives travel on a private communicator.  So each method of mpi4py's
that changes the state of a handle either reaches that one too, or need not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mpi4py import MPI

from mpicoll.base.consensus import combined
from mpicoll.base.later import Later
from mpicoll.comm.dispatch import Dispatch
from mpicoll.engine import progress
from mpicoll.runtime import schedules
from mpicoll.runtime.state import find
from mpicoll.tuning import Table, hints

if TYPE_CHECKING:
    from mpicoll.runtime import recovery
else:
    recovery = Later("mpicoll.runtime.recovery")

_D = TypeVar("_D", bound=Dispatch)

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
        if self._state is None and find(self) is None and self._first_calls is None:
            return  # it has made no collective call
        self._begun().revoke()

    def Set_info(self, info: MPI.Info) -> None:
        """Set hints.  Collective.

        ``mpicoll_allreduce = "ring order=0,2,1"``, and the same of every collective, chooses for
        calls on this communicator that name no algorithm, until ``default`` is set in its place.
        ``mpicoll_survive = "true"`` is the same as ``survive=True`` of the class.  Rank 0's hints
        are taken, and those that are not named stay as they are.

        Raises:
            RuntimeError: ``mpicoll_survive`` is not available in this launch; says why.
            ValueError: on all ranks, for a hint of mpicoll's that is not understood.
            MPI.Exception: on all ranks, where one passes the null handle.
        """
        state = self._ready()
        with progress.meanwhile():
            missing = combined(state.comm, info == MPI.INFO_NULL, MPI.LOR)
        super().Set_info(MPI.INFO_NULL if missing else info)
        self._hinted(self, info)

    def Get_info(self) -> MPI.Info:
        """The hints that are in use, those of mpicoll's among them."""
        info = super().Get_info()
        for key, value in hints.written(self._hints()).items():
            info.Set(key, value)
        state = self._state or find(self)
        if state is not None and state.alarm is not None:
            info.Set(hints.SURVIVE, "true")
        return info

    def _hints(self) -> Table:
        state = self._state or find(self)
        return {} if state is None else state.hints

    def _hinted(self, comm: _D, info: MPI.Info) -> _D:
        """Let a communicator that this rank is in have hints."""
        if comm:
            state = comm._ready()
            with progress.meanwhile():
                asked, survives = hints.agreed(state.comm, info, state.hints)
                schedules.share(state.comm, asked)
                state.hint(asked)
            if survives:
                recovery.survive(state)
        return comm
