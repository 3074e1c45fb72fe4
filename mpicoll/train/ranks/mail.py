"""Messages between ranks that sleep while they wait: others compute on the cores beside."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

from mpicoll.base.deaths import dead
from mpicoll.train.ranks.waiting import is_complete, is_death

if TYPE_CHECKING:
    from mpi4py import MPI

_LEAST, _MOST = 5e-5, 5e-3
#: Seconds between two looks who has died.
_PAUSE = 1e-3


class Letter(NamedTuple):
    """A message, who has sent it, and its tag."""

    rank: int
    tag: int
    content: bytearray


class Mail:
    """Messages of a communicator of their own; making and closing it is collective.

    Args:
        comm: The ranks.

    Attributes:
        rank, size: This rank, and how many there are.
        sent: Messages sent to each rank.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi, self.rank, self.size = MPI, comm.Get_rank(), comm.Get_size()
        self._comm = MPI.Intracomm(comm).Dup()  # the user's messages are not ours
        self.sent = [0] * self.size
        self._received = [0] * self.size
        #: What is under way, with its bytes.
        self._under_way: list[tuple[MPI.Request, bytes]] = []

    def send(self, rank: int, content: bytes, tag: int = 0) -> None:
        """Send a message; this does not wait for the other rank."""
        self._under_way = [pair for pair in self._under_way if not is_complete(pair[0])]
        request = self._comm.Isend([content, self._mpi.BYTE], rank, tag)
        self._under_way.append((request, content))
        self.sent[rank] += 1

    def look(self) -> Letter | None:
        """A message that has arrived, None where there is none."""
        return self._look(self._mpi.ANY_SOURCE)

    def lost(self) -> frozenset[int]:
        """Ranks that have died; none, where all end with one."""
        return frozenset()

    def _look(self, source: int) -> Letter | None:
        status = self._mpi.Status()
        message = self._comm.Improbe(source=source, status=status)
        if message is None:
            return None
        content = bytearray(status.Get_count(self._mpi.BYTE))
        message.Recv([content, self._mpi.BYTE])
        self._received[status.Get_source()] += 1
        return Letter(status.Get_source(), status.Get_tag(), content)

    def wait(self, limit: float = math.inf) -> Letter | None:
        """The next message; None where none comes within so many seconds."""
        end, nap = time.monotonic() + limit, _LEAST
        while (letter := self.look()) is None and time.monotonic() < end:
            time.sleep(nap)
            nap = min(2 * nap, _MOST)
        return letter

    def drain(self) -> int:
        """Receive what was sent to this rank and not received; how many these were. Collective."""
        due = self._comm.alltoall(self.sent)
        count = 0
        while self._received != due:
            if self.wait() is not None:
                count += 1
        self._mpi.Request.Waitall([request for request, _ in self._under_way])
        self._under_way.clear()
        return count

    def close(self) -> None:
        """Nothing more will be sent; collective."""
        self.drain()
        self._comm.Free()


class SurvivingMail(Mail):
    """Messages between ranks of which some may die; what was for the dead is dropped.

    Closing it leaves it as it is: the ranks do not wait for each other.

    Args:
        comm: An `mpicoll.Intracomm` with `survive=True`.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self._lost, self._next = frozenset[int](), 0.0

    def lost(self) -> frozenset[int]:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PAUSE
            self._lost = frozenset(dead(self._comm))
        return self._lost

    def send(self, rank: int, content: bytes, tag: int = 0) -> None:
        try:
            if rank not in self.lost():
                super().send(rank, content, tag)
        except Exception as error:
            if not is_death(error):
                raise

    def look(self) -> Letter | None:
        for rank in range(self.size):
            try:
                # Not from any rank: that fails as soon as one has died.
                letter = None if rank in self.lost() else self._look(rank)
            except Exception as error:
                if not is_death(error):
                    raise
                continue
            if letter is not None:
                return letter
        return None

    def close(self) -> None:
        """Nothing more will be sent."""
