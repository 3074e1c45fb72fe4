"""Whether the buffers of a sweep fit into memory, before it begins."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpicoll.base import arrays
from mpicoll.base.consensus import Problem, attempt
from mpicoll.base.memory import OWN_LIMIT, available, left, require
from mpicoll.base.sizes import format_size
from mpicoll.bench.repetition import pool
from mpicoll.bench.settings import Group, SweepSettings, groups
from mpicoll.bench.workload import Footprint, footprint

if TYPE_CHECKING:
    from mpi4py import MPI

_REMEDY = "measure smaller sizes by -e, fewer ranks of a node, or on a machine with more memory"


def make_room(comm: MPI.Intracomm, settings: SweepSettings) -> None:
    """Refuse a sweep of which a point cannot fit on a node, in a process or on a GPU.  Collective.

    What algorithms and the MPI library take for themselves is not known and not counted.

    Raises:
        MemoryError: on all ranks, with the numbers.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    shared = pool(comm) if settings.cold else 0
    gpu, gpu_room = arrays.room() if settings.device == "gpu" else ("", None)
    host = platform.node()
    for group in _largest(groups(settings, size)):
        what = f"{group.collective} of {format_size(group.count * group.dtype.itemsize)}"
        buffers, beside = _footprint(group, settings, rank, shared)
        # Buffers of a GPU are copied there from memory.
        own = {what: buffers + beside + shared}
        everyone = comm.allgather((host, gpu, own, {what: buffers}))

        def check(everyone: Sequence[Any] = everyone, own: Mapping[str, int] = own) -> None:
            near = [more for there, _, more, _ in everyone if there == host]
            require(near, available(), where="this node", remedy=_REMEDY)
            require([own], left(), where=OWN_LIMIT, remedy=_REMEDY)
            near = [more for there, its, _, more in everyone if (there, its) == (host, gpu)]
            require(near, gpu_room, where=f"this GPU {gpu}", remedy=_REMEDY)

        problem = attempt(comm, check, MemoryError)
        if isinstance(problem, Problem):
            raise MemoryError(problem.text)


def _footprint(group: Group, settings: SweepSettings, rank: int, shared: int) -> Footprint:
    if rank >= group.ranks:
        return Footprint(0, 0)
    return footprint(
        rank,
        group.ranks,
        group.collective,
        group.count,
        group.dtype,
        settings.root,
        in_place=settings.in_place,
        skew=settings.skew,
        pool=shared,
    )


def _largest(found: Iterable[Group]) -> Iterator[Group]:
    """Of each collective, number of ranks and type the group with the most elements."""
    largest: dict[tuple[str, int, str], Group] = {}
    for group in found:
        key = group.collective, group.ranks, group.dtype.name
        if key not in largest or group.count > largest[key].count:
            largest[key] = group
    yield from largest.values()
