"""What a buffer is once it has been parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from mpicoll.base.wording import plural
from mpicoll.buffers.device_packing import PackedOnDevice
from mpicoll.buffers.packing import Packed
from mpicoll.buffers.staged import OnDevice
from mpicoll.cuda.arrays import DeviceArray

if TYPE_CHECKING:
    import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"


class Buffer(NamedTuple):
    """One argument of a collective.

    Attributes:
        memory: the bytes used, all blocks; a view of the caller's memory, or what is packed.
        length: elements of one block.
        blocks: number of blocks.
        dtype: NumPy dtype of an element, None if it has none (then only moved, not reduced).
        itemsize: bytes of an element.
        datatype: MPI datatype of an element, None if the library has none.
        writable: whether the memory may be written.
        order: "C" or "F" for an array of which the order of the axes matters, else "".
        packed: what goes by value in ``memory``; of derived datatypes, as bytes.
        given: the argument as mpi4py takes it, where that is not this memory.
        array: the caller's array, if there is one.
        device: where ``memory`` is in device memory, that as an array; it has the addresses, at
            which the host must not look.
        beyond: that the caller's counts reach beyond the memory that is known to be there, in
            words; else "".
    """

    memory: Bytes
    length: int
    blocks: int
    dtype: np.dtype[Any] | None
    itemsize: int
    datatype: MPI.Datatype | None
    writable: bool
    order: str = ""
    packed: Packed | None = None
    given: Any = None
    array: npt.NDArray[Any] | DeviceArray | None = None
    device: DeviceArray | None = None
    beyond: str = ""

    def __repr__(self) -> str:
        """Without the memory, which the host must not look at where it is a device's."""
        return f"Buffer({plural(self.blocks, 'block')} of {self.length} {self.name})"

    @property
    def name(self) -> str:
        """The element's type in words."""
        if self.datatype is not None:
            return str(self.datatype.Get_name())
        return str(self.dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.length * self.itemsize

    def message(self, reduced: bool) -> list[Any]:
        """The argument as mpi4py wants it: memory, count of one block, datatype."""
        if self.given is not None:
            return list(self.given)
        if self.datatype is None:
            return [self.memory, self.block_bytes, MPI.BYTE]
        if reduced and self.datatype == MPI.BYTE:
            return [self.memory, self.length, MPI.UINT8_T]  # bytes are no numbers to MPI
        return [self.memory, self.length, self.datatype]

    def on_host(self, loads: bool = True) -> Buffer:
        """The same buffer where what is in device memory goes by value.

        ``loads``: whether the device's bytes are wanted, not only overwritten.
        """
        if self.device is None:
            return self
        packed = OnDevice(self.device, self._offset, self.memory.size, loads, self.packed)
        return self._replace(memory=packed.memory, packed=packed, device=None)

    @property
    def _offset(self) -> int:
        """Bytes of the array in device memory before those used."""
        if self.device is None or not self.memory.size:
            return 0
        return int(self.memory.ctypes.data) - self.device.ptr

    def on_stream(self, stream: int) -> Buffer:
        """The same buffer, in device memory, ordered on a stream."""
        if self.device is None:
            raise TypeError("stream= is for arrays in device memory; leave it out")
        if not isinstance(self.packed, PackedOnDevice):
            return self._replace(device=self.device._replace(stream=stream))
        packed = self.packed.on_stream(stream)
        memory = packed.memory[self._offset :][: self.memory.size]
        return self._replace(memory=memory, packed=packed, device=packed.target)


class Kind(NamedTuple):
    """An element: its MPI datatype, its NumPy dtype, its extent in bytes."""

    datatype: MPI.Datatype | None
    dtype: np.dtype[Any] | None
    itemsize: int


class View(NamedTuple):
    """All of an owner's elements.

    Attributes:
        memory: their bytes, in the owner's memory or by value.
        kind: what an element is.
        order: of the axes: "C" or "F", "" where both are the same.
        array: the owner as an array, if it is one.
        packed: what goes by value in ``memory``, if anything.
        device: where ``memory`` is in device memory, that as an array.
        beyond: see :class:`Buffer`.
    """

    memory: Bytes
    kind: Kind
    order: str = ""
    array: npt.NDArray[Any] | DeviceArray | None = None
    packed: Packed | None = None
    device: DeviceArray | None = None
    beyond: str = ""

    def buffer(self, memory: Bytes, count: int, blocks: int, writable: bool) -> Buffer:
        """A buffer of a part of the memory: blocks of ``count`` elements."""
        kind = self.kind
        return Buffer(
            memory,
            count,
            blocks,
            kind.dtype,
            kind.itemsize,
            kind.datatype,
            writable,
            self.order,
            self.packed,
            array=self.array,
            device=self.device,
            beyond=self.beyond,
        )
