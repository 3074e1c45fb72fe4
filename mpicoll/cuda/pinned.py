"""Memory of the host that stands for memory of a device while a message is under way.

It is pinned, so that the device reads and writes it at full speed and by itself.  Pinning takes far
longer than a short message, so what has been used is kept for what comes next.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mpicoll.cuda.driver import Functions, driver, when_dropped

if TYPE_CHECKING:
    import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

#: Bytes of unused pinned memory that a process keeps.
KEPT = 256 << 20
#: The shortest piece.
_LEAST = 4096


class _Pool:
    """Pinned memory in pieces whose lengths are powers of two."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}
        self._kept = 0
        self._lock = threading.RLock()  # a finalizer may run within any of these calls

    def take(self, nbytes: int, functions: Functions) -> Bytes:
        """Bytes that are given back when nothing refers to them any more."""
        length = max(_LEAST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            known = self._free.get(length)
            address = known.pop() if known else 0
            if address:
                self._kept -= length
        if not address:
            address = functions.pinned(length)
        memory = np.frombuffer(
            memoryview((ctypes.c_uint8 * length).from_address(address)), np.uint8
        )
        when_dropped(memory, self._give_back, address, length, functions)
        return memory[:nbytes]

    def _give_back(self, address: int, length: int, functions: Functions) -> None:
        with self._lock:
            if self._kept + length <= KEPT:
                self._kept += length
                self._free.setdefault(length, []).append(address)
                return
        functions.free_pinned(address)


_pools: weakref.WeakKeyDictionary[Functions, _Pool] = weakref.WeakKeyDictionary()


def pinned(nbytes: int, device: int) -> Bytes:
    """Pinned memory; it belongs to a pool again when nothing refers to it any more.

    Raises:
        MemoryError: there is none; names how much.
    """
    if not nbytes:
        return np.empty(0, np.uint8)
    functions = driver()
    pool = _pools.setdefault(functions, _Pool())
    with functions.on(device):
        return pool.take(nbytes, functions)
