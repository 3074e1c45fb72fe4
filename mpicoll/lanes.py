"""Lanes: parts of the tags of a communicator, so that collectives under way together stay apart.

Lane 0 is that of blocking calls.  A non-blocking call takes the lane of its sequence number, and
starts when that lane is free on this rank: messages on one lane do not overtake each other, so it
does not matter what the other ranks have reached.  A persistent plan takes a lane for itself when
it is made, and gives it back when it is freed, because ranks may start plans in different orders.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll import progress
from mpicoll.schedule import MAX_OPEN_CHANNELS

__all__ = ["BLOCKING", "CALLS", "PLANS", "Lane", "Lanes"]

#: MPI promises tags up to 32767.
_LANES = (1 << 15) // MAX_OPEN_CHANNELS
#: Lanes of non-blocking calls, and of plans on each communicator.  The last lane is for messages
#: that belong to no plan (see :mod:`mpicoll.watch`).
CALLS, PLANS = range(1, _LANES // 2), range(_LANES // 2, _LANES - 1)


class Lane(NamedTuple):
    """A lane of one of the communicators that carry messages."""

    comm: int
    number: int


#: The lane of blocking calls.
BLOCKING = Lane(0, 0)


class Lanes:
    """The lanes of one communicator.

    Args:
        private: the communicator that carries its messages.
    """

    def __init__(self, private: MPI.Intracomm) -> None:
        self.comms = [private]
        self._calls = 0
        self._queues: dict[int, deque[Hashable]] = {}
        #: Free on all ranks when they last agreed, and not handed out since: equal on all ranks.
        self._free = deque(Lane(0, number) for number in PLANS)
        self._taken: set[Lane] = set()
        self._lock = threading.Lock()  # calls begin and end in different threads

    def join(self, call: Hashable) -> Lane:
        """The lane of a non-blocking call, the next one in sequence; see :meth:`is_first`."""
        with self._lock:
            number = CALLS[self._calls % len(CALLS)]
            self._calls += 1
            self._queues.setdefault(number, deque()).append(call)
        return Lane(0, number)

    def is_first(self, call: Hashable, lane: Lane) -> bool:
        """Whether the lane is free for this call."""
        return self._queues[lane.number][0] is call

    def leave(self, call: Hashable, lane: Lane) -> None:
        """The call is over."""
        with self._lock:
            queue = self._queues[lane.number]
            queue.remove(call)
            if not queue:
                del self._queues[lane.number]

    def take(self, pause: Callable[[], object]) -> Lane:
        """A lane for a plan.  Collective: communicates when those agreed upon are used up.

        ``pause`` is called while it waits for other ranks, and may raise.
        """
        if not self._free:
            self._agree(pause)
        lane = self._free.popleft()
        self._taken.add(lane)
        return lane

    def give_back(self, lane: Lane) -> None:
        """A plan is freed.  Local: ranks may free their plans at different times."""
        self._taken.discard(lane)

    def _agree(self, pause: Callable[[], object]) -> None:
        """Find the lanes that are free on all ranks, on one more communicator if there are none."""
        every = [Lane(comm, number) for comm in range(len(self.comms)) for number in PLANS]
        mine = np.array([lane not in self._taken for lane in every])
        common = np.empty_like(mine)
        # The other ranks may have to complete something under way before they come here.
        progress.until(self.comms[0].Iallreduce(mine, common, MPI.LAND).Test, pause)
        self._free.extend(lane for lane, free in zip(every, common, strict=True) if free)
        if not self._free:
            more, request = self.comms[0].Idup()
            progress.until(request.Test, pause)
            more.Set_errhandler(MPI.ERRORS_RETURN)
            self.comms.append(more)
            self._free.extend(Lane(len(self.comms) - 1, number) for number in PLANS)
