"""Pinned memory of the host that stands for bytes of an array in device memory."""

from __future__ import annotations

from mpicoll.buffers.packing import Packed
from mpicoll.cuda.arrays import DeviceArray
from mpicoll.cuda.driver import driver
from mpicoll.cuda.pinned import pinned


class OnDevice(Packed):
    """Pinned memory that stands for bytes of an array in device memory.

    Args:
        array: the array.
        offset, nbytes: its bytes in question.
        loads: whether :meth:`load` copies; not where everything is overwritten.
        behind: what the array stands for, where it has been packed on the device.
    """

    def __init__(
        self,
        array: DeviceArray,
        offset: int,
        nbytes: int,
        loads: bool,
        behind: Packed | None = None,
    ) -> None:
        self.memory = pinned(nbytes, array.device)
        self.for_all = True
        self._array, self._address, self._loads = array, array.ptr + offset, loads
        self._behind = behind

    def load(self) -> None:
        """Copy the device's bytes here, once what is on the array's stream before is done."""
        if self._behind is not None:
            self._behind.load()
        if self._loads:
            self._copy(self.memory.ctypes.data, self._address, self.memory.size)

    def write_back(self, nbytes: int | None = None) -> None:
        """Copy the bytes, or the first ones, to the device.

        It is done when this returns, before what is put on the array's stream later.
        """
        length = self.memory.size if nbytes is None else nbytes
        self._copy(self._address, self.memory.ctypes.data, length)
        if self._behind is not None:
            self._behind.write_back()
            self._wait()

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        if not nbytes:
            return
        functions = driver()
        with functions.on(self._array.device):
            functions.copy(target, source, nbytes, self._array.stream)
        self._wait()

    def _wait(self) -> None:
        functions = driver()
        with functions.on(self._array.device):
            functions.synchronize(self._array.stream)
