"""Collectives for ranks of which some may die: everything goes through rank 0.

A rank that waits polls, serves, and looks who is alive, so that nobody waits for the dead. Rank 0
decides what each operation is made of: what it got. The last ranks, which only serve, may be
missing; they contribute nothing that is added up.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpicoll.layout import part
from mpicoll.train.health import Health
from mpicoll.train.messages import is_death, wait_until
from mpicoll.train.workers import AllReduceWorkers

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Array = NDArray[Any]

#: A tag that no shard has.
_TAG = 0


class Survivors(AllReduceWorkers):
    """The ranks of a communicator; as `mpicoll.train.workers.Workers`.

    Args:
        comm: The ranks.
        health: Who is alive.
        workers: Number of ranks, the first, that compute and measure.

    Attributes:
        meanwhile: Looks who is alive, and moves on what this rank serves; whether anything moved.
    """

    def __init__(self, comm: MPI.Intracomm, health: Health, workers: int) -> None:
        super().__init__(comm, None)
        self._own: MPI.Intracomm = comm.Dup()  # that no other message is on
        self.health, self._computing = health, workers
        self.meanwhile: Callable[[], bool] = health.look
        self._sending: list[tuple[MPI.Request, bytes]] = []

    def free(self) -> None:
        """Free what the ranks made together."""
        self._own.Free()

    def share(self, length: int) -> tuple[int, int]:
        """See `Workers.share`: ranks that only serve take nothing."""
        if self.rank >= self._computing:
            return length, 0
        return part(length, self._computing, self.rank)

    def gather(self, fact: T) -> list[T]:
        """See `Workers.gather`; None in place of what the dead would say."""
        if self.rank:
            self._send(fact, 0)
            found: list[T] = self._receive(0)
            return found
        facts: list[Any] = [fact, *(None for _ in range(1, self.size))]
        for rank in range(1, self.size):
            facts[rank] = self._receive(rank)
        for rank in range(1, self.size):
            self._send(facts, rank)
        return facts

    def broadcast(self, values: Array) -> None:
        """See `Workers.broadcast`."""
        values[...] = self.gather(values if self.rank == 0 else None)[0]

    def sum(self, values: Array) -> None:
        """See `Workers.sum`."""
        found = [theirs for theirs in self.gather(values) if theirs is not None]
        values[...] = np.sum(found, axis=0)

    def _send(self, fact: object, rank: int) -> None:
        """Start to send; what is for the dead is lost."""
        self._sending = [(r, data) for r, data in self._sending if not _complete(r)]
        if rank in self.health.dead:
            return
        data = pickle.dumps(fact)
        try:
            self._sending.append((self._own.Isend(data, rank, _TAG), data))
        except Exception as error:
            if not is_death(error):
                raise

    def _receive(self, rank: int) -> Any:
        """What a rank sent; None if it died before."""
        from mpi4py import MPI

        found: list[bytearray] = []

        def arrived() -> bool:
            if rank in self.health.dead:
                return True
            status = MPI.Status()
            try:
                message = self._own.Improbe(rank, _TAG, status)
                if message is None:
                    return False
                data = bytearray(status.Get_count(MPI.BYTE))
                message.Recv(data)
            except Exception as error:
                if not is_death(error):
                    raise
                return False  # `look` will know it soon
            found.append(data)
            return True

        wait_until(arrived, lambda: self.meanwhile())
        return pickle.loads(bytes(found[0])) if found else None


def _complete(request: MPI.Request) -> bool:
    """Whether a send is over; what was for the dead is left alone, and kept."""
    try:
        return bool(request.Test())
    except Exception as error:
        if not is_death(error):
            raise
        return False
