"""How the ranks of a job find each other: by MPI, which knows them already."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import parse_qsl, urlsplit

from mpi4py import MPI
from torch.distributed import Store, TCPStore

DEFAULT_TIMEOUT = timedelta(minutes=30)


def rendezvous(
    url: str, timeout: timedelta = DEFAULT_TIMEOUT, **more: object
) -> Iterator[tuple[Store, int, int]]:
    """What ``init_process_group(init_method="mpi://")`` asks for: a store, rank and size.

    Raises:
        ValueError: ``rank=`` or ``world_size=`` are not MPI's.
        RuntimeError: a launcher that MPI does not know has started this process.
    """
    asked = dict(parse_qsl(urlsplit(url).query))
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    check(int(asked.get("rank", rank)), int(asked.get("world_size", size)))
    yield serve(MPI.COMM_WORLD, timeout), rank, size


def serve(comm: MPI.Intracomm, timeout: timedelta = DEFAULT_TIMEOUT) -> TCPStore:
    """A store of the ranks of a communicator, on a free port of its rank 0.  Collective."""
    rank, size = comm.Get_rank(), comm.Get_size()
    host = address(comm)
    store = None
    if rank == 0:  # it serves there before the others ask for it
        store = TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
    port = comm.bcast(store.port if store else None)
    return store or TCPStore(host, port, size, False, timeout)


def address(comm: MPI.Intracomm) -> str:
    """Where the other ranks reach rank 0: its host's name, or the loopback's on one host."""
    hosts = comm.allgather(socket.gethostname())
    return "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]


def check(rank: int, size: int) -> None:
    """That a rank and a size which PyTorch was given are MPI's.  Local.

    Raises:
        RuntimeError: MPI knows this process alone, and PyTorch is told of several.
        ValueError: they are others.
    """
    mine, all_ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if all_ranks == 1 and size > 1:
        launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "the launcher"
        raise RuntimeError(
            f"{launcher} starts processes that MPI does not know: WORLD_SIZE is {size}, and each "
            f"is alone in MPI; start with mpirun -n {size} python -m mpicoll.torch script.py"
        )
    if (rank, size) != (mine, all_ranks):
        raise ValueError(
            f"rank {rank} of {size} is rank {mine} of {all_ranks} of MPI_COMM_WORLD, and both must "
            'be the same; pass init_method="mpi://" without rank= and world_size=, or start with '
            "mpirun python -m mpicoll.torch script.py"
        )
