"""The ranks as a grid: along one axis are replicas of the model, along the other its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mpicoll.base.wording import plural

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
    """All ranks, in a grid of replicas and stages.  Collective.

    Ranks of the same stage are neighbours in `comm`: rank = stage * data + replica.

    Args:
        comm: The ranks, an `mpicoll.Intracomm` or one of mpi4py's; None for this process alone.
        data: Number of replicas of the model; None for as many as there are ranks for.
        pipe: Number of stages that each replica is cut into.

    Attributes:
        world: All ranks.
        data: The replicas of this rank's stage.
        pipe: The stages of this rank's replica.

    Raises:
        ValueError: The numbers do not fit that of the ranks; on all ranks.
    """

    def __init__(
        self, comm: MPI.Intracomm | None = None, *, data: int | None = None, pipe: int = 1
    ) -> None:
        size = 1 if comm is None else comm.Get_size()
        replicas = _replicas(size, data, pipe)
        self.world = Axis(size, 0 if comm is None else comm.Get_rank(), comm)
        self.data = self.pipe = Axis()
        if comm is None or size == 1:
            return
        grid = comm.Create_cart([pipe, replicas], reorder=False)
        # Each communicator takes shared memory of the node: an axis of one rank gets none.
        if replicas > 1:
            along = grid.Sub([False, True])
            self.data = Axis(replicas, along.Get_rank(), along)
        if pipe > 1:
            along = grid.Sub([True, False])
            self.pipe = Axis(pipe, along.Get_rank(), along)
        grid.Free()

    def __str__(self) -> str:
        return f"data={self.data.size},pipe={self.pipe.size}"

    def free(self) -> None:
        """Free the communicators that the mesh has made; collective."""
        for axis in (self.data, self.pipe):
            if axis.comm is not None:
                axis.comm.Free()
        self.data = self.pipe = Axis()


def _replicas(size: int, data: int | None, pipe: int) -> int:
    for name, length in (("data", data), ("pipe", pipe)):
        if length is not None and length < 1:
            raise ValueError(f"{name} is {length}: give at least 1 rank along each axis")
    were = f"{size} {'was' if size == 1 else 'were'} started"
    if data is None:
        if size % pipe == 0:
            return size // pipe
        fits = max(divisor for divisor in range(1, pipe) if size % divisor == 0)
        raise ValueError(
            f"mesh pipe={pipe} is for multiples of {plural(pipe, 'rank')} and {were}: start "
            f"{-(-size // pipe) * pipe}, or give pipe={fits}"
        )
    wanted = data * pipe
    if wanted == size:
        return data
    fitting = f", or give data={size // pipe}" if size % pipe == 0 else ""
    if not fitting and size % data == 0:
        fitting = f", or give pipe={size // data}"
    raise ValueError(
        f"mesh data={data},pipe={pipe} has {plural(wanted, 'rank')} and {were}: start "
        f"{wanted}{fitting}"
    )
