"""Short messages between ranks that sleep while they wait: others compute on the cores beside."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mpi4py import MPI

_LEAST, _MOST = 1e-4, 5e-3


class Letter(NamedTuple):
    """A message, in JSON's types, and who has sent it."""

    rank: int
    content: dict[str, Any]


class Mail:
    """Messages of a communicator of their own; making and closing it is collective.

    Args:
        comm: The ranks.

    Attributes:
        rank: This one.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi, self.rank = MPI, comm.Get_rank()
        self._comm = MPI.Intracomm(comm).Dup()  # the user's messages are not ours
        #: What is under way, with its bytes.
        self._sent: list[tuple[MPI.Request, bytes]] = []

    def send(self, rank: int, **content: Any) -> None:
        """Send a message; it does not wait for the other rank."""
        text = json.dumps(content).encode()
        self._sent = [(request, held) for request, held in self._sent if not request.Test()]
        self._sent.append((self._comm.Isend([text, self._mpi.BYTE], rank), text))

    def look(self) -> Letter | None:
        """A message that has arrived, None where there is none."""
        status = self._mpi.Status()
        message = self._comm.Improbe(source=self._mpi.ANY_SOURCE, status=status)
        if message is None:
            return None
        text = bytearray(status.Get_count(self._mpi.BYTE))
        message.Recv([text, self._mpi.BYTE])
        return Letter(status.Get_source(), json.loads(text))

    def wait(self, limit: float = float("inf")) -> Letter | None:
        """The next message; None where none comes within so many seconds."""
        end, nap = time.monotonic() + limit, _LEAST
        while (letter := self.look()) is None and time.monotonic() < end:
            time.sleep(nap)
            nap = min(2 * nap, _MOST)
        return letter

    def close(self) -> None:
        """All that was sent has been received."""
        self._mpi.Request.Waitall([request for request, _ in self._sent])
        self._comm.Free()
