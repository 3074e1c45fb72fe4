"""Lanes: parts of the tags of a communicator, so that collectives under way together stay apart.

Lane 0 is that of blocking calls.  A non-blocking call takes the lane of its sequence number, and
starts when that lane is free on this rank: messages on one lane do not overtake each other, so it
does not matter what the other ranks have reached.  A persistent request takes a lane for itself
when it is made, and gives it back when it is freed, because ranks may start them in different
orders.  One that starts the MPI library's own collectives, which know no lanes, takes a
communicator.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from mpicoll.engine import progress
from mpicoll.schedule import MAX_OPEN_CHANNELS

_T = TypeVar("_T", bound=Hashable)

#: MPI promises tags up to 32767.
_LANES = (1 << 15) // MAX_OPEN_CHANNELS
#: Lanes of non-blocking calls, and of persistent requests on each communicator.  The last lane is
#: for messages that belong to no plan (see :mod:`mpicoll.runtime.watch`).
CALLS, PERSISTENT = range(1, _LANES // 2), range(_LANES // 2, _LANES - 1)


class Lane(NamedTuple):
    """A lane of one of the communicators that carry messages."""

    comm: int
    number: int


#: The lane of blocking calls, and those of calls that are not.
BLOCKING = Lane(0, 0)
_OF_CALLS = tuple(Lane(0, number) for number in CALLS)


class Pool(Generic[_T]):
    """What persistent requests take for themselves: the same on all ranks.

    Args:
        private: over this the ranks agree on what is free.
        first: what is there from the beginning.
        more: makes more of it where none is free; collective.  Its argument: see :meth:`take`.
    """

    def __init__(
        self,
        private: MPI.Intracomm,
        first: Iterable[_T],
        more: Callable[[Callable[[], object]], Iterable[_T]],
    ) -> None:
        self._private, self._more = private, more
        self._every = [*first]
        #: Free on all ranks when they last agreed, and not handed out since: equal on all ranks.
        self._free = deque(self._every)
        self._taken: set[_T] = set()

    def take(
        self, owner: object, pause: Callable[[], object]
    ) -> tuple[_T, weakref.finalize[[_T], Any]]:
        """Something for a request, and what gives it back once that is freed, or is dropped.

        Collective: communicates when what was agreed upon is used up.  Giving back is local: ranks
        may free their requests at different times.

        Args:
            owner: the request.
            pause: called while it waits for other ranks; may raise.
        """
        if not self._free:
            self._agree(pause)
        taken = self._free.popleft()
        self._taken.add(taken)
        back = weakref.finalize(owner, self._taken.discard, taken)
        back.atexit = False
        return taken, back

    def _agree(self, pause: Callable[[], object]) -> None:
        """Find what is free on all ranks, and make more if that is nothing."""
        mine = np.array([each not in self._taken for each in self._every])
        if len(mine):
            common = np.empty_like(mine)
            # The other ranks may have to complete something under way before they come here.
            progress.until(self._private.Iallreduce(mine, common, MPI.LAND).Test, pause)
            self._free.extend(each for each, free in zip(self._every, common, strict=True) if free)
        if not self._free:
            self._free.extend(self._more(pause))
            self._every += self._free


class Lanes:
    """The lanes of one communicator.

    Args:
        private: the communicator that carries its messages.

    Attributes:
        comms: that, and more like it.
    """

    def __init__(self, private: MPI.Intracomm) -> None:
        self.comms = [private]
        self._with_topology: Pool[int] | None = None
        self._calls = 0
        self._queues: dict[int, deque[Hashable]] = {}
        self._lock = threading.Lock()  # calls begin and end in different threads

    @cached_property
    def persistent(self) -> Pool[Lane]:
        """The lanes of persistent requests."""
        lanes = (Lane(0, number) for number in PERSISTENT)
        return Pool(self.comms[0], lanes, self._more_lanes)

    @cached_property
    def whole(self) -> Pool[int]:
        """The numbers of the communicators that persistent requests have for themselves."""
        return Pool(self.comms[0], (), lambda pause: [self._another(pause)])

    def join(self, call: Hashable) -> Lane:
        """The lane of a non-blocking call, the next one in sequence; see :meth:`is_first`."""
        with self._lock:
            lane = _OF_CALLS[self._calls % len(_OF_CALLS)]
            self._calls += 1
            queue = self._queues.get(lane.number)
            if queue is None:
                self._queues[lane.number] = deque((call,))
            else:
                queue.append(call)
        return lane

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

    def with_topology(self, comm: MPI.Intracomm) -> Pool[int]:
        """The same as ``whole``, with the topology of the communicator that these lanes are of."""
        if self._with_topology is None:
            like = MPI.Topocomm(comm)
            self._with_topology = Pool(
                self.comms[0], (), lambda pause: [self._another(pause, like)]
            )
        return self._with_topology

    @property
    def have_topology(self) -> bool:
        """Whether some are of the topology of one communicator, and so of use to no other."""
        return self._with_topology is not None

    def _more_lanes(self, pause: Callable[[], object]) -> list[Lane]:
        """The lanes of persistent requests on another communicator."""
        comm = self._another(pause)
        return [Lane(comm, number) for number in PERSISTENT]

    def _another(self, pause: Callable[[], object], like: MPI.Intracomm | None = None) -> int:
        """The number of another communicator."""
        more, request = (like or self.comms[0]).Idup()
        progress.until(request.Test, pause)
        more.Set_errhandler(MPI.ERRORS_RETURN)
        self.comms.append(more)
        return len(self.comms) - 1
