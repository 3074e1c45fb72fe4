"""Collectives for ranks of which some may die: everything goes through rank 0.

A rank that waits polls, serves, and looks who is alive, so that nobody waits for the dead. Rank 0
decides what each operation is made of: what it got. Once training has begun the last ranks, which
only serve, may be missing; they contribute nothing that is added up.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train.ranks.health import Health
from mpicoll.train.ranks.waiting import is_complete, is_death, time_limit, wait_until
from mpicoll.train.ranks.workers import AllReduceWorkers

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

#: A tag that neither a shard nor a data server has; the largest that every MPI allows.
_TAG = 32767


class Survivors(AllReduceWorkers):
    """The ranks of a communicator; as `mpicoll.train.ranks.workers.Workers`.

    Args:
        comm: The ranks; collective.
        titles: What each of them is, as `mpicoll.train.ranks.health.Health` has it.

    Raises:
        RankLost: A rank died meanwhile.
    """

    may_die = True
    health: Health

    def __init__(self, comm: MPI.Intracomm, titles: Sequence[str]) -> None:
        from mpi4py import MPI

        super().__init__(comm, None)
        self.health, self._computing = Health(comm, titles), self.size
        self.meanwhile: Callable[[], bool] = self.health.look
        self._sending: list[tuple[MPI.Request, bytes]] = []
        self._limit = time_limit(comm)
        self._link, made = MPI.Intracomm(comm).Idup()
        wait_until(lambda: is_complete(made), self.health.look)

    def assign(self, computing: int, holders: Sequence[Sequence[int]]) -> None:
        self._computing, self.health.holders = computing, holders

    def begin(self) -> None:
        self.gather(None)  # raises RankLost where a rank died before
        self.health.replaces = True

    def link(self) -> MPI.Intracomm:
        return self._link  # that of these operations, with other tags than theirs

    def meet(self) -> None:
        self.gather(None)

    def share(self, length: int) -> tuple[int, int]:
        if self.rank >= self._computing:  # ranks that only serve take nothing
            return length, 0
        return part(length, self._computing, self.rank)

    def gather(self, fact: T) -> list[T]:
        """The facts of all ranks; None in place of what the dead would say."""
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

    def broadcast(self, values: Array, root: int = 0) -> None:
        values[...] = self.gather(values if self.rank == root else None)[root]

    def sum(self, values: Array) -> None:
        found = [theirs for theirs in self.gather(values) if theirs is not None]
        values[...] = np.sum(found, axis=0)

    def _send(self, fact: object, rank: int) -> None:
        """Start to send; what is for the dead is lost."""
        # What was for the dead is left alone, and kept.
        self._sending = [(r, data) for r, data in self._sending if not is_complete(r)]
        if rank in self.health.dead:
            return
        data = pickle.dumps(fact)
        try:
            self._sending.append((self._link.Isend(data, rank, _TAG), data))
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
                message = self._link.Improbe(rank, _TAG, status)
                if message is None:
                    return False
                data = bytearray(status.Get_elements(MPI.BYTE))
                message.Recv(data)
            except Exception as error:
                if not is_death(error):
                    raise
                return False  # `look` will know it soon
            found.append(data)
            return True

        wait_until(arrived, lambda: self.meanwhile(), self._limit)
        return pickle.loads(bytes(found[0])) if found else None
