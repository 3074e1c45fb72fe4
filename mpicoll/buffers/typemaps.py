"""Where the bytes of a datatype's element lie, as MPI packs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

if TYPE_CHECKING:
    import numpy.typing as npt

Offsets: TypeAlias = "npt.NDArray[np.int64]"


class Runs(NamedTuple):
    """Bytes that lie one behind the other, run by run, in the order in which they are packed.

    Attributes:
        starts: bytes from the beginning of an element.
        lengths: bytes of each run.
    """

    starts: Offsets
    lengths: Offsets

    def at(self, offsets: Any) -> Runs:
        """The same at each of some offsets, one behind the other."""
        places = np.atleast_1d(np.asarray(offsets, np.int64))
        starts = (places[:, None] + self.starts).ravel()
        return _merged(starts, np.tile(self.lengths, places.size))

    def equal(self) -> tuple[Offsets, int]:
        """The runs cut into pieces of one length: where they start, and the length."""
        length = int(np.gcd.reduce(self.lengths))
        pieces = self.lengths // length
        first = np.repeat(np.cumsum(pieces) - pieces, pieces)
        steps = np.arange(pieces.sum()) - first
        return np.repeat(self.starts, pieces) + length * steps, length


def runs(datatype: MPI.Datatype) -> Runs:
    """Of an element of any datatype; empty if it has no bytes."""
    base, combiner, parameters = datatype.decode()
    made = _MADE.get(combiner)
    found = _packed(datatype) if made is None else made(base, **parameters)
    for part in (base, *parameters.get("datatypes", ())):
        if not part.is_predefined:
            part.Free()  # what has been decoded is the caller's
    return found


class Regular(NamedTuple):
    """Pieces of one length at regular distances, in the order in which they are packed.

    Attributes:
        start: bytes from the beginning of an element to the first piece.
        axes: how many there are, and how many bytes apart, the outermost axis first.
        length: bytes of a piece.
    """

    start: int
    axes: tuple[tuple[int, int], ...]
    length: int

    def along(self, count: int, stride: int) -> Regular:
        """The same again and again, on a new outermost axis."""
        if count == 1:
            return self
        if not self.axes and stride == self.length:
            return self._replace(length=count * stride)
        if self.axes and stride == self.axes[0][0] * self.axes[0][1]:
            (inner, step), *more = self.axes
            return self._replace(axes=((count * inner, step), *more))
        return self._replace(axes=((count, stride), *self.axes))


def regular(datatype: MPI.Datatype) -> Regular | None:
    """Of an element of a datatype; None where its bytes do not lie so, or it has none."""
    if datatype.is_predefined:
        flat = 0 < datatype.size == datatype.extent
        return Regular(0, (), datatype.size) if flat else None
    if not datatype.size:
        return None
    base, combiner, parameters = datatype.decode()
    made = _REGULAR.get(combiner)
    found = None if made is None else regular(base)
    if made is not None and found is not None:
        found = made(found, base.extent, **parameters)
    for part in (base, *parameters.get("datatypes", ())):
        if not part.is_predefined:
            part.Free()  # what has been decoded is the caller's
    return found


def _regular_subarray(
    found: Regular,
    extent: int,
    sizes: list[int],
    subsizes: list[int],
    starts: list[int],
    order: int,
) -> Regular:
    axes, step = [*zip(sizes, subsizes, starts, strict=True)], extent
    for size, subsize, start in axes if order == MPI.ORDER_FORTRAN else axes[::-1]:
        found = found.along(subsize, step)._replace(start=found.start + step * start)
        step *= size
    return found


#: By what a datatype is made with.
_REGULAR: dict[str, Callable[..., Regular]] = {
    "DUP": lambda found, extent: found,
    "RESIZED": lambda found, step, lb, extent: found,
    "CONTIGUOUS": lambda found, extent, count: found.along(count, extent),
    "VECTOR": lambda found, extent, count, blocklength, stride: found.along(
        blocklength, extent
    ).along(count, stride * extent),
    "HVECTOR": lambda found, extent, count, blocklength, stride: found.along(
        blocklength, extent
    ).along(count, stride),
    "SUBARRAY": _regular_subarray,
}


def _packed(datatype: MPI.Datatype) -> Runs:
    """Found out by packing memory that says where each byte is, one digit of it at a time."""
    low, length = datatype.Get_true_extent()
    if not datatype.size:
        return _merged(np.empty(0, np.int64), np.empty(0, np.int64))
    places = np.arange(length)
    found = np.zeros(datatype.size, np.int64)
    for digit in range(0, max(int(length - 1).bit_length(), 1), 8):
        memory = (places >> digit).astype(np.uint8)
        moved = datatype.Create_hindexed_block(1, [-low])
        whole = moved.Create_resized(0, length).Commit()
        here = np.empty(datatype.size, np.uint8)
        whole.Pack(memory, here, 0, MPI.COMM_SELF)
        for made in (moved, whole):
            made.Free()
        found |= here.astype(np.int64) << digit
    return _merged(found + low, np.ones(found.size, np.int64))


def _merged(starts: Offsets, lengths: Offsets) -> Runs:
    """Runs of which no one begins where the one before ends."""
    apart = np.flatnonzero(starts[1:] != (starts + lengths)[:-1]) + 1
    first = np.concatenate([[0], apart])[: starts.size]
    return Runs(starts[first], np.add.reduceat(lengths, first) if starts.size else lengths)


def _vector(base: MPI.Datatype, count: int, blocklength: int, stride: int) -> Runs:
    return _hvector(base, count, blocklength, stride * base.extent)


def _hvector(base: MPI.Datatype, count: int, blocklength: int, stride: int) -> Runs:
    block = runs(base).at(np.arange(blocklength) * base.extent)
    return block.at(np.arange(count) * stride)


def _struct(
    blocklengths: list[int], displacements: list[int], datatypes: list[MPI.Datatype]
) -> Runs:
    found = [
        runs(each).at(place + np.arange(length) * each.extent)
        for length, place, each in zip(blocklengths, displacements, datatypes, strict=True)
    ]
    empty = np.empty(0, np.int64)
    starts = np.concatenate([empty, *(each.starts for each in found)])
    return _merged(starts, np.concatenate([empty, *(each.lengths for each in found)]))


def _hindexed(base: MPI.Datatype, blocklengths: list[int], displacements: Any) -> Runs:
    lengths = np.asarray(blocklengths, np.int64)
    before = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(before, lengths)
    places = np.repeat(np.asarray(displacements, np.int64), lengths) + within * base.extent
    return runs(base).at(places)


def _scaled(base: MPI.Datatype, displacements: list[int]) -> Offsets:
    return np.asarray(displacements, np.int64) * base.extent


def _subarray(
    base: MPI.Datatype, sizes: list[int], subsizes: list[int], starts: list[int], order: int
) -> Runs:
    axes = [*zip(sizes, subsizes, starts, strict=True)]
    found, step = runs(base), base.extent
    for size, subsize, start in axes if order == MPI.ORDER_FORTRAN else axes[::-1]:
        found = found.at(step * (start + np.arange(subsize)))
        step *= size
    return found


#: By what a datatype is made with; what is missing, and what is predefined, is packed.
_MADE: dict[str, Callable[..., Runs]] = {
    "DUP": runs,
    "RESIZED": lambda base, lb, extent: runs(base),
    "CONTIGUOUS": lambda base, count: runs(base).at(np.arange(count) * base.extent),
    "VECTOR": _vector,
    "HVECTOR": _hvector,
    "INDEXED": lambda base, blocklengths, displacements: _hindexed(
        base, blocklengths, _scaled(base, displacements)
    ),
    "HINDEXED": _hindexed,
    "INDEXED_BLOCK": lambda base, blocklength, displacements: _hindexed(
        base, [blocklength] * len(displacements), _scaled(base, displacements)
    ),
    "HINDEXED_BLOCK": lambda base, blocklength, displacements: _hindexed(
        base, [blocklength] * len(displacements), displacements
    ),
    "STRUCT": lambda base, **parameters: _struct(**parameters),
    "SUBARRAY": _subarray,
}
