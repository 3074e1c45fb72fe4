"""What the launcher says about this process, read from the environment: MPI stays untouched."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from mpicoll.errors import LaunchWarning


class Launch(NamedTuple):
    """How this process was started.

    Attributes:
        name: The launcher, ``none`` if there was none.
        rank: Number of this process among those launched.
        size: Number of processes launched, None if the launcher does not say.
    """

    name: str
    rank: int
    size: int | None


# A launcher that starts its own daemons by another one leaves that one's variables in place, and
# they count daemons. So MPI's own launchers come first, and srun last.
_LAUNCHERS = (
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun (MVAPICH)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("a PMI launcher (mpiexec, srun --mpi=pmi2)", "PMI_RANK", "PMI_SIZE"),
    ("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS"),
    ("a PMIx launcher", "PMIX_RANK", ""),
)


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """How this process was started, as far as the environment tells."""
    for name, rank, size in _LAUNCHERS:
        if name == "srun" and "SLURM_STEP_ID" not in environment:
            # In a batch script or an allocation's shell the variables speak of the job.
            continue
        number = _integer(environment, rank)
        count = _integer(environment, size)
        if number is not None and (count is not None or not size):
            return Launch(name, number, count)
    return Launch("none", 0, 1)


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def mismatch(launched: Launch, size: int) -> str | None:
    """What is wrong if ``launched.size`` processes each see a communicator of ``size`` ranks.

    Only the case in which every process is alone is told: a launcher that counts daemons, or
    processes spawned later, make other counts differ for good reasons.
    """
    if size != 1 or launched.size is None or launched.size == 1:
        return None
    return (
        f"{launched.name} started {launched.size} processes, but each of them is rank 0 of 1: the "
        "launcher and the MPI library do not understand each other, so every process runs alone; "
        "start with the mpirun or mpiexec of the library that mpi4py uses, or choose srun's "
        "--mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
    )


def warn_if_alone(size: int) -> None:
    """Warn, in the first process of a launch, if each sees a world of one rank.

    It is no error: programs that have nothing to do with each other are launched together, too.
    """
    if size == 1 and (started := launch()).rank == 0 and (lone := mismatch(started, size)):
        warnings.warn(lone, LaunchWarning, stacklevel=3)
