"""Buffers whose bytes do not lie one behind the other, by value.

Ranks may describe the same elements in different ways, a column of a matrix on one of them and a
vector on another, so how memory is laid out must not decide which algorithm runs.  What is not
contiguous is copied into memory that is, and back when the collective is complete.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.base.wording import plural

if TYPE_CHECKING:
    import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

#: Most bytes packed at once: libraries may count them in a C int.
LIMIT = 1 << 30


class Packed:
    """Contiguous memory that stands for other memory while a collective runs.

    Args:
        nbytes: how much.
        gather: copies the caller's elements into the memory that it is given.
        scatter: copies them back from there.
        for_all: whether the MPI library's own collectives use it too; else they understand the
            caller's memory.

    Attributes:
        memory: the bytes that the collective sees; undefined before :meth:`load`.
        arrays: of an array the elements, and an array of that shape over ``memory``.
        parts: of elements of one datatype the parts that they lie in; None where there are several.
    """

    arrays: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None
    parts: Sequence[Part] | None = None

    def __init__(
        self,
        nbytes: int,
        gather: Callable[[Bytes], object],
        scatter: Callable[[Bytes], object],
        for_all: bool = False,
    ) -> None:
        self.memory: Bytes = np.empty(nbytes, np.uint8)
        self.for_all = for_all
        self._gather, self._scatter = gather, scatter

    def load(self) -> None:
        """Copy the caller's elements here; before every start, whether they are sent or not.

        What the collective does not write is so left as it was by :meth:`write_back`.
        """
        self._gather(self.memory)

    def write_back(self) -> None:
        """Copy the elements to the caller's memory."""
        self._scatter(self.memory)


class Part(NamedTuple):
    """``length`` elements of a datatype, the first one ``offset`` bytes behind the beginning."""

    offset: int
    length: int
    datatype: MPI.Datatype

    @property
    def nbytes(self) -> int:
        """Bytes without holes."""
        return self.length * self.datatype.size


def strided(array: npt.NDArray[Any], order: str, blocks: int = 1) -> Packed:
    """The elements of an array.

    Args:
        array: with any strides.
        order: of the axes in memory, "C" (the last one changes fastest) or "F" (the first one).
        blocks: the array is cut along its first axis into this many blocks, which lie one behind
            the other and have their axes in that order.
    """
    cut = in_blocks(array, blocks)

    def shaped(memory: Bytes) -> npt.NDArray[Any]:
        elements = memory.view(array.dtype)
        if order == "F":
            backwards = range(cut.ndim - 1, 0, -1)
            return elements.reshape(blocks, *cut.shape[:0:-1]).transpose(0, *backwards)
        return elements.reshape(cut.shape)

    packed = Packed(
        array.nbytes,
        lambda memory: np.copyto(shaped(memory), cut),
        lambda memory: np.copyto(cut, shaped(memory)),
        for_all=True,
    )
    packed.arrays = cut, shaped(packed.memory)
    return packed


def in_blocks(array: npt.NDArray[Any], blocks: int) -> npt.NDArray[Any]:
    """An array whose first axis has this many blocks; parting an axis never copies."""
    if array.shape[0] == blocks:
        return array
    return array.reshape(blocks, array.shape[0] // blocks, *array.shape[1:])


#: Handles of predefined datatypes without holes.
_FLAT: set[int] = set()


def is_flat(datatype: MPI.Datatype) -> bool:
    """Whether it is predefined and its elements have no holes: memory to be used as it is.

    Pairs such as ``MPI.DOUBLE_INT`` have: ranks may build them from their two types too.
    """
    if datatype.handle in _FLAT:
        return True
    if datatype.is_predefined and datatype.size == datatype.extent:
        _FLAT.add(datatype.handle)
        return True
    return False


def beyond(parts: Iterable[Part], nbytes: int) -> str:
    """The first of some parts that does not lie within so many bytes, in words; "" if all do."""
    for part in parts:
        if not part.nbytes:
            continue
        first, end = _bounds(part)
        if first < 0 or end > nbytes:
            return (
                f"{plural(part.length, 'element')} of {part.datatype.Get_name() or 'a datatype'} "
                f"at byte {part.offset} would reach from byte {first} to {end} of a buffer of "
                f"{plural(nbytes, 'byte')}"
            )
    return ""


def typed(memory: Bytes, parts: Iterable[Part]) -> Packed:
    """The elements of ``parts``, one behind the other, without holes.

    Args:
        memory: where the parts lie.
        parts: of any datatypes; a datatype may be freed afterwards.
    """
    used = [part for part in parts if part.nbytes]
    pieces: list[tuple[MPI.Datatype, slice]] = []
    offset = 0
    for group in _groups(used):
        length = sum(part.nbytes for part in group)
        pieces.append((_whole(group, memory.size), slice(offset, offset + length)))
        offset += length

    def gather(packed: Bytes) -> None:
        for whole, where in pieces:
            whole.Pack(memory, packed[where], 0, MPI.COMM_SELF)

    def scatter(packed: Bytes) -> None:
        for whole, where in pieces:
            whole.Unpack(packed[where], 0, memory, MPI.COMM_SELF)

    packed = Packed(offset, gather, scatter)
    packed.parts = used if len({part.datatype.handle for part in used}) == 1 else None
    weakref.finalize(packed, _free, [whole for whole, _ in pieces]).atexit = False
    return packed


def _groups(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """The parts, cut between elements, in groups of at most :data:`LIMIT` bytes if possible."""
    group: list[Part] = []
    space = LIMIT
    for part in parts:
        _, extent = part.datatype.Get_extent()
        done = 0
        while done < part.length:
            if group and space < part.datatype.size:
                yield group
                group, space = [], LIMIT
            count = min(part.length - done, max(space // part.datatype.size, 1))
            group.append(Part(part.offset + done * extent, count, part.datatype))
            space -= group[-1].nbytes
            done += count
    if group:
        yield group


def _whole(parts: Sequence[Part], nbytes: int) -> MPI.Datatype:
    """One datatype of all parts; as long as the memory, which Pack so takes for one element."""
    every = MPI.Datatype.Create_struct(
        [part.length for part in parts],
        [part.offset for part in parts],
        [part.datatype for part in parts],
    )
    whole = every.Create_resized(0, nbytes).Commit()
    every.Free()
    return whole


def absolute(parts: Iterable[Part], what: str) -> Packed:
    """The same for parts whose places are addresses (``MPI.BOTTOM``).

    Raises:
        ValueError: an address that is none.
    """
    used = [part for part in parts if part.nbytes]
    bounds = [_bounds(part) for part in used]
    first = min((first for first, _ in bounds), default=0)
    end = max((end for _, end in bounds), default=0)
    if used and first <= 0:
        raise ValueError(f"{what}: MPI.BOTTOM with a datatype that names address {first}")
    memory = at(first, end - first)
    return typed(memory, [part._replace(offset=part.offset - first) for part in used])


def at(address: int, nbytes: int) -> Bytes:
    """The memory at an address."""
    return np.frombuffer(MPI.buffer.fromaddress(address, nbytes).cast("B"), np.uint8)


def _bounds(part: Part) -> tuple[int, int]:
    """First byte of a part's elements, and the one behind the last."""
    _, extent = part.datatype.Get_extent()
    low, length = part.datatype.Get_true_extent()
    last = (part.length - 1) * extent
    return part.offset + low + min(last, 0), part.offset + low + length + max(last, 0)


def _free(datatypes: list[MPI.Datatype]) -> None:
    if not (caller.is_forked() or MPI.Is_finalized()):
        for datatype in datatypes:
            datatype.Free()
