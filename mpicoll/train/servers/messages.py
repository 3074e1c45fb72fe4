"""What workers and servers of a parameter server send each other, and who waits how.

A message is a head of numbers and a part of a vector, one array of bytes. Receives are posted by
named source. Who waits polls, moves on what it serves itself, and sleeps longer and longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.ranks.waiting import is_death

if TYPE_CHECKING:
    from mpi4py import MPI


#: Directions: to a shard, to a worker, to the next replica of a shard, to the one before.
TO_SERVER, TO_WORKER, FORWARD, BACK = range(4)
#: Kinds of messages to a server; the last two ask for an array, and say that one has arrived.
PUSH, PULL, LEAVE, FETCH, ARRIVED = range(5)
#: Flags: the gradient is not finite; this rank wants all to stop; this rank has failed; added where
#: a message is passed on to a replica: a signal to the first holder wants all to stop.
NOT_FINITE, STOP, FAILED, SIGNALLED = 1, 2, 4, 8
#: Numbers in a head. Places in a message to a server: what every one has, what a push has, and what
#: is added where it is passed on to a replica. The last number of all says that there is something.
_NUMBERS = 14
KIND, CLOCK, FLAGS, EPOCH, SAMPLES, TOTAL, SECONDS, PROCESSOR, VERSION = range(9)
WORKER, INDEX, STOP_AT = range(9, 12)
#: Places in a message to a worker: where to stop; updates in the values; the last clock they are
#: good for; whether the worker has left and nothing more comes; steps skipped.
STOP_CLOCK, UPDATES, LAST, FINAL, SKIPPED = range(5)


def tag(shard: int, direction: int) -> int:
    """The tag of messages that concern a shard."""
    return 4 * shard + direction


class ServerMessage:
    """Room for one message.

    Attributes:
        data: All bytes.
        head: Numbers.
        values: The part of the vector.
        lost: Whether the other rank has died meanwhile.
    """

    def __init__(self, count: int, dtype: np.dtype[Any]) -> None:
        self.data = np.zeros(8 * _NUMBERS + count * dtype.itemsize, np.uint8)
        self.head = self.data[: 8 * _NUMBERS].view(np.float64)
        self.values: Array = self.data[8 * _NUMBERS :].view(dtype)
        self.request: MPI.Request | None = None
        self.lost = self._receives = False

    def copy(self) -> ServerMessage:
        """Another with the same content, that is not under way."""
        new = ServerMessage(self.values.size, self.values.dtype)
        new.data[...] = self.data
        return new

    def send(self, comm: MPI.Intracomm, target: int, tag: int, whole: bool = True) -> None:
        """Start to send it, or its head alone."""
        data = self.data if whole else self.data[: 8 * _NUMBERS]
        self.head[-1] = 1.0
        self._start(lambda: comm.Isend(data, target, tag), receives=False)

    def receive(self, comm: MPI.Intracomm, source: int, tag: int) -> None:
        """Start to receive one."""
        self.head[-1] = 0.0
        self._start(lambda: comm.Irecv(self.data, source, tag), receives=True)

    def done(self) -> bool:
        """Whether it is under way no more; never, if the other rank has died meanwhile."""
        if self.lost:
            return False
        if self.request is None:
            return True
        try:
            if not self.request.Test():
                return False
        except Exception as error:
            self._lose(error)
            return False
        # A receive from a rank that died may pass as complete, with nothing in it.
        if self._receives and not self.head[-1]:
            self.lost = True
            return False
        self.request = None
        return True

    def cancel(self) -> None:
        """What has not arrived is awaited no more."""
        if self.request is not None and not self.lost:
            self.request.Cancel()
            self.request.Wait()
            self.request = None

    def _start(self, start: Callable[[], MPI.Request], receives: bool) -> None:
        self._receives = receives
        try:
            self.request = start()
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Go on as if nothing will come, if that is because a rank has died."""
        if not is_death(error):
            raise error
        self.lost = True
