"""Reductions of arrays in device memory of one node, through the host, folded by the GPUs.

The host's processors touch nothing: GPUs write to pinned memory that all ranks map, and read there
what others have written.  Of a chunk every rank writes all it has; reads, of every other rank,
the share that is its own to fold; writes what it has folded; and reads the shares that others have,
if it gets them: all in an all-reduce, the root in a reduce, none in a reduce-scatter.  Three
chunks are under way, one at each of these stages, and one barrier a chunk tells the ranks that
they have ended.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll import ops
from mpicoll.base.consensus import Problem, attempt
from mpicoll.buffers import Buffer
from mpicoll.cuda.driver import driver, when_dropped
from mpicoll.cuda.streams import order
from mpicoll.engine import progress, transport
from mpicoll.runtime.calls import Call
from mpicoll.runtime.staging import CHUNK, SLOTS, Chunk, SlotStream, cut
from mpicoll.runtime.state import State
from mpicoll.runtime.unavailable import Unavailable

if TYPE_CHECKING:
    import numpy.typing as npt

#: Collectives that it makes.
SERVED = ("allreduce", "reduce", "reduce_scatter")
#: Shares begin at multiples of as many bytes.
_ALIGNED = 512


def shares(nbytes: int, size: int) -> list[Chunk]:
    """The parts of a chunk that each rank folds; the last ones may be short or empty."""
    width = -(-nbytes // size // _ALIGNED) * _ALIGNED
    starts = (min(rank * width, nbytes) for rank in range(size))
    return [Chunk(start, min(width, nbytes - start)) for start in starts]


class Relay:
    """The memory that all ranks map, and the streams of this one.

    Made by :meth:`open`.
    """

    def __init__(self, state: State, memory: npt.NDArray[np.uint8], folds: Any) -> None:
        assert state.gpus is not None
        self._state, self._memory, self._folds = state, memory, folds
        self._device, self._rank, self._size = state.gpus.device, state.rank, state.size
        functions = driver()
        with functions.on(self._device), contextlib.ExitStack() as made:
            functions.register(memory.ctypes.data, memory.size)
            made.callback(functions.unregister, memory.ctypes.data)
            self._streams = [
                made.enter_context(contextlib.closing(SlotStream(self._device))) for _ in range(3)
            ]
            self._to_host, self._folding, self._to_device = self._streams
            #: Operands of a fold, one a rank, for each slot.
            self._pitch = shares(CHUNK, self._size)[0].nbytes
            self._scratch = functions.allocate(
                SLOTS * self._size * self._pitch, self._folding.stream
            )
            made.callback(functions.free, self._scratch, self._folding.stream)
            when_dropped(self, _close, self._device, made.pop_all(), memory)

    @classmethod
    def open(cls, state: State) -> Relay | Unavailable:
        """Make it; unavailable, on all ranks alike, where that is not possible.  Collective."""
        if max(state.nodes) > 0:
            return Unavailable("the ranks are on several nodes")
        length = state.size * SLOTS * 2 * CHUNK
        with progress.meanwhile():
            memory, why = transport.memory_of(state.private, length)
            if memory is None:
                return Unavailable(why)
            made = attempt(state.private, lambda: cls(state, memory, _folds(state)))
        return Unavailable(made.text) if isinstance(made, Problem) else made

    def serves(self, reduction: ops.Reduction | None) -> bool:
        """Whether an operator is one that the GPUs reduce by; the same on all ranks."""
        return reduction is not None and bool(self._folds.serves(reduction))

    def run(self, call: Call) -> None:
        """Run one of the collectives of :data:`SERVED` on arrays in device memory."""
        send, recv = call.send, call.recv
        assert send is not None and call.reduction is not None
        chunks = cut(send.block_bytes, call.place.nblocks, send.itemsize)
        self._begin(send, recv)
        for number in range(len(chunks) + 2):
            if number < len(chunks):
                self._copy_to_host(send, number, chunks[number])
            self._await(number, len(chunks))
            self._state.guard.wait(self._state.private.Ibarrier())
            if 0 <= number - 1 < len(chunks):
                self._fold(call, number - 1, chunks[number - 1])
            if 0 <= number - 2 < len(chunks):
                self._copy_to_device(call, number - 2, chunks[number - 2])
        self._finish(recv, len(chunks) - 1)

    def _shares(self, call: Call, chunk: Chunk) -> list[Chunk]:
        """The shares of a chunk, where it lies in a slot."""
        if call.place.nblocks == 1:
            return shares(chunk.nbytes, self._size)
        return [Chunk(rank * chunk.nbytes, chunk.nbytes) for rank in range(self._size)]

    def _begin(self, send: Buffer, recv: Buffer | None) -> None:
        """Follow the caller's streams, once nobody reads what the last call has left."""
        for slot in range(SLOTS):
            self._to_device.await_slot(slot)
        for array in [buffer.device for buffer in (send, recv) if buffer is not None]:
            assert array is not None
            for stream in self._streams:
                order((array.device, array.stream), (self._device, stream.stream))

    def _copy_to_host(self, send: Buffer, number: int, chunk: Chunk) -> None:
        """Copy all this rank has of a chunk to the host."""
        functions = driver()
        with functions.on(self._device):
            for block in range(send.blocks):
                source = send.memory.ctypes.data + block * send.block_bytes + chunk.start
                target = self._at(number, self._rank) + block * chunk.nbytes
                functions.copy(target, source, chunk.nbytes, self._to_host.stream)
            self._to_host.record(number)

    def _await(self, number: int, count: int) -> None:
        """Wait for what the next barrier tells the others.

        That is what they read behind it, and what they have read before it, whose slot they may
        fill again.
        """
        for since, stream in enumerate(self._streams, 1):
            if 0 <= number - since < count:
                stream.await_slot(number - since)

    def _fold(self, call: Call, number: int, chunk: Chunk) -> None:
        """Fold this rank's share of a chunk, and copy it to the host if another gets it."""
        functions, share = driver(), self._shares(call, chunk)[self._rank]
        scratch = self._scratch + number % SLOTS * self._size * self._pitch
        with functions.on(self._device):
            if share.nbytes:
                for rank in range(self._size):
                    source = self._at(number, rank) + share.start
                    target = scratch + rank * self._pitch
                    functions.copy(target, source, share.nbytes, self._folding.stream)
                self._folds.run(
                    call.reduction, scratch, self._pitch, share.nbytes, self._folding.stream
                )
                shared_out = call.place.nblocks == 1
                if shared_out:
                    own = self._at(number, self._rank, folded=True) + share.start
                    functions.copy(own, scratch, share.nbytes, self._folding.stream)
                if call.recv is not None:
                    result = call.recv.memory.ctypes.data + chunk.start
                    result += share.start if shared_out else 0
                    functions.copy(result, scratch, share.nbytes, self._folding.stream)
            self._folding.record(number)

    def _copy_to_device(self, call: Call, number: int, chunk: Chunk) -> None:
        """Copy what others have folded of a chunk to the device."""
        functions, recv = driver(), call.recv
        with functions.on(self._device):
            if recv is not None and call.place.nblocks == 1:
                for rank, share in enumerate(self._shares(call, chunk)):
                    if share.nbytes and rank != self._rank:
                        source = self._at(number, rank, folded=True) + share.start
                        target = recv.memory.ctypes.data + chunk.start + share.start
                        functions.copy(target, source, share.nbytes, self._to_device.stream)
            self._to_device.record(number)

    def _finish(self, recv: Buffer | None, number: int) -> None:
        """Let the caller's stream wait for the last chunk; all that was sent is on the host."""
        if recv is None:
            return
        assert recv.device is not None
        for stream in (self._folding, self._to_device):
            stream.precede(recv.device, number)

    def _at(self, number: int, rank: int, folded: bool = False) -> int:
        """Where a rank has a chunk, or what it has folded of one."""
        place = (rank * SLOTS + number % SLOTS) * 2 + folded
        return int(self._memory.ctypes.data) + place * CHUNK


def _folds(state: State) -> Any:
    from mpicoll.cuda.folds import Folds

    assert state.gpus is not None
    return Folds(state.gpus.device, state.size)


def _close(device: int, made: contextlib.ExitStack, memory: npt.NDArray[np.uint8]) -> None:
    """Let everything go; ``memory`` is there until it is not pinned any more."""
    with driver().on(device):
        made.close()
