"""Which ranks have died: what MPI's fault tolerance (ULFM) knows, and what it means for a run.

Without `mpirun --with-ft ulfm` (Open MPI 5) the launcher ends all ranks when one dies, and nothing
here is ever heard of.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from mpicoll.base.deaths import dead
from mpicoll.errors import RankLost
from mpicoll.train.ranks.waiting import require_place
from mpicoll.train.ranks.workers import AllAlive, TrainingError

if TYPE_CHECKING:
    from mpi4py import MPI

#: What a rank may be, in words.
WORKER, SERVER, DATA_SERVER = "a worker", "a server", "a data server"
#: Seconds between two looks, and for all to have noticed before the first leaves.
_PAUSE, _GRACE = 1e-3, 0.5

_ending = threading.Lock()


def leave(status: int) -> NoReturn:
    """End this process without MPI_Finalize, which may wait for dead ranks forever."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(_GRACE)
    os._exit(status)


def end(comm: MPI.Intracomm, reason: Exception) -> NoReturn:
    """End this process for the death of a rank; the first rank that is left says why."""
    _ending.acquire()  # for good: two threads may come here, and one is to say it
    lost = dead(comm)
    if all(rank in lost for rank in range(comm.Get_rank())):
        print(f"error: {reason}", file=sys.stderr, flush=True)
    leave(1)


class NeededRankLost(RankLost, TrainingError):
    """A rank has died that the run cannot do without; each rank finds out by itself.

    Args:
        reason: Why it cannot, and what to do.
        ranks: Those that have died, as far as this rank has heard.
    """

    def __init__(self, reason: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(ranks)
        self.args = reason, ranks

    def __str__(self) -> str:
        return str(self.args[0])


class Health(AllAlive):
    """The ranks of a communicator, as far as this rank knows; nothing here is collective.

    Args:
        comm: The ranks.
        titles: What each of them is, in words.

    Attributes:
        replaces: Whether the holders of a shard can stand in for each other; until then the run
            needs all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, titles: Sequence[str]) -> None:
        self._comm, self._titles = comm, titles
        self._next = 0.0
        self._fatal: NeededRankLost | None = None
        self.replaces = False

    def look(self) -> bool:
        """Whether ranks have died since the last look.

        Raises:
            NeededRankLost: One has that the run needs, such as a worker, or all that held a shard;
                from then on in every call.
        """
        if self._fatal is not None:
            raise self._fatal.with_traceback(None)
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PAUSE
        require_place(self._comm)
        found = frozenset(dead(self._comm))
        if found == self.dead:
            return False
        self.dead = found
        if (reason := self._missed()) is not None:
            self._fatal = NeededRankLost(reason, tuple(sorted(found)))
            raise self._fatal
        return True

    def _missed(self) -> str | None:
        """Why the run cannot go on, None if it can."""
        for rank in sorted(self.dead):
            if not self.replaces:
                return (
                    f"rank {rank}, {self._titles[rank]}, has died, and nobody stands in for it: go "
                    "on from the last checkpoint with resume, or start again where there is none"
                )
            if self._titles[rank] == WORKER:
                return (
                    f"rank {rank}, a worker, has died: replicas keep what servers hold, not a "
                    "worker's share of the data; go on from the last checkpoint with resume"
                )
        for shard, holders in enumerate(self.holders):
            if not self.chain(shard):
                ranks = ", ".join(map(str, holders))
                return (
                    f"rank(s) {ranks} have died, and with them part {shard} of the parameters: "
                    f"go on from the last checkpoint with resume, or give more than the "
                    f"{len(holders) - 1} replica(s) of this run"
                )
        return None
