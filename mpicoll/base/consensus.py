"""How ranks agree on whether something failed on one of them, so that all go on, or none."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


def combined(comm: MPI.Intracomm, number: int, op: MPI.Op) -> int:
    """The numbers of all ranks, reduced.  Collective.

    mpi4py's own ``allreduce`` duplicates a communicator when it is first called there, and keeps
    other threads from running meanwhile: two of them could wait for each other for ever.
    """
    own, every = array("q", [number]), array("q", [0])
    comm.Allreduce(own, every, op)
    return every[0]


class Problem(NamedTuple):
    """What has failed on some ranks; the same on all.

    Attributes:
        ranks: where it has failed.
        text: why, on the first of them.
    """

    ranks: list[int]
    text: str

    def __str__(self) -> str:
        return f"rank {self.ranks[0]}: {self.text}"


def agreed(comm: MPI.Intracomm, problem: str) -> Problem | None:
    """The problems of all ranks, of which "" is none; None where no rank has one.  Collective."""
    found = {rank: text for rank, text in enumerate(comm.allgather(problem)) if text}
    return Problem([*found], next(iter(found.values()))) if found else None


def attempt(
    comm: MPI.Intracomm,
    work: Callable[[], T],
    errors: type[Exception] = Exception,
    undo: Callable[[T], object] | None = None,
) -> T | Problem:
    """Do something on every rank that may fail on some.  Collective.

    Args:
        comm: the ranks.
        work: what to do.
        errors: what counts as a failure; where that is any exception, the text names its type.
        undo: called with what it has given on this rank, where it has failed on another.

    Returns:
        what it has given on this rank; or, on all ranks alike, that it has failed on some.
    """
    done, text = [], ""
    try:
        done.append(work())
    except errors as error:
        text = f"{type(error).__name__}: {error}" if errors is Exception else str(error)
    problem = agreed(comm, text)
    if problem is None:
        return done[0]
    if done and undo is not None:
        undo(done[0])
    return problem


def together(comm: MPI.Intracomm, work: Callable[[], object]) -> None:
    """Do something on every rank.  Collective.

    Raises:
        RuntimeError: on all ranks, if it has raised that on one.
    """
    problem = attempt(comm, work, RuntimeError)
    if isinstance(problem, Problem):
        raise RuntimeError(str(problem))


def from_rank_0(comm: MPI.Intracomm, find: Callable[[], T]) -> T:
    """What rank 0 finds, on all ranks.  Collective.

    Raises:
        ValueError: on all ranks, if it has raised that.
    """
    answer: Any = None
    if comm.Get_rank() == 0:
        try:
            answer = find()
        except ValueError as error:
            answer = Problem([0], str(error))
    answer = comm.bcast(answer)
    if isinstance(answer, Problem):
        raise ValueError(answer.text)
    return answer
