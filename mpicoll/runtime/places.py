"""On which nodes the processes are: asked once, and known of every communicator of the same ones.

Processes are told by their ranks in MPI.COMM_WORLD.  Where that has been asked for its nodes, or
where a communicator comes from one that has, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeAlias

from mpi4py import MPI

from mpicoll.engine import transport

#: The first process on the node of each process.
Places: TypeAlias = Mapping[int, int]

#: Those of all processes, once they have been asked together.
_world: Places | None = None


def world_ranks(comm: MPI.Intracomm) -> tuple[int, ...] | None:
    """The processes of a communicator; None if one is not in MPI.COMM_WORLD.  Local."""
    group = MPI.Intracomm.Get_group(comm)
    try:
        ranks = MPI.Group.Translate_ranks(group, None, _group_of_all())
    finally:
        group.Free()
    return None if MPI.UNDEFINED in ranks else tuple(ranks)


@cache
def _group_of_all() -> MPI.Group:
    return MPI.COMM_WORLD.Get_group()


def places(comm: MPI.Intracomm) -> Places | None:
    """Where the processes of a communicator are; None if one is not in MPI.COMM_WORLD.

    Collective where MPI.COMM_WORLD has not been asked.
    """
    global _world
    processes = world_ranks(comm)
    if processes is None:
        return None
    if _world is not None:
        return _world
    nodes = ask(comm)
    first = {node: processes[nodes.index(node)] for node in set(nodes)}
    found = dict(zip(processes, (first[node] for node in nodes), strict=True))
    if len(processes) == MPI.COMM_WORLD.Get_size():
        _world = found
    return found


def numbers(comm: MPI.Intracomm, known: Places) -> tuple[int, ...]:
    """The number of each rank's node, in the order of their first ranks.  Local."""
    return _numbered([known[process] for process in world_ranks(comm) or ()])


def ask(comm: MPI.Intracomm) -> tuple[int, ...]:
    """The same, asked.  Collective."""
    comm = MPI.Intracomm(comm)
    with transport.node_of(comm) as node:
        return _numbered(comm.allgather(node.bcast(comm.Get_rank())))


def _numbered(first: Sequence[int]) -> tuple[int, ...]:
    number = {rank: number for number, rank in enumerate(dict.fromkeys(first))}
    return tuple(number[rank] for rank in first)
