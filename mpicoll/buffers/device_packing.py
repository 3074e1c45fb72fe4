"""Buffers of device memory whose bytes do not lie one behind the other, packed on the device.

See :mod:`mpicoll.buffers.packing` for when and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.later import Later
from mpicoll.buffers import typemaps
from mpicoll.buffers.packing import Packed, Part, in_blocks
from mpicoll.cuda.arrays import DeviceArray
from mpicoll.cuda.driver import driver

if TYPE_CHECKING:
    from mpicoll.cuda import pieces as copying
else:
    copying = Later("mpicoll.cuda.pieces")


class PackedOnDevice(Packed):
    """Contiguous memory of a device that stands for elements of an array there.

    All copies are put on the array's stream, and nothing waits for them.

    Args:
        array: the array.
        pieces: its elements, in the order in which they are packed.
        what: how to call it in an error.

    Raises:
        BufferError: CuPy, which packs, is not installed; or the stream is being captured for a
            graph, which would use the packed memory when it is another's.
        MemoryError: the device has no memory left.

    Attributes:
        memory: addresses of the packed bytes.
        target: the packed bytes as an array in device memory.
    """

    def __init__(self, array: DeviceArray, pieces: list[copying.Pieces], what: str) -> None:
        if array.stream and driver().capturing(array.stream):
            raise BufferError(
                f"{what}: not contiguous in device memory, or of a derived datatype, in a stream "
                "that is being captured for a graph, and the memory in which it is packed would "
                "not last as long as the graph; pass a contiguous copy that does"
            )
        try:
            self._copies = copying.Copies(array.device, array.stream, pieces, array)
        except ModuleNotFoundError:
            raise BufferError(
                f"{what}: not contiguous in device memory, or of a derived datatype, and CuPy, "
                "which packs it there, is not installed; install it (pip install cupy-cuda12x or "
                "cupy-cuda13x), or pass a contiguous copy"
            ) from None
        self._array, self._pieces, self._what = array, pieces, what
        nbytes = self._copies.nbytes
        self.target = array._replace(
            ptr=self._copies.address,
            nbytes=nbytes,
            shape=(nbytes,),
            strides=(1,),
            export=self._copies,
        )
        self.memory = self.target.addresses
        self.for_all = True

    def load(self) -> None:
        self._copies.gather()

    def write_back(self) -> None:
        self._copies.scatter()

    def on_stream(self, stream: int) -> PackedOnDevice:
        """The same elements packed in the order of another stream, in memory of its own."""
        return PackedOnDevice(self._array._replace(stream=stream), self._pieces, self._what)


def strided(array: DeviceArray, order: str, what: str, blocks: int = 1) -> PackedOnDevice:
    """The elements of an array, as :func:`mpicoll.buffers.packing.strided` has them."""
    cut = in_blocks(array.elements, blocks)
    if order == "F":
        cut = cut.transpose(0, *range(cut.ndim - 1, 0, -1))
    return PackedOnDevice(
        array, [copying.Pieces(array.ptr, cut.shape, cut.strides, array.itemsize)], what
    )


def typed(array: DeviceArray, parts: Iterable[Part], what: str) -> PackedOnDevice:
    """The elements of ``parts`` of a contiguous array, as the function of that name there."""
    runs: dict[int, tuple[typemaps.Offsets, int]] = {}
    pieces = []
    for part in (part for part in parts if part.nbytes):
        handle = part.datatype.handle
        if handle not in runs:
            runs[handle] = typemaps.runs(part.datatype).equal()
        pieces.append(_pieces(array.ptr + part.offset, part, *runs[handle]))
    return PackedOnDevice(array, pieces, what)


def _pieces(address: int, part: Part, starts: typemaps.Offsets, nbytes: int) -> copying.Pieces:
    """Elements of a datatype of which pieces of one length start at some places."""
    _, extent = part.datatype.Get_extent()
    first, steps = int(starts.min()), np.diff(starts)
    if (steps == steps[:1]).all():  # as of a vector, or of one piece
        step = int(steps[0]) if steps.size else 0
        shape, strides = (part.length, starts.size), (extent, step)
        return copying.Pieces(address + int(starts[0]), shape, strides, nbytes)
    return copying.Pieces(address + first, (part.length,), (extent,), nbytes, starts - first)
