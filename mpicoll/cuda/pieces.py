"""Copies on a device between contiguous memory and pieces of memory that are apart, by CuPy.

Pieces are described by axes and offsets, not one by one, so that CuPy's own kernels copy them all
at once, in units as large as all addresses allow.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

#: Bytes that a thread copies at once, at most.
_WIDEST = 8
#: CuPy counts in 32 bits what an index chooses among, and how much it chooses.
_MOST = (1 << 31) - 1


@dataclass(frozen=True)
class Pieces:
    """Pieces of memory, all of one length, in the order in which they are packed.

    Attributes:
        address: of the first piece, where every offset is 0.
        shape, strides: along how many axes how many pieces lie, and bytes from one to the next.
        nbytes: of a piece.
        offsets: in bytes, not negative: of pieces along one more axis, the innermost one.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    offsets: npt.NDArray[np.int64] | None = None

    @property
    def total(self) -> int:
        """Bytes of all pieces."""
        along = 1 if self.offsets is None else self.offsets.size
        return math.prod(self.shape) * along * self.nbytes

    def unit(self, place: int) -> int:
        """Bytes that can be copied at once if the packed bytes begin at ``place``."""
        steps = [step for n, step in zip(self.shape, self.strides, strict=True) if n > 1]
        unit = math.gcd(_WIDEST, self.address, place, self.nbytes, *steps)
        return unit if self.offsets is None else math.gcd(unit, int(np.gcd.reduce(self.offsets)))


class _Handle(NamedTuple):
    """A stream as CUDA's protocol for streams has it."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _stream(cuda: Any, handle: int) -> Any:
    """CuPy's object for a stream that it has not made."""
    if hasattr(cuda.Stream, "from_external"):  # since CuPy 14, where ExternalStream warns
        return cuda.Stream.from_external(_Handle(handle))
    return cuda.ExternalStream(handle)


class Copies:
    """The copies between contiguous memory of a device and pieces.

    Args:
        device, stream: which device's memory it is, and the stream that orders all copies.
        pieces: one behind the other in that memory.
        owner: stays alive as long as this.

    Raises:
        ModuleNotFoundError: CuPy, which copies, is not installed.
        MemoryError: the device has no such memory left.
        BufferError: more units are between pieces in no regular order than CuPy counts.

    Attributes:
        address: of the contiguous memory.
        nbytes: of it.
    """

    def __init__(self, device: int, stream: int, pieces: list[Pieces], owner: Any) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self._device, self._stream, self._owner = device, stream, owner
        self.nbytes = sum(each.total for each in pieces)
        with self._current():
            # Of CuPy's pool: it is used again in the order of the stream.
            self._memory = self._cupy.empty(self.nbytes, np.uint8)
            self.address = self._memory.data.ptr
            self._pairs = [*self._views(pieces)]

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        cuda = self._cupy.cuda
        stream = _stream(cuda, self._stream) if self._stream else cuda.Stream.null
        with cuda.Device(self._device), stream:
            yield

    def _views(self, pieces: list[Pieces]) -> Iterator[tuple[Any, Any, Any]]:
        """Of each of the pieces that are not empty: memory there, memory here, index or slice."""
        place = 0
        for each in pieces:
            if not each.total:
                continue
            unit = each.unit(self.address + place)
            index: Any = slice(None)
            many = wide = 1
            if each.offsets is not None:
                index = self._cupy.asarray(each.offsets // unit)
                many, wide = each.offsets.size, int(each.offsets.max()) // unit + 1
            width = each.nbytes // unit
            if each.offsets is not None and max(wide, many * width) > _MOST:
                raise BufferError(
                    f"{many} pieces of {each.nbytes} bytes, up to {int(each.offsets.max())} bytes "
                    f"apart, of a datatype of elements in device memory: in units of {unit} bytes "
                    f"they are more than {_MOST}; pass a contiguous copy, or smaller datatypes"
                )
            there = self._array(
                each.address, unit, (*each.shape, wide, width), (*each.strides, unit, unit)
            )
            here = self._array(self.address + place, unit, (*each.shape, many, width), None)
            yield there, here, (..., index, slice(None))
            place += each.total

    def _array(
        self, address: int, unit: int, shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> Any:
        """Memory as an array of whole numbers of so many bytes."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(address, math.prod(shape) * unit, self._owner, self._device)
        pointer = cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(shape, f"u{unit}", pointer, strides)

    def gather(self) -> None:
        """Copy the pieces here, in the order of the stream."""
        with self._current():
            for there, here, index in self._pairs:
                here[...] = there[index]

    def scatter(self) -> None:
        """Copy them back, in the order of the stream."""
        with self._current():
            for there, here, index in self._pairs:
                there[index] = here
