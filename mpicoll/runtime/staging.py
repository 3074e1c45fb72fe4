"""Large collectives of arrays in device memory through the host, in chunks.

Each chunk is a collective of the host's, on pinned memory that the ranks of a node share: its ranks
read each other's where it lies.  While one is under way the next ones are copied from their devices
and those before to theirs, on streams of their own, which the caller's streams wait for.

All ranks cut in the same way, which depends on the bytes of the whole vector alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from mpicoll.base.consensus import Problem, attempt
from mpicoll.base.wording import ranges
from mpicoll.buffers import Buffer
from mpicoll.cuda.arrays import DeviceArray
from mpicoll.cuda.driver import driver, when_dropped
from mpicoll.cuda.streams import order
from mpicoll.engine import progress, runner
from mpicoll.errors import CudaError
from mpicoll.runtime.calls import Call, Prepared
from mpicoll.runtime.state import State
from mpicoll.runtime.unavailable import Unavailable
from mpicoll.tuning import NATIVE

if TYPE_CHECKING:
    import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

#: Bytes of a chunk of the whole vector, and how many of them are under way.
CHUNK, SLOTS = 4 << 20, 3
#: Chunks begin at multiples of as many bytes of a block.
_ALIGNED = 512


class Chunk(NamedTuple):
    """Bytes that travel together: where they begin, in a block or in another chunk; how many."""

    start: int
    nbytes: int


def cut(block_bytes: int, blocks: int, itemsize: int) -> list[Chunk]:
    """The chunks of blocks that are equally long.

    Args:
        block_bytes: of one block.
        blocks: how many there are.
        itemsize: bytes that stay together.
    """
    most = max(CHUNK // blocks // _ALIGNED, 1) * _ALIGNED
    width = most // itemsize * itemsize or itemsize
    return [Chunk(start, min(width, block_bytes - start)) for start in range(0, block_bytes, width)]


def has_chunks(call: Call) -> bool:
    """Whether a call is cut; the same on all ranks."""
    return call.layouts is None and call.buffer is not None and len(_chunks(call)) > 1


def _chunks(call: Call) -> list[Chunk]:
    assert call.buffer is not None
    unit = call.buffer.itemsize if call.reduction is not None else 1
    return cut(call.buffer.block_bytes, call.place.nblocks, unit)


def sized(call: Call) -> int:
    """Bytes of the whole vector in one collective of the host's."""
    return call.nbytes if call.layouts is not None else min(call.nbytes, CHUNK)


def run(
    state: State,
    prepared: Prepared,
    native: Callable[[Call], None],
    step: runner.Step | None = None,
) -> bool:
    """Run a blocking call in chunks; False where it is to go as a whole.

    Args:
        state: of the communicator, all of whose ranks have devices.
        prepared: the call.
        native: runs the MPI library's own collective.
        step: told of every step that ends.

    Raises:
        MemoryError: on all ranks, where one cannot pin what the chunks go through.
    """
    call = prepared.call
    assert call is not None and state.gpus is not None
    if not has_chunks(call):
        return False
    chunks = _chunks(call)
    device = state.gpus.device
    area = state.once(Area, lambda: Area.open(state, device))
    if isinstance(area, Unavailable):  # a second try would pin no more
        raise MemoryError(area.reason)
    call.load()  # what is packed on its device
    pipeline = Pipeline(area, call)
    for number in range(1 - SLOTS, len(chunks)):
        if number + SLOTS - 1 < len(chunks):
            pipeline.copy_to_host(number + SLOTS - 1, chunks[number + SLOTS - 1])
        if number >= 0:
            part = pipeline.on_host(number, chunks[number])
            if prepared.choice.algorithm == NATIVE:
                native(part)
            else:
                state.plans.run(part, prepared.choice, step)
            pipeline.copy_to_device(number, chunks[number])
    pipeline.end(len(chunks) - 1)
    call.write_back()
    state.count(prepared.definition.name, prepared.choice.algorithm)
    return True


class SlotStream:
    """A stream of a device, and for each slot an event: what used it last is done."""

    def __init__(self, device: int) -> None:
        functions = driver()
        self.device = device
        self._ended: list[int] = []
        with functions.on(device), contextlib.ExitStack() as made:
            self.stream = functions.stream()
            made.callback(functions.free_stream, self.stream)
            made.callback(functions.synchronize, self.stream)
            for _ in range(SLOTS):
                self._ended.append(functions.event())
                made.callback(functions.free_event, self._ended[-1])
            self._made = made.pop_all()

    def record(self, number: int) -> None:
        """What has been put on the stream was the last use of a chunk's slot."""
        driver().record(self._ended[number % SLOTS], self.stream)

    def precede(self, other: DeviceArray | SlotStream, number: int) -> None:
        """What is put on the other's stream from now on comes after the last use of a slot."""
        functions = driver()
        with functions.on(other.device):
            functions.wait(other.stream, self._ended[number % SLOTS])

    def await_slot(self, number: int) -> None:
        """Let the host wait for the last use of a chunk's slot."""
        functions = driver()
        with functions.on(self.device):
            functions.await_event(self._ended[number % SLOTS])

    def close(self) -> None:
        """Free it, once all is done that was put on it."""
        with driver().on(self.device):
            self._made.close()


class Area:
    """The slots of a rank, in memory that those of its node share, and pinned.

    Each has place for what is sent, and as much for what is received.  Made by :meth:`open`, in the
    first call that is cut: that is the same one on all ranks, and most communicators have none.
    """

    def __init__(self, memory: Bytes, device: int) -> None:
        functions = driver()
        with functions.on(device):
            functions.register(memory.ctypes.data, memory.size)
        self._memory = memory
        self._streams: dict[tuple[int, bool], SlotStream] = {}
        when_dropped(self, _unpin, memory, device, self._streams)

    @classmethod
    def open(cls, state: State, device: int) -> Area | Unavailable:
        """Make them; unavailable, on all ranks alike, where one cannot pin them.  Collective."""
        with progress.meanwhile():
            memory = state.windows.take(SLOTS * 2 * CHUNK)
            made = attempt(state.private, lambda: cls(memory, device), CudaError)
        if not isinstance(made, Problem):
            return made
        return Unavailable(
            f"{ranges(made.ranks)} cannot pin {memory.size} bytes of host memory for what "
            f"is in device memory: {made.text}; raise the limit (ulimit -l), or "
            f"send parts of less than {CHUNK} bytes"
        )

    def copies(self, device: int, inward: bool) -> SlotStream:
        """The stream of copies from the slots to a device, or from there."""
        if (device, inward) not in self._streams:
            self._streams[device, inward] = SlotStream(device)
        return self._streams[device, inward]

    def inward(self) -> list[SlotStream]:
        """Those from the slots to devices."""
        return [copies for (_, inward), copies in self._streams.items() if inward]

    def slot(self, number: int, received: bool) -> Bytes:
        """The memory for what is sent or received of a chunk."""
        first = (2 * (number % SLOTS) + received) * CHUNK
        return self._memory[first : first + CHUNK]


def _unpin(memory: Bytes, device: int, streams: dict[tuple[int, bool], SlotStream]) -> None:
    """Let memory go, once nothing is copied from or to it any more."""
    for copies in streams.values():
        copies.close()
    with driver().on(device):
        driver().unregister(memory.ctypes.data)


class Endpoint:
    """One buffer of a call, and the copies between it and the slots.

    Args:
        area: the slots.
        buffer: in device memory.
        blocks: those that are copied.
        inward: whether they go to the device, or come from there.
    """

    def __init__(self, area: Area, buffer: Buffer, blocks: Iterable[int], inward: bool) -> None:
        assert buffer.device is not None
        self.array, self._inward = buffer.device, inward
        self.copies = area.copies(self.array.device, inward)
        self._base, self._pitch = buffer.memory.ctypes.data, buffer.block_bytes
        self._blocks = [*blocks]

    def copy(self, number: int, chunk: Chunk, host: Bytes) -> None:
        """Copy a chunk, from the device or, of what is received, to it."""
        functions, copies = driver(), self.copies
        with functions.on(copies.device):
            for block in self._blocks:
                there = self._base + block * self._pitch + chunk.start
                here = host.ctypes.data + block * chunk.nbytes
                pair = (there, here) if self._inward else (here, there)
                functions.copy(*pair, chunk.nbytes, copies.stream)
            copies.record(number)


class Pipeline:
    """One call, whose chunks go through the slots.

    Args:
        area: the slots.
        call: the call, of arrays in device memory.
    """

    def __init__(self, area: Area, call: Call) -> None:
        self._area, self._call = area, call
        send, recv, place = call.send, call.recv, call.place
        self._source = self._target = None
        if send is not None and send.device is not None:
            blocks = call.definition.held(place) if call.in_place else range(send.blocks)
            self._source = Endpoint(area, send, blocks, inward=False)
        if recv is not None and recv.device is not None and recv.writable:
            blocks = range(recv.blocks)
            if call.in_place:
                # A block alone is at the beginning, wherever it was.
                alone = call.definition.output_alone
                blocks = range(1) if alone else call.definition.wanted(place)
            self._target = Endpoint(area, recv, blocks, inward=True)
        for endpoint in (self._source, self._target):
            if endpoint is not None:
                array, copies = endpoint.array, endpoint.copies
                order((array.device, array.stream), (copies.device, copies.stream))
        self._await_last_call()

    def _await_last_call(self) -> None:
        """Fill no slot again that a call before, of arrays on other streams, is read from."""
        target = None if self._target is None else self._target.copies
        for copies in self._area.inward():
            for slot in range(SLOTS):
                if self._source is not None:
                    copies.precede(self._source.copies, slot)
                if target is not None and copies is not target:  # that is awaited in on_host
                    copies.await_slot(slot)

    def copy_to_host(self, number: int, chunk: Chunk) -> None:
        """Put the copy of a chunk to its slot, once that is free, on its stream."""
        if self._source is None:
            return
        copies = self._source.copies
        if self._target is not None and self._call.in_place:
            self._target.copies.precede(copies, number)
        self._source.copy(number, chunk, self._area.slot(number, False))

    def on_host(self, number: int, chunk: Chunk) -> Call:
        """The call of a chunk, which has been copied from its device, on memory of the host."""
        for endpoint in (self._source, self._target):
            if endpoint is not None:
                endpoint.copies.await_slot(number)
        send = self._part(self._call.send, number, chunk, False)
        recv = send
        if self._call.recv is not self._call.send:
            recv = self._part(self._call.recv, number, chunk, not self._call.in_place)
        return self._call._replace(send=send, recv=recv)

    def _part(
        self, buffer: Buffer | None, number: int, chunk: Chunk, received: bool
    ) -> Buffer | None:
        """A chunk of a buffer, on the host."""
        if buffer is None:
            return None
        memory = self._area.slot(number, received)[: buffer.blocks * chunk.nbytes]
        found = buffer._replace(memory=memory, order="", packed=None, device=None)
        if self._call.reduction is not None:
            return found._replace(length=chunk.nbytes // buffer.itemsize)
        byte = np.dtype(np.uint8)
        return found._replace(length=chunk.nbytes, dtype=byte, itemsize=1, datatype=MPI.BYTE)

    def copy_to_device(self, number: int, chunk: Chunk) -> None:
        """Put the copy of a chunk to the device on its stream."""
        if self._target is not None:
            host = self._area.slot(number, not self._call.in_place)
            self._target.copy(number, chunk, host)

    def end(self, number: int) -> None:
        """Let the caller's stream wait for the last chunk."""
        if self._target is not None:
            self._target.copies.precede(self._target.array, number)
