"""What users call: mpi4py's methods on communicators of mpicoll's."""

from mpicoll.comm.intracomm import (
    Cartcomm,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
    Intracomm,
    Stats,
)
from mpicoll.comm.job import abort_on_exception, end_job

__all__ = [
    "Cartcomm",
    "Distgraphcomm",
    "Graphcomm",
    "Intercomm",
    "Intracomm",
    "Stats",
    "abort_on_exception",
    "end_job",
]
