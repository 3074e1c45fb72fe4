"""Collectives that all end when a rank has died, so that those that are left can go on."""

from __future__ import annotations

from typing import Any

from mpicoll import tuning
from mpicoll.base.arrays import Array
from mpicoll.train.ranks.workers import AllReduceWorkers, Started


class GuardedWorkers(AllReduceWorkers):
    """The ranks of a communicator, as `mpicoll.train.ranks.workers.Workers`.

    Everything that waits raises `mpicoll.RankLost` on all ranks that are left: no message goes from
    one rank to another but in a collective. What is not blocking goes by mpicoll's own algorithms:
    Open MPI 5.0 ends all ranks where its own collectives have sent to a process that was stopped
    and given up, and that process ends later.

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

    def plan_exchange_parts(
        self, parts: Array, counts: list[int], received: Array, received_counts: list[int]
    ) -> Started:
        # By one that needs no lengths but a rank's own.
        own: dict[str, Any] = {"algorithm": "linear"}
        return self._comm.Alltoallv_init([parts, counts], [received, received_counts], **own)

    def _choice_for(self, collective: str, nbytes: int) -> dict[str, Any]:
        if self._choice:
            return super()._choice_for(collective, nbytes)
        from mpicoll.runtime.state import find  # starts MPI

        def serves(choice: tuning.Choice) -> bool:
            own = choice.algorithm != tuning.NATIVE
            return own and tuning.fits(collective, choice, self.size)

        state = find(self._comm)
        assert state is not None
        try:
            choice = tuning.choose(collective, self.size, nbytes, state.table, serves)
        except LookupError:  # the table knows none but the library's
            return {}
        return {"algorithm": choice.algorithm, **dict(choice.parameters)}
