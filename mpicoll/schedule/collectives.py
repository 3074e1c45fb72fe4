"""What each collective means: who holds which blocks before, who wants which after, and bounds.

An algorithm is right when it leads from the start condition to the end condition, and nothing
else; see :mod:`mpicoll.verify`.  Blocks are counted 0 .. nblocks - 1.  For the collectives in which
block i belongs to rank i (gather, scatter, all-gather, reduce-scatter, all-to-all) there is one
block a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from mpicoll.schedule.topology import ceil_log2


class Content(NamedTuple):
    """What a block contains: contributions of ranks ``first .. last`` to ``item``."""

    item: Hashable
    first: int
    last: int


class Place(NamedTuple):
    """A rank's view of a collective call."""

    rank: int
    size: int
    root: int
    nblocks: int

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def every(self) -> range:
        """All blocks."""
        return range(self.nblocks)

    @property
    def own(self) -> range:
        """This rank's block alone."""
        return range(self.rank, self.rank + 1)

    def at_root(self, blocks: range) -> range:
        """``blocks`` at the root, none elsewhere."""
        return blocks if self.is_root else range(0)


Bound = Callable[[int, float, float, float, float], float]


def _from_self(place: Place, block: int) -> Content:
    return Content(block, place.rank, place.rank)


def _from_root(place: Place, block: int) -> Content:
    return Content(block, place.root, place.root)


def _from_owner(place: Place, block: int) -> Content:
    return Content(block, block, block)


def _from_all(place: Place, block: int) -> Content:
    return Content(block, 0, place.size - 1)


def _all_to_all_sent(place: Place, block: int) -> Content:
    return Content((place.rank, block), place.rank, place.rank)


def _all_to_all_received(place: Place, block: int) -> Content:
    return Content((block, place.rank), block, block)


def _share(size: int) -> float:
    """The part of a vector that is not a rank's own: (P - 1) / P."""
    return (size - 1) / size


# Bounds: E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory,
# practice, and experience", Concurrency and Computation 19 (2007), table I.
def _tree_bound(size: int, n: float, alpha: float, beta: float, gamma: float) -> float:
    return ceil_log2(size) * alpha + (n * beta if size > 1 else 0.0)


def _share_bound(size: int, n: float, alpha: float, beta: float, gamma: float) -> float:
    return ceil_log2(size) * alpha + _share(size) * n * beta


class Collective(NamedTuple):
    """The definition of one collective.

    Attributes:
        name: as in ``mpicoll list``.
        method: the name of the mpi4py method.
        summary: one sentence.
        end: content of a wanted block.
        held: the input's blocks that a rank has at the start; all, if nothing else is said.
        wanted: the output's blocks that a rank must have at the end; the same.
        start: content of a held block; what the rank itself gives.
        reduces: takes an operator.
        rooted: takes a root.
        block_per_rank: needs exactly one block a rank.
        reads_through: input and output have the same layout (see :mod:`mpicoll.schedule`).
        one_buffer: input and output are the same buffer, at the root perhaps a read-only one.
        input_alone: the input buffer holds nothing but the rank's own block.
        output_alone: the output buffer holds nothing but the rank's own block.
        bus_factor: bus bandwidth over algorithm bandwidth, for P ranks (nccl-tests' convention).
        bound: lower bound of the time for (P, n bytes, alpha, beta, gamma), seconds.
    """

    name: str
    method: str
    summary: str
    end: Callable[[Place, int], Content]
    held: Callable[[Place], Iterable[int]] = lambda place: place.every
    wanted: Callable[[Place], Iterable[int]] = lambda place: place.every
    start: Callable[[Place, int], Content] = _from_self
    bus_factor: Callable[[int], float] = _share
    bound: Bound = _share_bound
    reduces: bool = False
    rooted: bool = False
    block_per_rank: bool = False
    reads_through: bool = True
    one_buffer: bool = False
    input_alone: bool = False
    output_alone: bool = False


_DEFINITIONS = (
    Collective(
        "allreduce",
        "Allreduce",
        "Reduce a vector over all ranks; every rank gets the result.",
        end=_from_all,
        reduces=True,
        bus_factor=lambda size: 2 * _share(size),
        bound=lambda size, n, a, b, g: _share_bound(size, n, a, 2 * b + g, 0.0),
    ),
    Collective(
        "reduce",
        "Reduce",
        "Reduce a vector over all ranks; the root gets the result.",
        wanted=lambda p: p.at_root(p.every),
        end=_from_all,
        reduces=True,
        rooted=True,
        bus_factor=lambda size: 1.0,
        bound=lambda size, n, a, b, g: _tree_bound(size, n, a, b, g) + _share(size) * n * g,
    ),
    Collective(
        "bcast",
        "Bcast",
        "Copy the root's vector to every rank.",
        held=lambda p: p.at_root(p.every),
        start=_from_root,
        end=_from_root,
        rooted=True,
        one_buffer=True,
        bus_factor=lambda size: 1.0,
        bound=_tree_bound,
    ),
    Collective(
        "reduce_scatter",
        "Reduce_scatter_block",
        "Reduce a vector over all ranks; rank i gets block i of the result.",
        wanted=lambda p: p.own,
        end=_from_all,
        reduces=True,
        block_per_rank=True,
        output_alone=True,
        bound=lambda size, n, a, b, g: _share_bound(size, n, a, b + g, 0.0),
    ),
    Collective(
        "allgather",
        "Allgather",
        "Every rank gets the blocks of all ranks.",
        held=lambda p: p.own,
        end=_from_owner,
        block_per_rank=True,
        input_alone=True,
    ),
    Collective(
        "gather",
        "Gather",
        "The root gets the blocks of all ranks.",
        held=lambda p: p.own,
        wanted=lambda p: p.at_root(p.every),
        end=_from_owner,
        rooted=True,
        block_per_rank=True,
        input_alone=True,
    ),
    Collective(
        "scatter",
        "Scatter",
        "Rank i gets block i of the root's vector.",
        held=lambda p: p.at_root(p.every),
        wanted=lambda p: p.own,
        start=_from_root,
        end=_from_root,
        rooted=True,
        block_per_rank=True,
        output_alone=True,
    ),
    Collective(
        "alltoall",
        "Alltoall",
        "Block j of rank i becomes block i of rank j.",
        start=_all_to_all_sent,
        end=_all_to_all_received,
        block_per_rank=True,
        reads_through=False,
    ),
    Collective(
        "scan",
        "Scan",
        "Rank i gets the reduction over ranks 0 .. i.",
        end=lambda p, block: Content(block, 0, p.rank),
        reduces=True,
        bus_factor=lambda size: 1.0,
        bound=_tree_bound,
    ),
    Collective(
        "exscan",
        "Exscan",
        "Rank i gets the reduction over ranks 0 .. i - 1; rank 0's output is left alone.",
        wanted=lambda p: p.every if p.rank else range(0),
        end=lambda p, block: Content(block, 0, p.rank - 1),
        reduces=True,
        bus_factor=lambda size: 1.0,
        bound=_tree_bound,
    ),
    Collective(
        "barrier",
        "Barrier",
        "No rank leaves before every rank has entered.",
        held=lambda p: range(0),
        wanted=lambda p: range(0),
        end=_from_all,
        bus_factor=lambda size: 0.0,
        bound=lambda size, n, a, b, g: ceil_log2(size) * a,
    ),
)

#: Every collective by name.
COLLECTIVES = {definition.name: definition for definition in _DEFINITIONS}


def collective(name: str) -> Collective:
    """The collective of a name.

    Raises:
        ValueError: there is none; the message names those there are.
    """
    try:
        return COLLECTIVES[name]
    except KeyError:
        raise ValueError(
            f"unknown collective {name!r}: known are {', '.join(COLLECTIVES)}"
        ) from None
