"""Clocks of several hosts made one: how far each rank's clock is from that of rank 0.

Rank 0 asks each rank in turn for its time, many times. Of a question that took t seconds the answer
was given somewhere within them, so the difference of the clocks is known to t / 2; the quickest of
the questions is kept. Clocks also run at different speeds, some microseconds a second apart: after
a while the differences are taken again, and what they have grown by says how fast they will go on.

Source: S. Hunold, A. Carpen-Amarie, Reproducible MPI benchmarking is still not as easy as you
think, IEEE Trans. Parallel and Distributed Systems 27, 2016.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

_QUESTIONS = 30
_BASE = 0.5  # seconds from which on a difference of differences says something about speeds

clock = time.perf_counter


class Reading(NamedTuple):
    """At ``local`` seconds of this rank's clock that of rank 0 was ``ahead`` seconds ahead."""

    local: float
    ahead: float


def ahead(comm: MPI.Intracomm) -> float:
    """Seconds by which the clock of rank 0 is ahead of this rank's; collective."""
    own = MPI.Intracomm(comm).Dup()
    found = measure(own).ahead
    own.Free()
    return found


def closest(questions: Sequence[tuple[float, float, float]]) -> float:
    """How far a rank's clock is ahead of rank 0's, by the question answered soonest.

    Args:
        questions: For each, rank 0's time when it asked, the rank's answer, and rank 0's time when
            it had the answer.
    """
    asked, answered, heard = min(questions, key=lambda q: q[2] - q[0])
    return answered - (asked + heard) / 2


def measure(
    comm: MPI.Intracomm, wait: Callable[[MPI.Request], object] = MPI.Request.Wait
) -> Reading:
    """Compare the clocks of all ranks with that of rank 0. Collective.

    Args:
        comm: Communicator of the clocks' own use.
        wait: What waits for a message.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    theirs, nothing = np.empty(1), bytearray(1)
    if rank:
        for _ in range(_QUESTIONS):
            wait(comm.Irecv(nothing, source=0))
            theirs[0] = clock()
            comm.Send(theirs, dest=0)
        behind = np.empty(1)
        wait(comm.Irecv(behind, source=0))
        return Reading(clock(), -float(behind[0]))
    for peer in range(1, size):
        questions = []
        for _ in range(_QUESTIONS):
            asked = clock()
            comm.Send(nothing, dest=peer)
            wait(comm.Irecv(theirs, source=peer))
            questions.append((asked, float(theirs[0]), clock()))
        comm.Send(np.array([closest(questions)]), dest=peer)
    return Reading(clock(), 0.0)


class GlobalClock:
    """This rank's clock, and rank 0's time as told by it.

    Args:
        comm: Communicator of the clocks' own use.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._first = self._latest = measure(comm)

    @property
    def age(self) -> float:
        """Seconds since the clocks were compared."""
        return clock() - self._latest.local

    def synchronise(self) -> None:
        """Compare the clocks again. Collective."""
        self._latest = measure(self._comm)

    def local(self, moment: float) -> float:
        """What this rank's clock shows when rank 0's shows ``moment``."""
        first, latest = self._first, self._latest
        base = latest.local - first.local
        speed = (latest.ahead - first.ahead) / base if base >= _BASE else 0.0
        return moment - latest.ahead - speed * (moment - latest.ahead - latest.local)
