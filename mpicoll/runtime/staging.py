"""Large collectives of arrays in device memory through the host, in segments.

Each segment is a collective of the host's, on pinned memory that the ranks of a node share: its
ranks read each other's where it lies.  While one is under way the next ones leave their devices and
those before reach theirs, on streams of their own, which the caller's streams wait for.

All ranks cut in the same way, which depends on the bytes of the whole vector alone.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.base.wording import ranges
from mpicoll.buffers import Buffer
from mpicoll.cuda.arrays import DeviceArray
from mpicoll.cuda.driver import driver
from mpicoll.engine import progress, runner
from mpicoll.errors import CudaError
from mpicoll.runtime.calls import Call, Prepared
from mpicoll.runtime.state import State
from mpicoll.tuning import NATIVE

__all__ = ["SEGMENT", "SLOTS", "Area", "Segment", "cut", "has_segments", "run", "sized"]

Bytes = npt.NDArray[np.uint8]

#: Bytes of a segment of the whole vector, and how many of them are under way.
SEGMENT, SLOTS = 4 << 20, 3
#: Segments begin at multiples of as many bytes of a block.
_ALIGNED = 512


class Segment(NamedTuple):
    """A part of every block: its first byte in a block, and its bytes."""

    start: int
    nbytes: int


def cut(block_bytes: int, blocks: int, itemsize: int) -> list[Segment]:
    """The segments of blocks that are equally long.

    Args:
        block_bytes: of one block.
        blocks: how many there are.
        itemsize: bytes that stay together.
    """
    most = max(SEGMENT // blocks // _ALIGNED, 1) * _ALIGNED
    width = most // itemsize * itemsize or itemsize
    return [
        Segment(start, min(width, block_bytes - start)) for start in range(0, block_bytes, width)
    ]


def has_segments(call: Call) -> bool:
    """Whether a call is cut; the same on all ranks."""
    return call.layouts is None and call.buffer is not None and len(_segments(call)) > 1


def _segments(call: Call) -> list[Segment]:
    assert call.buffer is not None
    unit = call.buffer.itemsize if call.reduction is not None else 1
    return cut(call.buffer.block_bytes, call.place.nblocks, unit)


def sized(call: Call) -> int:
    """Bytes of the whole vector in one collective of the host's."""
    return call.nbytes if call.layouts is not None else min(call.nbytes, SEGMENT)


def run(
    state: State,
    prepared: Prepared,
    native: Callable[[Call], None],
    step: runner.Step | None = None,
) -> bool:
    """Run a blocking call in segments; False where it is to go as a whole.

    Args:
        state: of the communicator, all of whose ranks have devices.
        prepared: the call.
        native: runs the MPI library's own collective.
        step: told of every step that ends.

    Raises:
        MemoryError: on all ranks, where one cannot pin what the segments go through.
    """
    call = prepared.call
    assert call is not None and state.gpus is not None
    if not has_segments(call):
        return False
    segments = _segments(call)
    if state.staging is None:
        area, problem = Area.open(state, state.gpus.device)
        state.staging = problem if area is None else area
    if isinstance(state.staging, str):  # a second try would pin no more
        raise MemoryError(state.staging)
    way = _Way(state.staging, call)
    for number in range(1 - SLOTS, len(segments)):
        if number + SLOTS - 1 < len(segments):
            way.leave(number + SLOTS - 1, segments[number + SLOTS - 1])
        if number >= 0:
            part = way.on_host(number, segments[number])
            if prepared.choice.algorithm == NATIVE:
                native(part)
            else:
                shape = part.shape(prepared.choice)
                state.run(shape, *part.memory(), part.reduction, step)
            way.arrive(number, segments[number])
    way.end(len(segments) - 1)
    state.count(prepared.definition.name, prepared.choice.algorithm)
    return True


class _Lane:
    """What orders the copies of one direction: a stream, and an event for each slot.

    Args:
        device: the device at its end.
        inward: whether it leads there, or from there.
    """

    def __init__(self, device: int, inward: bool) -> None:
        functions = driver()
        self.device, self.inward = device, inward
        with functions.on(device):
            self.stream = functions.stream()
            self.ended = [functions.event() for _ in range(SLOTS)]
            self._begun = functions.event()

    def follow(self, array: DeviceArray) -> None:
        """What is put here from now on comes after what is on the array's stream now."""
        functions = driver()
        with functions.on(array.device):
            functions.record(self._begun, array.stream)
            functions.wait(self.stream, self._begun)

    def precede(self, array: DeviceArray, number: int) -> None:
        """What is put on the array's stream from now on comes after the copy of a segment."""
        functions = driver()
        with functions.on(array.device):
            functions.wait(array.stream, self.ended[number % SLOTS])

    def wait_for(self, other: _Lane, number: int) -> None:
        """What is put here from now on comes after the last copy there by a segment's slot."""
        functions = driver()
        with functions.on(self.device):
            functions.wait(self.stream, other.ended[number % SLOTS])

    def await_slot(self, number: int) -> None:
        """Let the host wait for the last copy by a segment's slot."""
        functions = driver()
        with functions.on(self.device):
            functions.await_event(self.ended[number % SLOTS])


class Area:
    """The slots of a rank, in memory that those of its node share, and pinned.

    Each has place for what is sent, and as much for what is received.  Made by :meth:`open`, in the
    first call that is cut: that is the same one on all ranks, and most communicators have none.
    """

    def __init__(self, memory: Bytes, device: int) -> None:
        self._memory = memory
        self._lanes: dict[tuple[int, bool], _Lane] = {}
        self._end = weakref.finalize(self, _unpin, memory, device, self._lanes)
        self._end.atexit = False

    @classmethod
    def open(cls, state: State, device: int) -> tuple[Area | None, str]:
        """Make them; None, and why, on all ranks alike, where one cannot pin them.  Collective."""
        with progress.meanwhile():
            memory = state.windows.take(SLOTS * 2 * SEGMENT)
            problem = _pin(memory, device)
            made = None if problem else cls(memory, device)
            problems = state.private.allgather(problem)
        failed = [rank for rank, text in enumerate(problems) if text]
        if not failed:
            return made, ""
        return None, (
            f"{ranges(failed)} cannot pin {memory.size} bytes of host memory for what "
            f"is in device memory: {problems[failed[0]]}; raise the limit (ulimit -l), or "
            f"send parts of less than {SEGMENT} bytes"
        )

    def lane(self, device: int, inward: bool) -> _Lane:
        """The lane from the slots to a device, or from there."""
        if (device, inward) not in self._lanes:
            self._lanes[device, inward] = _Lane(device, inward)
        return self._lanes[device, inward]

    def inward(self) -> list[_Lane]:
        """The lanes from the slots to devices."""
        return [lane for lane in self._lanes.values() if lane.inward]

    def slot(self, number: int, received: bool) -> Bytes:
        """The memory for what is sent or received of a segment."""
        first = (2 * (number % SLOTS) + received) * SEGMENT
        return self._memory[first : first + SEGMENT]


def _pin(memory: Bytes, device: int) -> str:
    """Pin memory; why it is not possible, "" if it was."""
    functions = driver()
    try:
        with functions.on(device):
            functions.register(memory.ctypes.data, memory.size)
    except CudaError as error:
        return str(error)
    return ""


def _unpin(memory: Bytes, device: int, lanes: dict[tuple[int, bool], _Lane]) -> None:
    """Let memory go, once nothing is copied from or to it any more."""
    if caller.is_forked():
        return
    functions = driver()
    # When the program ends the driver may have ended before.
    with contextlib.suppress(CudaError):
        for lane in lanes.values():
            with functions.on(lane.device):
                functions.synchronize(lane.stream)
        with functions.on(device):
            functions.unregister(memory.ctypes.data)


class _Side:
    """One buffer of a call, and the lane between it and the slots.

    Args:
        buffer: in device memory.
        blocks: those that are copied.
        lane: orders the copies.
    """

    def __init__(self, buffer: Buffer, blocks: Iterable[int], lane: _Lane) -> None:
        assert buffer.device is not None
        self.array, self.lane = buffer.device, lane
        self._base, self._pitch = buffer.memory.ctypes.data, buffer.block_bytes
        self._blocks = [*blocks]

    def copy(self, number: int, segment: Segment, host: Bytes) -> None:
        """Copy a segment, from the device or, of what is received, to it."""
        functions, lane = driver(), self.lane
        with functions.on(lane.device):
            for block in self._blocks:
                there = self._base + block * self._pitch + segment.start
                here = host.ctypes.data + block * segment.nbytes
                pair = (there, here) if lane.inward else (here, there)
                functions.copy(*pair, segment.nbytes, lane.stream)
            functions.record(lane.ended[number % SLOTS], lane.stream)


class _Way:
    """One call on its way through the slots.

    Args:
        area: the slots.
        call: the call, of arrays in device memory.
    """

    def __init__(self, area: Area, call: Call) -> None:
        self._area, self._call = area, call
        send, recv, place = call.send, call.recv, call.place
        self._leaving = self._arriving = None
        if send is not None and send.device is not None:
            blocks = call.definition.held(place) if call.in_place else range(send.blocks)
            self._leaving = _Side(send, blocks, area.lane(send.device.device, inward=False))
        if recv is not None and recv.device is not None and recv.writable:
            blocks = range(recv.blocks)
            if call.in_place:
                # A block alone is at the beginning, wherever it was.
                alone = call.definition.output_alone
                blocks = range(1) if alone else call.definition.wanted(place)
            self._arriving = _Side(recv, blocks, area.lane(recv.device.device, inward=True))
        for side in (self._leaving, self._arriving):
            if side is not None:
                side.lane.follow(side.array)
        self._follow_arrivals()

    def _follow_arrivals(self) -> None:
        """Fill no slot again that a call before, of arrays on other streams, is read from."""
        arriving = None if self._arriving is None else self._arriving.lane
        for lane in self._area.inward():
            for slot in range(SLOTS):
                if self._leaving is not None:
                    self._leaving.lane.wait_for(lane, slot)
                if arriving is not None and lane is not arriving:  # that is awaited in on_host
                    lane.await_slot(slot)

    def leave(self, number: int, segment: Segment) -> None:
        """Let a segment leave the device, once its slot is free."""
        if self._leaving is None:
            return
        lane = self._leaving.lane
        if self._arriving is not None and self._call.in_place:
            lane.wait_for(self._arriving.lane, number)
        self._leaving.copy(number, segment, self._area.slot(number, False))

    def on_host(self, number: int, segment: Segment) -> Call:
        """The call of a segment, which has left its device, on memory of the host."""
        for side in (self._leaving, self._arriving):
            if side is not None:
                side.lane.await_slot(number)
        send = self._part(self._call.send, number, segment, False)
        recv = send
        if self._call.recv is not self._call.send:
            recv = self._part(self._call.recv, number, segment, not self._call.in_place)
        return replace(self._call, send=send, recv=recv)

    def _part(
        self, buffer: Buffer | None, number: int, segment: Segment, received: bool
    ) -> Buffer | None:
        """A segment of a buffer, on the host."""
        if buffer is None:
            return None
        memory = self._area.slot(number, received)[: buffer.blocks * segment.nbytes]
        found = replace(buffer, memory=memory, order="", device=None)
        if self._call.reduction is not None:
            return replace(found, count=segment.nbytes // buffer.itemsize)
        byte = np.dtype(np.uint8)
        return replace(found, count=segment.nbytes, dtype=byte, itemsize=1, datatype=MPI.BYTE)

    def arrive(self, number: int, segment: Segment) -> None:
        """Let a segment go to the device."""
        if self._arriving is not None:
            host = self._area.slot(number, not self._call.in_place)
            self._arriving.copy(number, segment, host)

    def end(self, number: int) -> None:
        """Let the caller's stream wait for the last segment."""
        if self._arriving is not None:
            self._arriving.lane.precede(self._arriving.array, number)
