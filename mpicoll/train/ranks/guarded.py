"""Collectives that all end when a rank has died, so that those that are left can go on.

Only what mpicoll carries out can be left: no operation of the MPI library's own is used here.
"""

from __future__ import annotations

import pickle
from typing import TypeVar

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.ranks.workers import AllReduceWorkers

T = TypeVar("T")


class GuardedWorkers(AllReduceWorkers):
    """The ranks of a communicator, as `mpicoll.train.ranks.workers.Workers`.

    Everything that waits raises `mpicoll.RankLost` on all ranks that are left.

    Args:
        comm: An `mpicoll.Intracomm` with `survive=True`.
        algorithm: As of `AllReduceWorkers`.
    """

    may_die = True

    def meet(self) -> None:
        self._comm.Barrier()

    def gather(self, fact: T) -> list[T]:
        own = np.frombuffer(pickle.dumps(fact), np.uint8)
        lengths = np.zeros(self.size, np.int64)
        self._comm.Allgather(np.array([own.size]), lengths)
        everyone = np.empty(int(lengths.sum()), np.uint8)
        self._comm.Allgatherv(own, [everyone, lengths.tolist()])
        parts = np.split(everyone, np.cumsum(lengths)[:-1])
        return [pickle.loads(part.tobytes()) for part in parts]

    def shift(self, values: Array, received: Array, distance: int) -> None:
        sent, awaited = [0] * self.size, [0] * self.size
        sent[(self.rank + distance) % self.size] = values.size
        awaited[(self.rank - distance) % self.size] = received.size
        self._comm.Alltoallv([values, sent], [received, awaited])
