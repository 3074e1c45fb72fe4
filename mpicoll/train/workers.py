"""The ranks that train together: what the training loop asks of them, and how they fail together.

A rank that raised by itself would leave the others waiting in a collective for ever. So whatever
can fail on one rank is told to all, and all raise the same `TrainingError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Array = NDArray[Any]


class TrainingError(RuntimeError):
    """Training cannot go on. Raised on all ranks together, with the same message."""


class Workers(Protocol):
    """A group of ranks; every method but the properties is collective."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def sum(self, values: Array) -> None:
        """Replace `values` on all ranks by their sum over the ranks."""

    def broadcast(self, values: Array) -> None:
        """Replace `values` on all ranks by those of rank 0."""

    def gather(self, fact: T) -> list[T]:
        """The (small) facts of all ranks, in rank order, on all ranks."""


class OneProcess:
    """One process by itself, without MPI."""

    rank = 0
    size = 1

    def sum(self, values: Array) -> None:
        """Nothing to add."""

    def broadcast(self, values: Array) -> None:
        """Nobody to tell."""

    def gather(self, fact: T) -> list[T]:
        """See `Workers.gather`."""
        return [fact]


class AllReduceWorkers:
    """The ranks of a communicator.

    Args:
        comm: An `mpicoll.Intracomm`, or any communicator of mpi4py if `algorithm` is None.
        algorithm: All-reduce algorithm of `sum`, None for the communicator's choice.
    """

    def __init__(self, comm: MPI.Intracomm, algorithm: str | None) -> None:
        from mpi4py import MPI  # here, because it initialises MPI

        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._comm = comm
        self._in_place = MPI.IN_PLACE
        self._operator = MPI.SUM
        self._choice: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm}

    def sum(self, values: Array) -> None:
        """See `Workers.sum`."""
        self._comm.Allreduce(self._in_place, values, op=self._operator, **self._choice)

    def broadcast(self, values: Array) -> None:
        """See `Workers.broadcast`."""
        self._comm.Bcast(values, root=0)

    def gather(self, fact: T) -> list[T]:
        """See `Workers.gather`."""
        return self._comm.allgather(fact)


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
