"""What users call: communicators with mpi4py's methods and a choice of algorithm."""

from mpicoll.comm.intracomm import (
    Cartcomm,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
    Intracomm,
)
from mpicoll.comm.job import abort_on_exception, end_job, exit_on_exception
from mpicoll.comm.survival import survival_obstacle
from mpicoll.runtime.state import Stats

__all__ = [
    "Cartcomm",
    "Distgraphcomm",
    "Graphcomm",
    "Intercomm",
    "Intracomm",
    "Stats",
    "abort_on_exception",
    "end_job",
    "exit_on_exception",
    "survival_obstacle",
]
