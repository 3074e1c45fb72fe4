"""The synchronised start of a repetition, which is never part of a measured time.

`Barrier`. A library's barrier changes its algorithm with the number of ranks and the placement, and
with it how far apart the ranks leave; results would change with it. This one is always the
dissemination barrier: in round k every rank tells the rank 2^k ahead that it has arrived, and waits
for the rank 2^k behind, so that after ceil(log2 P) rounds everyone has heard of everyone.

    P = 4      0 -> 1 -> 2 -> 3 -> 0        round 0
               0 -> 2 -> 0,  1 -> 3 -> 1    round 1

`Window`. After any barrier ranks leave one after another. Where clocks are synchronised they can
begin at the same moment instead: rank 0 names the moments of some repetitions beforehand, and who
is still busy at one of them says so.

Source: D. Hensgen, R. Finkel, U. Manber, Two algorithms for barrier synchronization, Int. J. of
Parallel Programming 17, 1988.
"""

from __future__ import annotations

import os
from statistics import median

from mpi4py import MPI

from mpicoll.base.clocks import GlobalClock, clock

#: Seconds after which clocks are compared again.
_OLD = 1.0
#: Seconds between the naming of the moments and the first of them, for each doubling of ranks, on
#: top of the time that messages take.
_LEAD = 1e-4
#: Barriers, the median of which says how long messages take.
_PROBES = 5
#: Seconds before a moment from which on a rank looks at nothing but its clock.
_CLOSE = 1e-4

#: Seconds after a moment from which on a rank is late, and the same as a share of a window.
_SLACK, _SLACK_SHARE = 2e-6, 0.01


class Barrier:
    """A dissemination barrier over persistent requests, on a communicator of its own use.

    Args:
        comm: Communicator whose point-to-point traffic belongs to this barrier alone.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()
        nothing = [bytearray(1), 0, MPI.BYTE]
        self._rounds = [
            [
                comm.Recv_init(nothing, source=(rank - distance) % size, tag=k),
                comm.Send_init(nothing, dest=(rank + distance) % size, tag=k),
            ]
            for k, distance in enumerate(1 << k for k in range((size - 1).bit_length()))
        ]

    def name_moments(self, length: float) -> None:
        """Nothing: a barrier needs no preparation."""

    def __call__(self) -> bool:
        """Return once every rank has called; nobody is late."""
        for requests in self._rounds:
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
        return False

    def free(self) -> None:
        """Free the requests; every rank must have returned from its last call."""
        for requests in self._rounds:
            for request in requests:
                request.Free()
        self._rounds = []


class Window:
    """Starts at moments named beforehand, on synchronised clocks.

    Args:
        comm: Communicator, which is duplicated.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self._clock = GlobalClock(self._comm)
        self._moment = self._length = 0.0
        times = []
        for _ in range(_PROBES):
            begin = clock()
            self._comm.Barrier()
            # Of the slowest rank: who comes last to a barrier finds all messages there.
            times.append(self._comm.allreduce(clock() - begin, MPI.MAX))
        reach = median(times)
        self._lead = 2 * reach + _LEAD * (1 + self._comm.Get_size().bit_length())

    def name_moments(self, length: float) -> None:
        """Agree on moments ``length`` seconds apart (rank 0's counts), from now on. Collective."""
        if self._comm.bcast(self._clock.age > _OLD):
            self._clock.synchronise()
        self._moment, self._length = self._comm.bcast((clock() + self._lead, length))

    def __call__(self) -> bool:
        """Return at the next moment, or at once where that has passed; whether this is late.

        A rank is late that was still busy, and one that the system did not let run just then.
        """
        moment = self._clock.local(self._moment)
        self._moment += self._length
        now = clock()
        while now < moment:
            if moment - now > _CLOSE:
                os.sched_yield()
            now = clock()
        return now - moment > max(_SLACK, _SLACK_SHARE * self._length)

    def free(self) -> None:
        """Free the communicator. Collective."""
        self._comm.Free()


def next_window(length: float, shortest: float, longest: float, late: float) -> float:
    """Length of the next window, in seconds, after one with a share of late repetitions.

    It is doubled where most were late, up to the longest, and halved where none was, down to the
    shortest; a rank that was late once is late again until it has caught up.
    """
    if late > 0.5:
        return max(shortest, min(2 * length, longest))
    return length if late else max(shortest, length / 2)


Start = Barrier | Window
