"""A time limit on progress that names the ranks which did not arrive.

A rank that hangs inside an MPI call cannot look at a clock, so a thread does. When a rank has made
no progress for the limit, its thread tells all others which stage it is in, listens for a moment
to what they say, and ends the job. The ranks that said nothing, or are stages behind, are the ones
that the others wait for.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

_LISTEN = 3.0


class CaseTimeout:
    """Ends the job when this rank makes no progress for too long.

    Args:
        comm: Communicator whose traffic belongs to the watchdog alone.
        limit: Seconds without progress that are allowed.
    """

    def __init__(self, comm: MPI.Intracomm, limit: float) -> None:
        self._comm, self._limit = comm, limit
        self._stage, self._what, self._since = 0, "starting", time.monotonic()
        self._listening = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def enter(self, what: str) -> None:
        """Say that the next stage begins; all ranks go through the same stages."""
        self._what, self._since, self._listening = what, time.monotonic(), False
        self._stage += 1

    def rest(self, listen: bool = False) -> None:
        """Allow any wait until the next stage begins.

        Args:
            listen: Whether to answer another rank that made no progress; it costs a look at MPI now
                and then.
        """
        self._since, self._listening = math.inf, listen

    def stop(self) -> None:
        """Stop watching."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = min(1.0, self._limit / 4)
        while not self._done.wait(pause):
            overdue = time.monotonic() - self._since > self._limit
            if overdue or (self._listening and self._called()):
                self._give_up()

    def _called(self) -> bool:
        """Whether another rank has told its stage."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE and self._comm.Iprobe()

    def _give_up(self) -> None:
        stage, what = self._stage, self._what
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            stages = self._exchange(stage)
            if stage != self._stage:
                return
            if self._comm.Get_rank() == reporter(stages):
                _say(complaint(what, self._limit, stages, self._comm.Get_size()))
            time.sleep(1.0)
            self._comm.Abort(1)
        _say(f"rank {self._comm.Get_rank()} made no progress for {self._limit:g} s in {what}")
        os._exit(1)

    def _exchange(self, stage: int) -> dict[int, int]:
        """Tell all ranks our stage; the stages of those that say theirs within a moment."""
        rank, size = self._comm.Get_rank(), self._comm.Get_size()
        mine = np.array([stage], dtype=np.int64)
        others = [peer for peer in range(size) if peer != rank]
        sends = [self._comm.Isend(mine, dest=peer) for peer in others]
        stages, status, theirs = {rank: stage}, MPI.Status(), np.empty(1, dtype=np.int64)
        deadline = time.monotonic() + _LISTEN
        while len(stages) < size and time.monotonic() < deadline:
            if self._comm.Iprobe(status=status):
                self._comm.Recv(theirs, source=status.Get_source())
                stages[status.Get_source()] = int(theirs[0])
            else:
                time.sleep(0.01)
        MPI.Request.Testall(sends)
        return stages


def reporter(stages: dict[int, int]) -> int:
    """The rank that speaks for all: the lowest of those that are furthest."""
    return min(rank for rank, stage in stages.items() if stage == max(stages.values()))


def complaint(what: str, limit: float, stages: dict[int, int], size: int) -> str:
    """What to tell the user, from the stages of the ranks that answered.

    Args:
        what: The stage of the rank that speaks.
        limit: Seconds waited.
        stages: Stage number of each rank that answered.
        size: Number of ranks.
    """
    furthest = max(stages.values())
    missing = [rank for rank in range(size) if stages.get(rank, -1) < furthest]
    who = (
        f"ranks that did not arrive: {', '.join(map(str, missing))}"
        if missing
        else "all ranks are there, so the call itself does not end"
    )
    return f"no progress for {limit:g} s in {what}; {who}; if it only needs longer, raise --timeout"


def _say(message: str) -> None:
    sys.stderr.write(f"mpicoll: error: {message}\n")
    sys.stderr.flush()
