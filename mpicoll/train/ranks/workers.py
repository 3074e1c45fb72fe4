"""The ranks that train together: what the training loop asks of them, and how they fail together.

A rank that raised by itself would leave the others waiting in a collective for ever. So whatever
can fail on one rank is told to all, and all raise the same `TrainingError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from mpicoll import algorithms
from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import even, part
from mpicoll.train.ranks.waiting import time_limit, wait_until

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


class TrainingError(RuntimeError):
    """The training cannot continue. Raised on all ranks, with the same message."""


class NotSaved(TrainingError):
    """Checkpoints cannot be written, as on a full disk; the run itself is sound."""


class Running(Protocol):
    """A collective that has begun; the methods are those of a request of MPI."""

    def Test(self) -> bool:
        """Make progress; whether it is complete."""

    def Wait(self) -> object:
        """Until it is complete."""


class Started(Running, Protocol):
    """A collective bound to its arrays, to be started in every step, in the same order everywhere.

    The methods are those of a persistent request of MPI.
    """

    def Start(self) -> object:
        """Begin; the arrays belong to the operation until it is complete."""

    def Free(self) -> None:
        """It will not be started again."""


class AllAlive:
    """Who is alive where the launcher ends all ranks when one dies: all.

    Attributes:
        dead: Ranks that have died.
        holders: Ranks that hold each shard, the first to answer for it first.
    """

    dead: frozenset[int] = frozenset()
    holders: Sequence[Sequence[int]] = ()

    def look(self) -> bool:
        """Whether ranks have died since the last look."""
        return False

    def chain(self, shard: int) -> list[int]:
        """Ranks that hold a shard and are alive; the first answers for it."""
        return [rank for rank in self.holders[shard] if rank not in self.dead]


class Done:
    """`Started` in one process: a copy at once, or nothing."""

    def __init__(self, source: Array | None = None, target: Array | None = None) -> None:
        self._source, self._target = source, target

    def Start(self) -> None:
        if self._source is not None and self._target is not None:
            self._target[...] = self._source.reshape(self._target.shape)

    def Test(self) -> bool:
        return True

    def Wait(self) -> None:
        """It is complete."""

    def Free(self) -> None:
        """There is nothing to free."""


class Workers:
    """A group of ranks; of this class itself: one process, without MPI.

    Methods are collective, but for `share` and `assign`.

    Attributes:
        rank: This rank, 0 .. size - 1.
        size: Number of ranks.
        may_die: Whether a rank may die and the others go on.
        health: Who is alive.
        meanwhile: Called by a rank that waits in `meet`, and wherever ranks may die: moves on what
            it serves, and says whether anything moved.
    """

    rank = 0
    size = 1
    may_die = False
    health = AllAlive()
    meanwhile: Callable[[], bool] = health.look

    def assign(self, computing: int, holders: Sequence[Sequence[int]]) -> None:
        """Say how many ranks compute, the first, and which hold each shard."""

    def begin(self) -> None:
        """From now on ranks that hold a shard may stand in for each other."""

    def link(self) -> MPI.Intracomm:
        """The same ranks for messages of one's own; who asks frees it, unless a rank has died."""
        raise RuntimeError("one process has no other to send to: run it under mpirun -n 2")

    def meet(self) -> None:
        """Wait for all ranks, and go on with `meanwhile`."""

    def connect(self) -> None:
        """Let collectives that do not block be mpicoll's own, from the first on."""

    def share(self, length: int) -> tuple[int, int]:
        """First and number of this rank's part of so many items to be measured."""
        return 0, length

    def sum(self, values: Array) -> None:
        """Replace `values` on all ranks by their sum over the ranks."""

    def broadcast(self, values: Array, root: int = 0) -> None:
        """Replace `values` on all ranks by those of one, rank 0."""

    def gather(self, fact: T) -> list[T]:
        """The (small) facts of all ranks, in rank order, on all ranks."""
        return [fact]

    def shift(self, values: Array, received: Array, distance: int) -> None:
        """Receive the values of the rank so many places before, into an array of their shape."""
        received[...] = values

    def plan_sum(self, values: Array, short: bool = False) -> Started:
        """As `sum`, to be started many times.

        Args:
            values: The array.
            short: Whether ranks will wait for it with nothing else to do, and it is short.
        """
        return Done()

    def plan_reduce_scatter(self, values: Array, own: Array) -> Started:
        """The sum of the ranks' `values`, of which each rank gets its even part into `own`."""
        return Done(values, own)

    def plan_share(self, values: Array) -> Started:
        """Every rank's even part of `values` is filled in on all ranks."""
        return Done()

    def start_share(self, values: Array) -> Running:
        """As `plan_share`, begun at once: what it works in is there only until it is complete."""
        return Done()

    def start_reduce_scatter(self, values: Array, own: Array) -> Running:
        """As `plan_reduce_scatter`, begun at once."""
        own[...] = values.reshape(own.shape)
        return Done()

    def start_broadcast(self, values: Array, root: int) -> Running:
        """Begin to replace `values` on all ranks by those of one."""
        return Done()

    def start_reduce(self, values: Array, total: Array, root: int) -> Running:
        """Begin to sum the ranks' `values` into the `total` of one; nobody else's is used."""
        total[...] = values.reshape(total.shape)
        return Done()

    def plan_exchange(self, rows: Array, received: Array) -> Started:
        """Row i of `rows` goes to rank i, into the row of `received` that is the sender's."""
        return Done(rows, received)

    def plan_exchange_parts(
        self, parts: Array, counts: list[int], received: Array, received_counts: list[int]
    ) -> Started:
        """As `plan_exchange`, with parts of any lengths, one after the other."""
        return Done(parts, received)

    def plan_collect(self, row: Array, received: Array) -> Started:
        """The rows of all ranks, in rank order, into the rows of `received` on all ranks."""
        return Done(row, received)


class AllReduceWorkers(Workers):
    """The ranks of a communicator.

    Args:
        comm: An `mpicoll.Intracomm`, or any communicator of mpi4py if `algorithm` is None.
        algorithm: Algorithm of sums, None for the communicator's choice; also of reduce-scatter and
            all-gather, where there is one of that name. Short sums are by recursive doubling, where
            it is not the library's own.
    """

    def __init__(self, comm: MPI.Intracomm, algorithm: str | None) -> None:
        from mpi4py import MPI  # here, because it initialises MPI

        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._comm = comm
        self._in_place = MPI.IN_PLACE
        self._operator = MPI.SUM
        self._choice: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm}
        # The fewest rounds, with the same bits on all ranks.
        own = algorithm not in (None, "native")
        self._short = {"algorithm": "recursive_doubling"} if own else self._choice

    def _choice_for(self, collective: str, nbytes: int) -> dict[str, Any]:
        """The keywords of a collective that is not blocking, of so many bytes altogether."""
        if not self._choice:  # the names of all algorithms are not looked up for each call
            return {}
        known = (*algorithms.names(collective), "native")
        return self._choice if self._choice.get("algorithm") in known else {}

    def link(self) -> MPI.Intracomm:
        return self._comm.Dup()

    def meet(self) -> None:
        wait_until(self._comm.Ibarrier().Test, self.meanwhile, time_limit(self._comm))

    def connect(self) -> None:
        from mpicoll.comm import Intracomm  # here, because it initialises MPI

        if isinstance(self._comm, Intracomm):
            self._comm.Barrier(algorithm="dissemination")

    def share(self, length: int) -> tuple[int, int]:
        return part(length, self.size, self.rank)

    def sum(self, values: Array) -> None:
        self._comm.Allreduce(self._in_place, values, op=self._operator, **self._choice)

    def broadcast(self, values: Array, root: int = 0) -> None:
        self._comm.Bcast(values, root=root)

    def gather(self, fact: T) -> list[T]:
        return self._comm.allgather(fact)

    def shift(self, values: Array, received: Array, distance: int) -> None:
        target, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
        self._comm.Sendrecv(values, target, recvbuf=received, source=source)

    def plan_sum(self, values: Array, short: bool = False) -> Started:
        choice = self._short if short else self._choice
        choice = choice or self._choice_for("allreduce", values.nbytes)
        return self._comm.Allreduce_init(self._in_place, values, op=self._operator, **choice)

    def plan_reduce_scatter(self, values: Array, own: Array) -> Started:
        return self._comm.Reduce_scatter_init(
            values,
            own,
            list(even(values.size, self.size).counts),
            op=self._operator,
            **self._choice_for("reduce_scatter", values.nbytes),
        )

    def plan_share(self, values: Array) -> Started:
        counts = list(even(values.size, self.size).counts)
        return self._comm.Allgatherv_init(
            self._in_place, [values, counts], **self._choice_for("allgather", values.nbytes)
        )

    def start_share(self, values: Array) -> Running:
        counts = list(even(values.size, self.size).counts)
        choice = self._choice_for("allgather", values.nbytes)
        return self._comm.Iallgatherv(self._in_place, [values, counts], **choice)

    def start_reduce_scatter(self, values: Array, own: Array) -> Running:
        counts = list(even(values.size, self.size).counts)
        choice = self._choice_for("reduce_scatter", values.nbytes)
        return self._comm.Ireduce_scatter(values, own, counts, op=self._operator, **choice)

    def start_broadcast(self, values: Array, root: int) -> Running:
        return self._comm.Ibcast(values, root=root, **self._choice_for("bcast", values.nbytes))

    def start_reduce(self, values: Array, total: Array, root: int) -> Running:
        target = total if self.rank == root else None
        choice = self._choice_for("reduce", values.nbytes)
        return self._comm.Ireduce(values, target, op=self._operator, root=root, **choice)

    def plan_exchange(self, rows: Array, received: Array) -> Started:
        return self._comm.Alltoall_init(rows, received)

    def plan_exchange_parts(
        self, parts: Array, counts: list[int], received: Array, received_counts: list[int]
    ) -> Started:
        return self._comm.Alltoallv_init([parts, counts], [received, received_counts])

    def plan_collect(self, row: Array, received: Array) -> Started:
        return self._comm.Allgather_init(row, received)


def raise_together(workers: Workers, what: str, failure: Exception | None) -> None:
    """Raise on all ranks if any rank failed; collective.

    Args:
        workers: The ranks.
        what: What was tried, for the message.
        failure: What went wrong on this rank, None for nothing.

    Raises:
        TrainingError: Names the first rank that failed and its failure.
    """
    reason = None if failure is None else f"{type(failure).__name__}: {failure}"
    for rank, found in enumerate(workers.gather(reason)):
        if found is not None:
            _refuse(f"{what} failed on rank {rank}: {found}", failure)


@contextmanager
def together(workers: Workers, what: str) -> Iterator[None]:
    """Guard statements that may fail on some ranks only; leaving is collective.

    Raises:
        TrainingError: They failed on at least one rank.
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    raise_together(workers, what, failure)


def require_equal(workers: Workers, facts: Mapping[str, object], remedy: str) -> None:
    """Raise on all ranks if any rank has other facts than rank 0; collective.

    Args:
        workers: The ranks.
        facts: Name and value of what must be equal; compared as text.
        remedy: What to do about a difference.

    Raises:
        TrainingError: Names the rank, the fact and both values.
    """
    everyone = workers.gather({name: str(value) for name, value in facts.items()})
    for rank, theirs in enumerate(everyone):
        for name in dict.fromkeys((*everyone[0], *theirs)):
            ours, other = everyone[0].get(name, "missing"), theirs.get(name, "missing")
            if ours != other:
                _refuse(f"{name} is {ours} on rank 0 and {other} on rank {rank}: {remedy}", None)


def _refuse(message: str, cause: Exception | None) -> NoReturn:
    raise TrainingError(message) from cause
