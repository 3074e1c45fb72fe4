"""The methods of a communicator that are collectives, one line each; standard library only."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from mpicoll.schedule.collectives import COLLECTIVES, Collective


class Blocks(Enum):
    """How long the blocks of a method are."""

    #: All of one length.
    EVEN = "even"
    #: Of any lengths, which every rank knows.
    ALL = "all"
    #: Of any lengths; a rank knows those that it gives or gets.
    OWN = "own"


EVEN, ALL, OWN = Blocks

#: What mpi4py's methods take, by its place in the arguments of mpicoll's own functions.
SEND, RECV, OP, ROOT, COUNTS = range(5)


class Method(NamedTuple):
    """A method of a communicator.

    Attributes:
        name: of mpi4py's blocking method.
        collective: what it does, see :mod:`mpicoll.schedule.collectives`.
        blocks: how long its blocks are.
        arguments: which of send buffer, receive buffer, operator, root and counts (0 to 4) mpi4py's
            method takes, in its order.
        number: what the engine's fast path tells it by; those with blocks of one length first.
    """

    name: str
    collective: str
    blocks: Blocks
    arguments: tuple[int, ...]
    number: int

    @property
    def definition(self) -> Collective:
        """The collective, under the method's name."""
        return COLLECTIVES[self.collective]._replace(method=self.name)

    @property
    def variant(self) -> str:
        """The collective's name; with equal blocks and with others they differ."""
        if self.blocks is EVEN:
            return self.collective
        name = self.name.lower()
        return f"{name}v" if name == self.collective else name

    @property
    def varies(self) -> bool:
        """Whether blocks may differ in length."""
        return self.blocks is not EVEN


_METHODS = (
    Method("Allreduce", "allreduce", EVEN, (SEND, RECV, OP), 0),
    Method("Reduce", "reduce", EVEN, (SEND, RECV, OP, ROOT), 1),
    Method("Bcast", "bcast", EVEN, (RECV, ROOT), 2),
    Method("Reduce_scatter_block", "reduce_scatter", EVEN, (SEND, RECV, OP), 3),
    Method("Allgather", "allgather", EVEN, (SEND, RECV), 4),
    Method("Gather", "gather", EVEN, (SEND, RECV, ROOT), 5),
    Method("Scatter", "scatter", EVEN, (SEND, RECV, ROOT), 6),
    Method("Alltoall", "alltoall", EVEN, (SEND, RECV), 7),
    Method("Scan", "scan", EVEN, (SEND, RECV, OP), 8),
    Method("Exscan", "exscan", EVEN, (SEND, RECV, OP), 9),
    Method("Barrier", "barrier", EVEN, (), 10),
    Method("Allgatherv", "allgather", ALL, (SEND, RECV), 11),
    Method("Alltoallv", "alltoall", OWN, (SEND, RECV), 12),
    Method("Alltoallw", "alltoall", OWN, (SEND, RECV), 13),
    Method("Gatherv", "gather", OWN, (SEND, RECV, ROOT), 14),
    Method("Reduce_scatter", "reduce_scatter", ALL, (SEND, RECV, COUNTS, OP), 15),
    Method("Scatterv", "scatter", OWN, (SEND, RECV, ROOT), 16),
)

#: What is added to the number of a blocking method for the one that starts it.
STARTED = 32

#: By their names.
METHODS = {method.name: method for method in _METHODS}

#: By the names of their collectives: ``allgather``, ``allgatherv``, ...
VARIANTS = {method.variant: method for method in _METHODS}


def spelled(text: str) -> Method | None:
    """The method that is meant by a name in any spelling; None if none is.

    ``allreduce``, ``Allreduce``, ``ALL_REDUCE``, ``MPI_Iallreduce`` and ``Allreduce_init`` are the
    same, and ``broadcast`` is ``bcast``.
    """
    word = text.lower().replace("-", "_").removeprefix("mpi_").removesuffix("_init")
    return _SPELLINGS.get(word.replace("_", ""))


def _spellings() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for method in _METHODS:
        for name in (method.variant, method.name.lower()):
            word = name.replace("_", "")
            found.setdefault(word, method)
            found.setdefault(f"i{word}", method)
    return {**found, "broadcast": METHODS["Bcast"]}


_SPELLINGS = _spellings()

#: Methods of topologies.  They are the MPI library's own: there is no algorithm to choose.
NEIGHBOURHOOD = (
    "Neighbor_allgather",
    "Neighbor_allgatherv",
    "Neighbor_alltoall",
    "Neighbor_alltoallv",
    "Neighbor_alltoallw",
)
