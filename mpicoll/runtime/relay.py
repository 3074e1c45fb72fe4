"""Reductions of arrays in device memory of one node, through the host, folded by the GPUs.

The host's processors touch nothing: GPUs write to pinned memory that all ranks map, and read there
what others have written.  Of a segment every rank writes all it has; reads, of every other rank,
the block that is its own to fold; writes what it has folded; and reads the blocks that others have,
if it gets them: all in an all-reduce, the root in a reduce, none in a reduce-scatter.  Three
segments are under way, one at each of these stages, and one barrier a segment tells the ranks that
they have ended.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpicoll import ops
from mpicoll.base import caller
from mpicoll.buffers import Buffer
from mpicoll.cuda.driver import driver
from mpicoll.engine import progress, transport
from mpicoll.errors import CudaError
from mpicoll.runtime.calls import Call
from mpicoll.runtime.staging import SEGMENT, Segment, cut
from mpicoll.runtime.state import State

__all__ = ["SERVED", "Relay", "blocks"]

#: Collectives that it makes.
SERVED = ("allreduce", "reduce", "reduce_scatter")
#: Segments under way.
SLOTS = 3
#: Blocks begin at multiples of as many bytes.
_ALIGNED = 512


class Block(NamedTuple):
    """A part of a segment: its first byte there, and its bytes."""

    start: int
    nbytes: int


def blocks(nbytes: int, size: int) -> list[Block]:
    """The blocks of a segment, one a rank; the last ones may be short or empty."""
    width = -(-nbytes // size // _ALIGNED) * _ALIGNED
    starts = (min(rank * width, nbytes) for rank in range(size))
    return [Block(start, min(width, nbytes - start)) for start in starts]


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
            self._leaving, self._folding, self._arriving = (_stream(made) for _ in range(3))
            self._left, self._folded, self._arrived = (
                [_event(made) for _ in range(SLOTS)] for _ in range(3)
            )
            #: Operands of a fold, one a rank, for each slot.
            self._pitch = blocks(SEGMENT, self._size)[0].nbytes
            self._scratch = functions.allocate(SLOTS * self._size * self._pitch, self._folding)
            made.callback(functions.free, self._scratch, self._folding)
            self._end = weakref.finalize(self, _close, self._device, made.pop_all(), memory)
            self._end.atexit = False

    @classmethod
    def open(cls, state: State) -> tuple[Relay | None, str]:
        """Make it; None, and why, on all ranks alike, where it cannot be had.  Collective."""
        with progress.meanwhile():
            return cls._open(state)

    @classmethod
    def _open(cls, state: State) -> tuple[Relay | None, str]:
        assert state.gpus is not None
        if max(state.nodes) > 0:
            return None, "the ranks are on several nodes"
        length = state.size * SLOTS * 2 * SEGMENT
        memory, problem = transport.memory_of(state.private, length)
        made = None
        if memory is not None:
            try:
                made = cls(state, memory, _folds(state))
            except Exception as error:  # CuPy's and its compiler's too
                problem = f"{type(error).__name__}: {error}"
        problems = state.private.allgather(problem)
        problem = next(filter(None, problems), "")
        return (None, problem) if problem else (made, "")

    def serves(self, reduction: ops.Reduction | None) -> bool:
        """Whether an operator is one that the GPUs reduce by; the same on all ranks."""
        return reduction is not None and bool(self._folds.serves(reduction))

    def run(self, call: Call) -> None:
        """Run one of the collectives of :data:`SERVED` on arrays in device memory."""
        send, recv = call.send, call.recv
        assert send is not None and call.reduction is not None
        segments = cut(send.block_bytes, call.place.nblocks, send.itemsize)
        self._begin(send, recv)
        for number in range(len(segments) + 2):
            if number < len(segments):
                self._leave(send, number, segments[number])
            self._await(number, len(segments))
            self._state.wait(self._state.private.Ibarrier())
            if 0 <= number - 1 < len(segments):
                self._fold(call, number - 1, segments[number - 1])
            if 0 <= number - 2 < len(segments):
                self._arrive(call, number - 2, segments[number - 2])
        self._finish(recv, len(segments) - 1)

    def _blocks(self, call: Call, segment: Segment) -> list[Block]:
        """The blocks of a segment, where it lies in a slot."""
        if call.place.nblocks == 1:
            return blocks(segment.nbytes, self._size)
        return [Block(rank * segment.nbytes, segment.nbytes) for rank in range(self._size)]

    def _begin(self, send: Buffer, recv: Buffer | None) -> None:
        """Follow the caller's streams, once nobody reads what the last call has left."""
        functions = driver()
        with functions.on(self._device):
            for event in self._arrived:
                functions.await_event(event)
        for buffer in (send, recv):
            if buffer is None:
                continue
            assert buffer.device is not None
            with functions.on(buffer.device.device):
                event = functions.event()
                functions.record(event, buffer.device.stream)
                for stream in (self._leaving, self._folding, self._arriving):
                    functions.wait(stream, event)
                functions.free_event(event)

    def _leave(self, send: Buffer, number: int, segment: Segment) -> None:
        """All this rank has of a segment goes to the host."""
        functions = driver()
        with functions.on(self._device):
            for block in range(send.blocks):
                source = send.memory.ctypes.data + block * send.block_bytes + segment.start
                target = self._at(number, self._rank) + block * segment.nbytes
                functions.copy(target, source, segment.nbytes, self._leaving)
            functions.record(self._left[number % SLOTS], self._leaving)

    def _await(self, number: int, count: int) -> None:
        """Wait for what the next barrier tells the others.

        That is what they read behind it, and what they have read before it, whose slot they may
        fill again.
        """
        functions = driver()
        with functions.on(self._device):
            for events, since in ((self._left, 1), (self._folded, 2), (self._arrived, 3)):
                if 0 <= number - since < count:
                    functions.await_event(events[(number - since) % SLOTS])

    def _fold(self, call: Call, number: int, segment: Segment) -> None:
        """Fold this rank's block of a segment, and let it go to the host if another gets it."""
        functions, block = driver(), self._blocks(call, segment)[self._rank]
        scratch = self._scratch + number % SLOTS * self._size * self._pitch
        with functions.on(self._device):
            if block.nbytes:
                for rank in range(self._size):
                    source = self._at(number, rank) + block.start
                    target = scratch + rank * self._pitch
                    functions.copy(target, source, block.nbytes, self._folding)
                self._folds.run(call.reduction, scratch, self._pitch, block.nbytes, self._folding)
                shared_out = call.place.nblocks == 1
                if shared_out:
                    own = self._at(number, self._rank, folded=True) + block.start
                    functions.copy(own, scratch, block.nbytes, self._folding)
                if call.recv is not None:
                    result = call.recv.memory.ctypes.data + segment.start
                    result += block.start if shared_out else 0
                    functions.copy(result, scratch, block.nbytes, self._folding)
            functions.record(self._folded[number % SLOTS], self._folding)

    def _arrive(self, call: Call, number: int, segment: Segment) -> None:
        """The blocks of a segment that others have folded come to the device."""
        functions, recv = driver(), call.recv
        with functions.on(self._device):
            if recv is not None and call.place.nblocks == 1:
                for rank, block in enumerate(self._blocks(call, segment)):
                    if block.nbytes and rank != self._rank:
                        source = self._at(number, rank, folded=True) + block.start
                        target = recv.memory.ctypes.data + segment.start + block.start
                        functions.copy(target, source, block.nbytes, self._arriving)
            functions.record(self._arrived[number % SLOTS], self._arriving)

    def _finish(self, recv: Buffer | None, number: int) -> None:
        """Let the caller's stream wait for the last segment; all that was sent has left."""
        if recv is None:
            return
        functions, array = driver(), recv.device
        assert array is not None
        with functions.on(array.device):
            for event in (self._folded, self._arrived):
                functions.wait(array.stream, event[number % SLOTS])

    def _at(self, number: int, rank: int, folded: bool = False) -> int:
        """Where a rank has a segment, or what it has folded of one."""
        place = (rank * SLOTS + number % SLOTS) * 2 + folded
        return int(self._memory.ctypes.data) + place * SEGMENT


def _folds(state: State) -> Any:
    from mpicoll.cuda.folds import Folds

    assert state.gpus is not None
    return Folds(state.gpus.device, state.size)


def _stream(made: contextlib.ExitStack) -> int:
    """A stream, which ends when all is done that was put on it."""
    functions = driver()
    stream = functions.stream()
    made.callback(functions.free_stream, stream)
    made.callback(functions.synchronize, stream)
    return stream


def _event(made: contextlib.ExitStack) -> int:
    functions = driver()
    event = functions.event()
    made.callback(functions.free_event, event)
    return event


def _close(device: int, made: contextlib.ExitStack, memory: npt.NDArray[np.uint8]) -> None:
    """Let everything go; ``memory`` is there until it is not pinned any more."""
    if caller.is_forked():
        return
    # When the program ends the driver may have ended before.
    with contextlib.suppress(CudaError), driver().on(device):
        made.close()
