"""What MPI's fault tolerance (ULFM) and the launch say of the deaths of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpicoll.base import peers

if TYPE_CHECKING:
    from mpi4py import MPI


def survives(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this launch goes on when a rank dies, as Open MPI's does with `--with-ft ulfm`."""
    return environ.get("OMPI_MCA_mpi_ft_enable", "0") not in ("", "0", "false")


def dead(comm: MPI.Intracomm) -> tuple[int, ...]:
    """The ranks of a communicator that have died, as far as this rank has heard.  Local."""
    peers.report()
    failed = comm.Get_failed()
    if not failed.Get_size():  # it may be MPI's own empty group, which is not to be freed
        return ()
    group = comm.Get_group()
    try:
        return tuple(sorted(failed.Translate_ranks(range(failed.Get_size()), group)))
    finally:
        group.Free()
        failed.Free()
