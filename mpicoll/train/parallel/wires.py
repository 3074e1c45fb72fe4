"""Messages between the stages of a pipeline.

A message goes over an *edge*, in one direction, for one microbatch; both ends know its length
beforehand, from the number of samples, so that nothing is asked.  Messages of an edge and direction
come in the order of their microbatches.

A message of another length than the expected one says that there is nothing to hand on: what should
have been computed has failed.  So every message of a step is sent and received, whatever has
happened, and nobody waits in vain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.forming import forming
from mpicoll.train.ranks.waiting import Deaths, time_limit, wait_until

if TYPE_CHECKING:
    from mpi4py import MPI

#: Receives of an edge and direction that are posted ahead of need.
SLOTS = 2
#: What one message can have: MPI counts in C's int.
MOST = 2**31 - 1


class Wire(NamedTuple):
    """An edge in one direction.

    Attributes:
        edge: Number of the edge.
        forward: Whether it carries activations, from chunk edge - 1 to chunk edge.
        peer: The rank at the other end.
    """

    edge: int
    forward: bool
    peer: int

    @property
    def tag(self) -> int:
        """Of its messages."""
        return 2 * self.edge + self.forward


class Parcel(NamedTuple):
    """A message that is to come.

    Attributes:
        shape: Of the array, samples first.
        dtype: Its type.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Its length."""
        return math.prod(self.shape) * self.dtype.itemsize


class _Receive(NamedTuple):
    parcel: Parcel
    buffer: Array
    request: MPI.Request


class Wires:
    """All messages of one rank of a pipeline.

    Args:
        comm: The stages; collective.

    Attributes:
        sent, sent_bytes: Messages and bytes that this rank has sent.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI  # here, because it initialises MPI

        with forming(comm):
            self._comm = comm.Dup()
        self._limit, self._deaths = time_limit(comm), Deaths(comm)
        self._byte, self._status = MPI.BYTE, MPI.Status()
        self._coming: dict[Wire, deque[Parcel]] = {}
        self._posted: dict[Wire, deque[_Receive]] = {}
        self._leaving: deque[tuple[MPI.Request, Array]] = deque()
        self.sent = self.sent_bytes = 0

    def expect(self, parcels: Iterable[tuple[Wire, Parcel]]) -> None:
        """Say which messages this rank will take, in order; the first ones are asked for."""
        for wire, parcel in parcels:
            self._coming.setdefault(wire, deque()).append(parcel)
        for wire in self._coming:
            self._posted.setdefault(wire, deque())
            while len(self._posted[wire]) < SLOTS and self._coming[wire]:
                self._post(wire)

    def put(self, wire: Wire, array: Array | None, parcel: Parcel) -> None:
        """Send an array, from where it is; it must not be changed before `finish`.

        Args:
            wire: Over which edge.
            array: None says that there is none.
            parcel: What the other end expects.
        """
        if array is None:
            values = np.zeros(int(not parcel.nbytes), np.uint8)
        else:
            values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        request = self._comm.Isend([values, self._byte], wire.peer, wire.tag)
        self._leaving.append((request, values))
        self.sent += 1
        self.sent_bytes += values.nbytes

    def take(self, wire: Wire) -> Array | None:
        """Wait for the next message of an edge; None if its sender has nothing to hand on.

        Raises:
            TimeoutError: It has not come within `MPICOLL_TIMEOUT`.
        """
        parcel, buffer, request = self._posted[wire][0]
        arrived = self._arrived(request)
        self._posted[wire].popleft()
        if self._coming[wire]:
            self._post(wire)
        if not arrived or self._status.Get_count(self._byte) != parcel.nbytes:
            return None
        return buffer[: parcel.nbytes].view(parcel.dtype).reshape(parcel.shape)

    def poll(self) -> bool:
        """Move messages on while this rank computes; whether any has left."""
        moved = self._left()
        for posted in self._posted.values():
            if posted and not _is_there(posted[0].request):
                break  # one test makes progress for all
        return moved

    def _left(self) -> bool:
        """Let go what has been sent; whether there was any."""
        self._deaths.look()
        before = len(self._leaving)
        while self._leaving and self._leaving[0][0].Test():
            self._leaving.popleft()
        return len(self._leaving) < before

    @property
    def under_way(self) -> object:
        """What MPI may still read or write if the step ends early."""
        return self._leaving, self._posted

    def finish(self) -> None:
        """Wait until all that was sent has left; all that was expected has been taken.

        Raises:
            TimeoutError: As `take` does.
        """
        with self._deaths.told(self._leaving, self._posted):
            wait_until(lambda: not self._leaving, self._left, self._limit)

    def swap(
        self, array: Array, targets: Sequence[int], arrivals: Mapping[int, Array], tag: int
    ) -> None:
        """Send one array to some ranks, and receive one of each of others; outside of a step.

        Args:
            array: Contiguous.
            targets: Where it goes.
            arrivals: Where the array of each rank is put.
            tag: Of all these messages; no wire has it.

        Raises:
            TimeoutError: As `take` does.
        """
        requests = [
            self._comm.Irecv([buffer.reshape(-1).view(np.uint8), self._byte], rank, tag)
            for rank, buffer in arrivals.items()
        ]
        leaving = [array.reshape(-1).view(np.uint8), self._byte]
        requests += [self._comm.Isend(leaving, rank, tag) for rank in targets]
        with self._deaths.told(requests, array, arrivals):
            while requests:
                wait_until(requests[-1].Test, self._deaths.look, self._limit)
                requests.pop()

    def free(self) -> None:
        """Free the communicator; collective."""
        self._comm.Free()

    def _arrived(self, request: MPI.Request) -> bool:
        """Wait for a message; whether it fitted in."""
        from mpi4py import MPI

        with self._deaths.told(self._leaving, self._posted):
            try:
                wait_until(lambda: request.Test(self._status), self._left, self._limit)
            except MPI.Exception as error:
                if error.Get_error_class() != MPI.ERR_TRUNCATE:
                    raise
                return False
        return True

    def _post(self, wire: Wire) -> None:
        parcel = self._coming[wire].popleft()
        buffer = np.empty(max(parcel.nbytes, 1), np.uint8)
        request = self._comm.Irecv([buffer, self._byte], wire.peer, wire.tag)
        self._posted[wire].append(_Receive(parcel, buffer, request))


def _is_there(request: MPI.Request) -> bool:
    """Whether a message has arrived or failed; `take` raises the failure."""
    from mpi4py import MPI

    try:
        return bool(request.Get_status())
    except MPI.Exception:
        return True
