"""What a program does where ranks die: it hears of them, and goes on with those that are left."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import NoReturn

from mpi4py import MPI

from mpicoll.comm.dispatch import Dispatch
from mpicoll.errors import RankLost
from mpicoll.runtime import alarm

#: Seconds for the last messages to arrive before a process that others wait for is gone.
GRACE = 0.1


def survival_obstacle() -> str:
    """Why ``Intracomm(comm, survive=True)`` raises in this launch, and what to do; "" if it does
    not."""
    return alarm.obstacle()


class Survival(Dispatch):
    """A communicator that outlives its ranks, where it is built with ``survive=True``."""

    def lost_ranks(self) -> tuple[int, ...]:
        """The ranks that have died, as far as this rank has heard; nothing is sent.

        Always empty where the communicator is not built with ``survive=True``.
        """
        state = self._begun()
        lost = None if state.alarm is None else state.alarm.hear()
        return () if lost is None else lost.ranks

    def leave(self, status: int = 0) -> NoReturn:
        """End this process together with those of the other ranks, after a death.

        In place of ``MPI_Finalize``, which may wait for the dead for ever.  What Python does when
        it ends (``atexit``) is not done; standard output and error are flushed.

        Args:
            status: exit status of this process.
        """
        with contextlib.suppress(RankLost, MPI.Exception):
            self._blocking("Barrier", None, {})
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(GRACE)
        os._exit(status)
