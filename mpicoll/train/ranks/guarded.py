"""Collectives that all end when a rank has died, so that those that are left can go on."""

from __future__ import annotations

from mpicoll.base.arrays import Array
from mpicoll.train.ranks.workers import AllReduceWorkers


class GuardedWorkers(AllReduceWorkers):
    """The ranks of a communicator, as `mpicoll.train.ranks.workers.Workers`.

    Everything that waits raises `mpicoll.RankLost` on all ranks that are left: no message goes from
    one rank to another but in a collective.

    Args:
        comm: An `mpicoll.Intracomm` with `survive=True`.
        algorithm: As of `AllReduceWorkers`.
    """

    may_die = True

    def meet(self) -> None:
        self._comm.Barrier()

    def shift(self, values: Array, received: Array, distance: int) -> None:
        sent, awaited = [0] * self.size, [0] * self.size
        sent[(self.rank + distance) % self.size] = values.size
        awaited[(self.rank - distance) % self.size] = received.size
        self._comm.Alltoallv([values, sent], [received, awaited])
