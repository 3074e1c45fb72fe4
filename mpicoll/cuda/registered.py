"""Memory of this rank that its peers map, so that they read and write it where it lies.

Registering is collective, and gives the memory the same number on all ranks.  Letting it go is
local; it is done with at the next registration that finds all ranks to have let it go, or when
the communicator is freed.  Until then what keeps the memory stays alive: an allocation must not be
freed while another process has it mapped.  A process maps an allocation once, however many
communicators have parts of it registered: not every driver maps it twice.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpi4py import MPI

from mpicoll.base.consensus import Problem, attempt, together
from mpicoll.cuda import _driver

#: Registered buffers that a communicator may have at a time.
MOST = 256
#: Bytes of the table of their addresses, for each rank.
TABLE = 8 * MOST


class Registered:
    """Buffers that peers may read and write.

    Attributes:
        direct: whether peers can access them; otherwise data goes through the window.
    """

    def __init__(self, registry: Registry | None, numbers: Iterable[int]) -> None:
        self._registry, self._numbers = registry, [*numbers]
        self.direct = bool(self._numbers)

    def close(self) -> None:
        """Release them.  Local.

        Not while a captured graph that uses them is running or may be launched again.
        """
        if self._registry is not None:
            self._registry.dropped.update(self._numbers)
        self._registry = None


class _Exported(NamedTuple):
    """What other processes need to map an allocation.

    Attributes:
        pid, number: name the allocation on this host, see :func:`mpicoll.cuda._driver.buffer_id`.
        handle: by which it is mapped.
        offset: of the memory in question.
    """

    pid: int
    number: int
    handle: bytes
    offset: int


class _Mapped:
    """The allocations of other processes that this one has mapped, on which of its devices."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, int], list[int]] = {}  # address, how many need it
        self._lock = threading.Lock()

    def take(self, device: int, found: _Exported) -> int:
        """Where an allocation is mapped on the current device, until it is given back as often."""
        key = device, found.pid, found.number
        with self._lock:
            if key not in self._found:
                self._found[key] = [_driver.map(found.handle), 0]
            self._found[key][1] += 1
            return self._found[key][0]

    def give_back(self, device: int, found: _Exported) -> None:
        """Unmap it if nothing needs it any more."""
        key = device, found.pid, found.number
        with self._lock:
            entry = self._found[key]
            entry[1] -= 1
            if not entry[1]:
                del self._found[key]
                _driver.unmap(entry[0])


_mapped = _Mapped()


class _Block:
    """Memory of an allocation of its own, freed when its user and all peers have let it go."""

    def __init__(self, device: int, nbytes: int) -> None:
        self._device, self.address = device, _driver.allocate_mappable(nbytes)
        self.held = 2

    def let_go(self) -> None:
        self.held -= 1
        if not self.held:
            self.free()

    def free(self) -> None:
        with _driver.on(self._device):  # a finalizer may run in any thread
            _driver.free_mappable(self.address)


class _Token:
    """Lives as long as a user has the memory."""


class Registry:
    """The registered buffers of one communicator; its device is current in every call.

    Args:
        private: the communicator of mpicoll's own messages.
        device: its ordinal.
        launcher: is told of this rank's buffers.
        table: address of the device's table of all ranks' buffers.
        stream: one that waits for nothing of the caller's, by which the table is written.
        numbers: most buffers at a time, at most :data:`MOST`.

    Attributes:
        dropped: numbers of the buffers that this rank has let go.
    """

    def __init__(
        self,
        private: MPI.Intracomm,
        device: int,
        launcher: Any,
        table: int,
        stream: int,
        numbers: int = MOST,
    ) -> None:
        self._private, self._device, self._launcher = private, device, launcher
        self._table, self._stream = table, stream
        self._rank, self._size = private.Get_rank(), private.Get_size()
        self._free = [*reversed(range(numbers))]
        #: What each buffer needs: mapped allocations, and what keeps this rank's memory.
        self._needed: dict[int, tuple[list[_Exported], Any]] = {}
        self.dropped: set[int] = set()

    @property
    def any(self) -> bool:
        """Whether there are any; equal on all ranks."""
        return bool(self._needed)

    def register(self, spans: Sequence[tuple[int, int]], kept: Any) -> Registered:
        """See :meth:`mpicoll.cuda.ipc.Peers.register`.  Collective."""
        self._collect()
        numbers = [self._register(address, length, kept) for address, length in spans]
        self._launcher.forget()
        return Registered(self, [number for number in numbers if number is not None])

    def empty(self, nbytes: int) -> tuple[int, Any]:
        """See :meth:`mpicoll.cuda.ipc.Peers.empty`.  Collective."""
        self._collect()
        make = partial(_Block, self._device, max(nbytes, 1))
        block = attempt(self._private, make, RuntimeError, undo=_Block.free)
        if isinstance(block, Problem):
            raise MemoryError(f"{block}; make the array smaller, or free other memory of the GPU")
        token = _Token()
        number = self._register(block.address, max(nbytes, 1), block)
        self._launcher.forget()
        weakref.finalize(token, self._gone, number, block).atexit = False
        if number is None:
            block.held = 1  # no peer has it
        return block.address, token

    def _gone(self, number: int | None, block: _Block) -> None:
        block.let_go()
        if number is not None:
            self.dropped.add(number)

    def _collect(self) -> None:
        """Unmap what all ranks have let go, and no graph names."""
        gone = frozenset(self.dropped - self._launcher.captured)
        everywhere = frozenset.intersection(*self._private.allgather(gone))
        if not everywhere:
            return
        kept: list[Any] = []
        unneeded: list[_Exported] = []
        for number in sorted(everywhere, reverse=True):
            self._launcher.unregister(number)
            mapped, keeper = self._needed.pop(number)
            unneeded += mapped
            kept.append(keeper)
            self._free.append(number)
        self.dropped -= everywhere
        self._launcher.forget()
        self._unmap_together(unneeded)
        for keeper in kept:
            _let_go(keeper)

    def unmap_all(self) -> None:
        """Unmap everything, at the communicator's end."""
        for mapped, _ in self._needed.values():
            self._unmap(mapped)
            mapped.clear()

    def let_all_go(self) -> None:
        """No peer has anything of this rank's mapped any more."""
        needed, self._needed = self._needed, {}
        for _, keeper in needed.values():
            _let_go(keeper)

    def _register(self, address: int, length: int, kept: Any) -> int | None:
        record = _exported(address, length) if self._free else None
        records = self._private.allgather((length, record))
        if not any(held for held, _ in records):
            return None
        if any(held and found is None for held, found in records):
            return None
        mapped: list[_Exported] = []

        def map_all() -> None:
            row = [0] * self._size
            for rank, (_, found) in enumerate(records):
                if found is not None:
                    row[rank] = address
                    if rank != self._rank:
                        row[rank] = _mapped.take(self._device, found) + found.offset
                        mapped.append(found)
            words = b"".join(word.to_bytes(8, "little") for word in row)
            _driver.write(self._table + 8 * self._free[-1] * self._size, words, self._stream)

        if attempt(self._private, map_all, RuntimeError):
            self._unmap_together(mapped)
            return None
        number = self._free.pop()
        if length:
            self._launcher.register(address, length, number)
        self._needed[number] = mapped, kept
        return number

    def _unmap_together(self, mapped: Iterable[_Exported]) -> None:
        """Unmap what is not needed; then no peer has this rank's part of it mapped.  Collective.

        Raises:
            RuntimeError: on all ranks, if one cannot, since its GPU is lost.
        """

        def unmap() -> None:
            if self._launcher.captured:  # when graphs run nobody knows
                _driver.synchronize_device()
            self._launcher.await_registered()
            self._unmap(mapped)

        together(self._private, unmap)

    def _unmap(self, mapped: Iterable[_Exported]) -> None:
        for found in mapped:
            _mapped.give_back(self._device, found)


def _let_go(keeper: Any) -> None:
    if isinstance(keeper, _Block):
        keeper.let_go()


def _exported(address: int, length: int) -> _Exported | None:
    """What others need to map this memory, None where they cannot."""
    if not length:
        return None
    try:
        if not _driver.exportable(address):
            return None
        base, _ = _driver.address_range(address)
        return _Exported(os.getpid(), _driver.buffer_id(base), _driver.export(base), address - base)
    except RuntimeError:
        return None
