"""Waiting that leaves the cores to others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

_LEAST, _MOST = 1e-5, 5e-3


def meet(comm: MPI.Intracomm) -> None:
    """A barrier that is slept through: others may be computing on this core's neighbours."""
    request, nap = comm.Ibarrier(), _LEAST
    while not request.Test():
        time.sleep(nap)
        nap = min(2 * nap, _MOST)
