"""The ranks as a grid of replicas of the model, of its stages, and of the parts of its layers."""

from __future__ import annotations

import platform
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.base.wording import plural, ranges
from mpicoll.train.ranks.waiting import share_deaths

if TYPE_CHECKING:
    from mpi4py import MPI


class Axis(NamedTuple):
    """The ranks along an axis of the mesh, this one among them.

    Attributes:
        size: How many.
        rank: This one's number.
        comm: Their communicator; None for an axis of one rank.
    """

    size: int = 1
    rank: int = 0
    comm: MPI.Intracomm | None = None


class Mesh:
    """A grid of all ranks: replicas, stages, and ranks that share each layer.  Collective.

    Ranks that share layers are neighbours in `comm`, then those of the same stage (`groups`).

    Args:
        comm: The ranks, an `mpicoll.Intracomm` or one of mpi4py's; None for this process alone.
        data: Number of replicas of the model; None for as many as the ranks allow.
        pipe: Number of stages of each replica.
        tensor: Number of ranks that share each layer of a stage.

    Attributes:
        world: All ranks.
        data: The replicas of this rank's stage and part.
        pipe: The stages of this rank's replica.
        tensor: The ranks that share its layers.

    Raises:
        ValueError: The numbers do not fit the number of ranks; on all ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        data: int | None = None,
        pipe: int = 1,
        tensor: int = 1,
    ) -> None:
        size = 1 if comm is None else comm.Get_size()
        replicas = count_replicas(size, data, pipe, tensor)
        self.world = Axis(size, 0 if comm is None else comm.Get_rank(), comm)
        self.data = self.pipe = self.tensor = Axis()
        if comm is None or size == 1:
            return
        if tensor > 1:
            warn_of_nodes(comm, tensor)
        rank, part = divmod(comm.Get_rank(), tensor)
        stage, replica = divmod(rank, replicas)
        self.data = _axis(comm, replicas, replica, stage * tensor + part)
        self.pipe = _axis(comm, pipe, stage, replica * tensor + part)
        self.tensor = _axis(comm, tensor, part, stage * replicas + replica)

    def __str__(self) -> str:
        return _words(self.data.size, self.pipe.size, self.tensor.size)

    def free(self) -> None:
        """Free the communicators that the mesh has made; collective."""
        for axis in (self.data, self.pipe, self.tensor):
            if axis.comm is not None:
                axis.comm.Free()
        self.data = self.pipe = self.tensor = Axis()


def _axis(comm: MPI.Intracomm, size: int, rank: int, other: int) -> Axis:
    """The ranks that differ along one axis alone; collective over all.

    Args:
        comm: All ranks.
        size, rank: Of the axis: number of ranks, and this one's.
        other: A number for this rank's place along the other axes.
    """
    # Each communicator takes shared memory of the node: an axis of one rank gets none.
    if size == 1:
        return Axis()
    along: Any = comm.Split(other, rank)
    share_deaths(along, comm)
    return Axis(size, rank, along)


def warn_of_nodes(comm: MPI.Intracomm, tensor: int) -> None:
    """Say on rank 0 that ranks which share layers are on several nodes; collective.

    They exchange what each layer makes, and wait for it.
    """
    nodes = comm.allgather(platform.node())
    every = groups("tensor", 1, len(nodes) // tensor, tensor)
    apart = [group for group in every if len({nodes[rank] for rank in group}) > 1]
    if apart and comm.Get_rank() == 0:
        warnings.warn(
            f"{ranges(apart[0])} share layers (tensor={tensor}) and are on several nodes, where "
            "each layer waits for the network: start ranks of a node one after the other, or give "
            "a tensor axis that divides the ranks of a node",
            RuntimeWarning,
            stacklevel=3,
        )


def groups(axis: str, data: int, pipe: int, tensor: int) -> list[range]:
    """The ranks of each group along an axis: rank = (stage * data + replica) * tensor + part.

    Args:
        axis: One of `AXES`.
        data, pipe, tensor: Ranks along each.
    """
    stride = data * tensor
    ranks = stride * pipe
    if axis == "pipe":
        return [range(first, ranks, stride) for first in range(stride)]
    if axis == "tensor":
        return [range(first, first + tensor) for first in range(0, ranks, tensor)]
    return [
        range(first + part, first + stride, tensor)
        for first in range(0, ranks, stride)
        for part in range(tensor)
    ]


#: Names of the axes.
AXES = ("data", "pipe", "tensor")


def parse(text: str) -> dict[str, int]:
    """The lengths of the axes that a text names, such as ``data=2,pipe=2``.

    Raises:
        ValueError: It is none.
    """
    found: dict[str, int] = {}
    for word in text.split(","):
        name, _, length = (part.strip() for part in word.partition("="))
        if name not in AXES or name in found or not length.isdecimal() or int(length) < 1:
            raise ValueError(
                f"mesh {text!r} has {word.strip()!r}: give each axis of {', '.join(AXES)} at most "
                "once with a number of ranks, as data=2,pipe=2"
            )
        found[name] = int(length)
    return found


def count_replicas(size: int, data: int | None, pipe: int = 1, tensor: int = 1) -> int:
    """How many replicas a mesh of so many ranks has.

    Args:
        size: All ranks.
        data: Number of replicas; None for as many as there are ranks for.
        pipe, tensor: Ranks along the other axes.

    Raises:
        ValueError: The numbers do not fit.
    """
    for name, length in (("data", data), ("pipe", pipe), ("tensor", tensor)):
        if length is not None and length < 1:
            raise ValueError(f"{name} is {length}: give at least 1 rank along each axis")
    were, each = f"{size} {'was' if size == 1 else 'were'} started", pipe * tensor
    if data is None:
        if size % each == 0:
            return size // each
        lower, name = (pipe, "pipe") if tensor == 1 else (tensor, "tensor")
        other = each // lower
        fits = max((n for n in range(1, lower) if size % (n * other) == 0), default=0)
        raise ValueError(
            f"mesh {_words(None, pipe, tensor)} is for multiples of {plural(each, 'rank')} and "
            f"{were}: start {-(-size // each) * each}{f', or give {name}={fits}' if fits else ''}"
        )
    wanted = data * each
    if wanted == size:
        return data
    fitting = f", or give data={size // each}" if size % each == 0 else ""
    if not fitting and size % (data * tensor) == 0:
        fitting = f", or give pipe={size // (data * tensor)}"
    raise ValueError(
        f"mesh {_words(data, pipe, tensor)} has {plural(wanted, 'rank')} and {were}: start "
        f"{wanted}{fitting}"
    )


def _words(data: int | None, pipe: int, tensor: int) -> str:
    lengths = {"data": data, "pipe": pipe, "tensor": tensor if tensor > 1 else None}
    return ",".join(f"{name}={length}" for name, length in lengths.items() if length is not None)
