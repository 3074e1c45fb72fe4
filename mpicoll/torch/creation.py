"""How ``init_process_group("mpicoll")`` and ``new_group`` make a process group."""

from __future__ import annotations

import importlib
from typing import Any

import torch.distributed
from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.base.consensus import agreed
from mpicoll.errors import TransportWarning
from mpicoll.runtime import settings
from mpicoll.torch import rendezvous
from mpicoll.torch.group import Group, members


def create(options: Any) -> Group:
    """The group of PyTorch's options, which say nothing of ranks for that of all.

    Raises:
        ValueError, RuntimeError: see :func:`mpicoll.torch.rendezvous.check`.
    """
    if torch.cuda.is_available():
        _import_cupy()
    world, ranks = MPI.COMM_WORLD, [*options.global_ranks_in_group]
    if ranks:
        rendezvous.check(ranks[options.group_rank], torch.distributed.get_world_size())
        comm = members(world, ranks, options.group_id)
    else:
        comm = _whole(options.group_rank, options.group_size)
    return Group(comm, settings.read(comm), options.store, options.timeout, options.group_id)


def _import_cupy() -> None:
    """CuPy compiles the kernels by which GPUs of one node exchange tensors without the host."""
    try:
        importlib.import_module("cupy")
    except ModuleNotFoundError:
        if torch.cuda.is_initialized():  # else the tensors may all be on the CPU
            caller.warn_once(
                "CuPy is not installed, so CUDA tensors go through the host: install CuPy for this "
                "CUDA, as cupy-cuda13x",
                TransportWarning,
                MPI.COMM_WORLD.Get_rank(),
            )


def _whole(rank: int, size: int) -> MPI.Intracomm:
    """A communicator of all ranks.  Collective."""
    try:
        rendezvous.check(rank, size)
    except ValueError as error:
        if size != MPI.COMM_WORLD.Get_size():
            raise
        problem = str(error)
    else:
        problem = ""
    found = agreed(MPI.COMM_WORLD, problem)  # where the order differs, it may be right on some
    if found is not None:
        raise ValueError(found.text)
    return MPI.COMM_WORLD.Dup()
