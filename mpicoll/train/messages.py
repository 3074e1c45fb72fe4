"""What workers and servers of a parameter server send each other, and who waits how.

A message is a head of numbers and a part of a vector, one array of bytes. Receives are posted by
named source. Who waits polls, moves on what it serves itself, and sleeps longer and longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]

#: Tags: to a server, to a worker.
TO_SERVER, TO_WORKER = 1, 2
#: Kinds of messages to a server.
PUSH, PULL, LEAVE = range(3)
#: Flags: the gradient is not finite; this rank wants all to stop; this rank has failed.
NOT_FINITE, STOP, FAILED = 1, 2, 4
#: Numbers in a head, and the places of a push, a pull and an answer.
_NUMBERS = 8
KIND, CLOCK, FLAGS, SAMPLES, TOTAL, SECONDS, PROCESSOR = range(7)
STOP_CLOCK = 0

_POLLS, _LEAST, _MOST = 20, 2e-5, 1e-3


class Message:
    """Room for one message.

    Attributes:
        data: All bytes.
        head: Numbers.
        values: The part of the vector.
    """

    def __init__(self, count: int, dtype: np.dtype[Any]) -> None:
        self.data = np.zeros(8 * _NUMBERS + count * dtype.itemsize, np.uint8)
        self.head = self.data[: 8 * _NUMBERS].view(np.float64)
        self.values: Array = self.data[8 * _NUMBERS :].view(dtype)
        self.request: MPI.Request | None = None

    def send(self, comm: MPI.Intracomm, target: int, tag: int, whole: bool = True) -> None:
        """Start to send it, or its head alone."""
        data = self.data if whole else self.data[: 8 * _NUMBERS]
        self.request = comm.Isend(data, target, tag)

    def receive(self, comm: MPI.Intracomm, source: int, tag: int) -> None:
        """Start to receive one."""
        self.request = comm.Irecv(self.data, source, tag)

    def done(self) -> bool:
        """Whether it is under way no more."""
        if self.request is None or not self.request.Test():
            return self.request is None
        self.request = None
        return True


def wait_until(done: Callable[[], bool], meanwhile: Callable[[], bool]) -> None:
    """Poll until `done()`; `meanwhile` moves other things on and says whether it moved any."""
    pause, polls = _LEAST, 0
    while not done():
        if meanwhile():
            pause, polls = _LEAST, 0
        elif polls < _POLLS:
            polls += 1
            time.sleep(0)
        else:
            time.sleep(pause)
            pause = min(2 * pause, _MOST)
