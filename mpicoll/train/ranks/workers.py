"""The ranks that train together: what the training loop asks of them, and how they fail together.

A rank that raised by itself would leave the others waiting in a collective for ever. So whatever
can fail on one rank is told to all, and all raise the same `TrainingError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from numpy.typing import NDArray

from mpicoll import algorithms
from mpicoll.schedule.layout import even, part

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Array = NDArray[Any]


class TrainingError(RuntimeError):
    """Training cannot go on. Raised on all ranks together, with the same message."""


class Plan(Protocol):
    """A collective bound to its arrays, to be started in every step, in the same order everywhere.

    The methods are those of a persistent request of MPI.
    """

    def Start(self) -> object:
        """Begin; the arrays belong to the operation until it is complete."""

    def Test(self) -> bool:
        """Make progress; whether it is complete."""

    def Wait(self) -> object:
        """Until it is complete."""

    def Free(self) -> None:
        """It will not be started again."""


class Workers(Protocol):
    """A group of ranks; every method but the properties is collective."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def share(self, length: int) -> tuple[int, int]:
        """First and number of this rank's part of so many items to be measured."""

    def sum(self, values: Array) -> None:
        """Replace `values` on all ranks by their sum over the ranks."""

    def broadcast(self, values: Array) -> None:
        """Replace `values` on all ranks by those of rank 0."""

    def gather(self, fact: T) -> list[T]:
        """The (small) facts of all ranks, in rank order, on all ranks."""

    def shift(self, values: Array, received: Array, distance: int) -> None:
        """Receive the values of the rank so many places before, into an array of their shape."""

    def plan_sum(self, values: Array) -> Plan:
        """As `sum`, to be started many times."""

    def plan_reduce_scatter(self, values: Array, own: Array) -> Plan:
        """The sum of the ranks' `values`, of which each rank gets its even part into `own`."""

    def plan_share(self, values: Array) -> Plan:
        """Every rank's even part of `values` is filled in on all ranks."""

    def plan_exchange(self, rows: Array, received: Array) -> Plan:
        """Row i of `rows` goes to rank i, into the row of `received` that is the sender's."""

    def plan_exchange_parts(
        self, parts: Array, counts: list[int], received: Array, received_counts: list[int]
    ) -> Plan:
        """As `plan_exchange`, with parts of any lengths, one after the other."""

    def plan_collect(self, row: Array, received: Array) -> Plan:
        """The rows of all ranks, in rank order, into the rows of `received` on all ranks."""


class _Done:
    """A plan of one process: a copy at once."""

    def __init__(self, source: Array | None = None, target: Array | None = None) -> None:
        self._source, self._target = source, target

    def Start(self) -> None:
        """See `Plan.Start`."""
        if self._source is not None and self._target is not None:
            self._target[...] = self._source.reshape(self._target.shape)

    def Test(self) -> bool:
        """See `Plan.Test`."""
        return True

    def Wait(self) -> None:
        """See `Plan.Wait`."""

    def Free(self) -> None:
        """See `Plan.Free`."""


class OneProcess:
    """One process by itself, without MPI."""

    rank = 0
    size = 1

    def share(self, length: int) -> tuple[int, int]:
        """All."""
        return 0, length

    def sum(self, values: Array) -> None:
        """Nothing to add."""

    def broadcast(self, values: Array) -> None:
        """Nobody to tell."""

    def gather(self, fact: T) -> list[T]:
        """See `Workers.gather`."""
        return [fact]

    def shift(self, values: Array, received: Array, distance: int) -> None:
        """See `Workers.shift`."""
        received[...] = values

    def plan_sum(self, values: Array) -> Plan:
        """See `Workers.plan_sum`."""
        return _Done()

    def plan_reduce_scatter(self, values: Array, own: Array) -> Plan:
        """See `Workers.plan_reduce_scatter`."""
        return _Done(values, own)

    def plan_share(self, values: Array) -> Plan:
        """See `Workers.plan_share`."""
        return _Done()

    def plan_exchange(self, rows: Array, received: Array) -> Plan:
        """See `Workers.plan_exchange`."""
        return _Done(rows, received)

    def plan_exchange_parts(
        self, parts: Array, counts: list[int], received: Array, received_counts: list[int]
    ) -> Plan:
        """See `Workers.plan_exchange_parts`."""
        return _Done(parts, received)

    def plan_collect(self, row: Array, received: Array) -> Plan:
        """See `Workers.plan_collect`."""
        return _Done(row, received)


class AllReduceWorkers:
    """The ranks of a communicator.

    Args:
        comm: An `mpicoll.Intracomm`, or any communicator of mpi4py if `algorithm` is None.
        algorithm: Algorithm of sums, None for the communicator's choice; also of reduce-scatter and
            all-gather, where there is one of that name.
    """

    def __init__(self, comm: MPI.Intracomm, algorithm: str | None) -> None:
        from mpi4py import MPI  # here, because it initialises MPI

        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._comm = comm
        self._in_place = MPI.IN_PLACE
        self._operator = MPI.SUM
        self._choice: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm}

    def _choice_for(self, collective: str) -> dict[str, Any]:
        known = (*algorithms.names(collective), "native")
        return self._choice if self._choice.get("algorithm") in known else {}

    def share(self, length: int) -> tuple[int, int]:
        """See `Workers.share`."""
        return part(length, self.size, self.rank)

    def sum(self, values: Array) -> None:
        """See `Workers.sum`."""
        self._comm.Allreduce(self._in_place, values, op=self._operator, **self._choice)

    def broadcast(self, values: Array) -> None:
        """See `Workers.broadcast`."""
        self._comm.Bcast(values, root=0)

    def gather(self, fact: T) -> list[T]:
        """See `Workers.gather`."""
        return self._comm.allgather(fact)

    def shift(self, values: Array, received: Array, distance: int) -> None:
        """See `Workers.shift`."""
        target, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
        self._comm.Sendrecv(values, target, recvbuf=received, source=source)

    def plan_sum(self, values: Array) -> Plan:
        """See `Workers.plan_sum`."""
        return self._comm.Allreduce_init(self._in_place, values, op=self._operator, **self._choice)

    def plan_reduce_scatter(self, values: Array, own: Array) -> Plan:
        """See `Workers.plan_reduce_scatter`."""
        return self._comm.Reduce_scatter_init(
            values,
            own,
            list(even(values.size, self.size).counts),
            op=self._operator,
            **self._choice_for("reduce_scatter"),
        )

    def plan_share(self, values: Array) -> Plan:
        """See `Workers.plan_share`."""
        counts = list(even(values.size, self.size).counts)
        return self._comm.Allgatherv_init(
            self._in_place, [values, counts], **self._choice_for("allgather")
        )

    def plan_exchange(self, rows: Array, received: Array) -> Plan:
        """See `Workers.plan_exchange`."""
        return self._comm.Alltoall_init(rows, received)

    def plan_exchange_parts(
        self, parts: Array, counts: list[int], received: Array, received_counts: list[int]
    ) -> Plan:
        """See `Workers.plan_exchange_parts`."""
        return self._comm.Alltoallv_init([parts, counts], [received, received_counts])

    def plan_collect(self, row: Array, received: Array) -> Plan:
        """See `Workers.plan_collect`."""
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
