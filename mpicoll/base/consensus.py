"""How ranks agree on whether something failed on one of them."""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

__all__ = ["agreed", "together"]


def agreed(private: MPI.Intracomm, problem: str) -> str:
    """The problem of the first rank that has one, "" where none has.  Collective."""
    problems = enumerate(private.allgather(problem))
    return next((f"rank {rank}: {text}" for rank, text in problems if text), "")


def together(private: MPI.Intracomm, work: Callable[[], object]) -> None:
    """Do something on every rank.  Collective.

    Raises:
        RuntimeError: on all ranks, if it has raised that on one.
    """
    problem = ""
    try:
        work()
    except RuntimeError as error:
        problem = str(error)
    problem = agreed(private, problem)
    if problem:
        raise RuntimeError(problem)
