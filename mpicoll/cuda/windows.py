"""Windows: memory of each GPU that its peers map, for what goes between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from mpi4py import MPI

from mpicoll.cuda import _driver
from mpicoll.cuda.launches import Limits

#: Seconds to wait for the other ranks before memory is freed.
PATIENCE = 5.0
#: What a rank writes to its window for the others to read.
PATTERN = b"mpicoll window "


class Windows:
    """The window of this rank and those of its neighbours.

    Args:
        rank: this rank.
        pids: the process of every rank.
        limits: of launches; they tell how long a window is, and whose windows a rank uses.

    Attributes:
        handle: by which peers map this rank's window; empty until it is made.
        handles: those of all ranks; to be filled in once they are made.
        addresses: of each rank's window in this process; 0 where it is not used.
    """

    def __init__(self, rank: int, pids: Mapping[int, int], limits: Limits) -> None:
        self._rank, self._pids = rank, pids
        self._nbytes = limits.window(len(pids))
        self._neighbours = limits.neighbours(rank, len(pids))
        self._owned: list[int] = []
        self._mapped: list[int] = []
        #: Everything of the making goes by a stream that waits for nothing else: on the device
        #: there may be calls of other communicators that wait for peers who come here first.
        self.stream = 0
        self._own = 0
        self.handle = b""
        self.handles: list[bytes] = []
        self.addresses: list[int] = []

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        """How windows are made: all ranks take each step before any takes the next."""
        return self._make, self._map_all, self._write, self._read, self._clear

    def _make(self) -> None:
        self.stream = _driver.stream()
        self._own = self.allocate(self._nbytes)
        self.handle = _driver.export(self._own)

    def _map_all(self) -> None:
        self.addresses = [self._at(rank, handle) for rank, handle in enumerate(self.handles)]

    def _at(self, rank: int, handle: bytes) -> int:
        if rank == self._rank:
            return self._own
        if rank not in self._neighbours:
            return 0
        address: int = _driver.map(handle)
        self._mapped.append(address)
        return address

    def _write(self) -> None:
        _driver.write(self._own, self._pattern(self._rank), self.stream)

    def _read(self) -> None:
        for rank, window in enumerate(self.addresses):
            if not window:
                continue
            pattern = self._pattern(rank)
            if _driver.read(window, len(pattern), self.stream) != pattern:
                raise RuntimeError(f"memory of rank {rank} reads other than it was written")

    def _clear(self) -> None:
        _driver.write(self._own, bytes(len(self._pattern(self._rank))), self.stream)

    def _pattern(self, rank: int) -> bytes:
        return PATTERN + self._pids[rank].to_bytes(8, "little")

    def allocate(self, nbytes: int) -> int:
        """Memory that peers can map, all zeros; it is freed with the windows."""
        address: int = _driver.allocate_mappable(nbytes)
        self._owned.append(address)
        _driver.clear(address, nbytes, self.stream)
        return address

    def take(self) -> Windows:
        """All that is to be freed, once: what is not freed then, the process keeps."""
        taken = copy(self)
        self._owned, self._mapped, self.stream = [], [], 0
        return taken

    def unmap(self) -> None:
        """Unmap the windows of the others."""
        for address in self._mapped:
            _driver.unmap(address)

    def free_stream(self) -> None:
        """Free the stream, when nothing uses it any more."""
        if self.stream:
            _driver.free_stream(self.stream)

    def free(self) -> None:
        """Free this rank's memory, when no peer has it mapped any more."""
        for address in self._owned:
            _driver.free_mappable(address)


#: Barriers that have not ended, which MPI does not let free, and what peers may have mapped still.
_LEFT: list[tuple[MPI.Request, Any]] = []


def all_have_come(private: MPI.Intracomm, kept: Any) -> bool:
    """Whether all ranks come here, within a time; else something is kept for good."""
    request = private.Ibarrier()
    end = time.monotonic() + PATIENCE
    while not request.Test():
        if time.monotonic() > end:
            _LEFT.append((request, kept))
            return False
        os.sched_yield()
    return True
