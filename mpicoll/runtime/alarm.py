"""The deaths of a communicator's ranks, as one rank hears of them.

MPI's fault tolerance (ULFM) tells a rank that another one has died only where it exchanges messages
with that one.  All others would wait for ever, for messages that do not come.  So the alarm of a
communicator is a second communicator, which carries nothing: who hears of a death revokes it, and
all others see that it has been revoked.  The one that carries messages is never revoked: Open MPI
ends the job where that happens to a large message under way.

Every wait looks here, at most once in five milliseconds: a look takes some microseconds.

A process may have been stopped, and go on after the others have given it up.  Those of its node
leave a mark for it in memory that all of them map, since nobody sends it messages any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar

from mpi4py import MPI

from mpicoll.base import peers
from mpicoll.base.deaths import dead, survives
from mpicoll.base.forming import forming
from mpicoll.errors import MemoryGone, RankLost
from mpicoll.runtime.watch import shared_rows

#: Seconds between two looks, and for a death to become known after what it has caused.
LOOK, GRACE = 5e-3, 2.0
#: Errors that a death may have caused.
_CAUSED = frozenset(
    {
        *(MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED),
        *(MPI.ERR_IN_STATUS, MPI.ERR_PENDING),
    }
)


@cache
def has_ulfm() -> bool:
    """Whether communicators can be revoked in this MPI library."""
    try:
        MPI.COMM_SELF.Is_revoked()
    except NotImplementedError:
        return False
    return True


def obstacle(environ: Mapping[str, str] = os.environ) -> str:
    """Why no rank can outlive another one in this launch, and what to do; "" where it can."""
    library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip(" \0")
    if not (has_ulfm() and "Open MPI" in library):
        return (
            f"{library} ends all ranks when one dies: use Open MPI 5, started by "
            "mpirun --with-ft ulfm"
        )
    if not survives(environ):
        return (
            "this launch ends all ranks when one dies: start it by mpirun --with-ft ulfm, "
            "or with OMPI_MCA_mpi_ft_enable=1 by another launcher"
        )
    return ""


class Alarm:
    """What tells the ranks of a communicator that some have died.

    Args:
        private: carries the messages of its collectives.  Collective over it.

    Attributes:
        at_first: functions to call when this process makes its first one.
        lost: what is raised from the first death on; None before.
    """

    at_first: ClassVar[list[Callable[[], None]]] = []

    def __init__(self, private: MPI.Intracomm) -> None:
        for call in Alarm.at_first:
            call()
        Alarm.at_first.clear()
        self._rank = private.Get_rank()
        with forming(private):
            self._control = MPI.Intracomm(private.Split(0, self._rank))
            self._control.Set_errhandler(MPI.ERRORS_RETURN)
            self._marks, self._rows = shared_rows(private, 1)
            peers.watch(private.allgather(peers.own()))
        self._own = self._marks[self._rows[self._rank]]
        self._next = 0.0
        self._whole: Alarm | None = None
        self.lost: RankLost | None = None

    def follow(self, whole: Alarm) -> None:
        """Raise from now on what the alarm of a larger communicator does, with its ranks' numbers.

        Who waits in a part of that communicator may wait for one that is alive, but has heard of a
        death elsewhere in it.
        """
        self._whole = whole

    def look(self) -> None:
        """Raise RankLost if a rank has died; looks at most once in five milliseconds."""
        if self.lost is None:
            now = time.monotonic()
            if now < self._next:
                return
            self._next = now + LOOK
            if self.hear() is None:
                return
        assert self.lost is not None
        raise self.lost.with_traceback(None)

    def hear(self) -> RankLost | None:
        """What is raised if a rank has died, now or before; the others are told of a new death."""
        if self.lost is not None:
            return self.lost
        if self._whole is not None:
            self.lost = self._whole.hear()
            return self.lost
        MPI.COMM_SELF.Iprobe()  # lets the library take in what it is told
        ranks, told = dead(self._control), self._control.Is_revoked()
        if told and not ranks:
            ranks = self._await_names()
        if self._own[0] or (told and not ranks):
            self.lost = RankLost(given_up=self._rank)
        elif ranks:
            if not told:
                self._control.Revoke()
            self.lost = RankLost(ranks)
        return self.lost

    def cause_of(self, error: BaseException) -> RankLost | None:
        """The death that has caused an error, if one has."""
        if isinstance(error, RankLost):
            return error
        kind = error.Get_error_class() if isinstance(error, MPI.Exception) else None
        if kind not in _CAUSED and not isinstance(error, MemoryGone):
            return None
        end = time.monotonic() + GRACE
        while self.hear() is None and time.monotonic() < end:
            time.sleep(LOOK / 10)
        return self.lost

    def free(self) -> None:
        """Free it; nobody has died.  Collective."""
        self._control.Free()

    def mark(self, ranks: tuple[int, ...]) -> None:
        """Tell ranks of this node, should they go on, that the others have given them up."""
        for rank in ranks:
            if rank in self._rows:
                self._marks[self._rows[rank]] = 1

    def _await_names(self) -> tuple[int, ...]:
        """The ranks of which another one has heard that they have died; this one soon will.

        None where that was this one.
        """
        end = time.monotonic() + GRACE
        while not ((ranks := dead(self._control)) or self._own[0] or time.monotonic() > end):
            MPI.COMM_SELF.Iprobe()
            time.sleep(LOOK / 10)
        return ranks
