"""In which order streams run, and arrays of one device as copies on another.

A collective on GPUs is put on one stream, and everything it uses is ordered by that one: the
streams of its arrays are joined into it before (:func:`stream_after`), and continue after it
(:func:`release_streams`).  Arrays of a device that is not the group's are copied there and back
(:class:`PeerCopies`).  Nothing here lets the host wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpicoll.cuda.arrays import DeviceArray
from mpicoll.cuda.driver import driver

#: The streams on which arrays of other devices are copied to the group's, by device.
_STREAMS: dict[int, int] = {}


def stream_after(device: int, streams: Sequence[int]) -> tuple[int, list[int]]:
    """The first of a device's streams, which waits for what is on the others; and these."""
    first, *others = dict.fromkeys(streams)
    for other in others:
        order((device, other), (device, first))
    return first, others


def release_streams(device: int, first: int, others: Sequence[int]) -> None:
    """Let the others of a device's streams wait for what is on the first."""
    for other in others:
        order((device, first), (device, other))


class PeerCopies:
    """Arrays of another device while a collective uses copies of them on the group's.

    Args:
        device: the group's.
        arrays: those of the caller, or None.

    Attributes:
        arrays: the copies.
        stream: handle of the stream that orders all.
    """

    def __init__(self, device: int, arrays: Sequence[DeviceArray | None]) -> None:
        self._device, self._originals = device, arrays
        self._functions = driver()
        with self._functions.on(device):
            if device not in _STREAMS:
                _STREAMS[device] = self._functions.stream()
        self.stream = _STREAMS[device]
        self.arrays: list[DeviceArray | None] = []

    def __enter__(self) -> PeerCopies:
        try:
            for array in self._originals:
                self.copy_in(array)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, MemoryError):
                raise MemoryError(
                    f"{error}, or pass an array of device {self._device}, which was current when "
                    "the communicator was built"
                ) from None
            raise
        return self

    def copy_in(self, array: DeviceArray | None) -> None:
        """Copy an array to the group's device, once what is on its stream is done."""
        if array is None:
            self.arrays.append(None)
            return
        functions, stream = self._functions, self.stream
        order((array.device, array.stream), (self._device, stream))
        with functions.on(self._device):
            address = functions.allocate(array.nbytes, stream)
            self.arrays.append(array._replace(ptr=address, device=self._device, stream=stream))
            functions.copy(address, array.ptr, array.nbytes, stream)

    def copy_out(self, index: int) -> None:
        """Copy an array back to its device."""
        original, copy = self._originals[index], self.arrays[index]
        assert original is not None and copy is not None
        with self._functions.on(self._device):
            self._functions.copy(original.ptr, copy.ptr, original.nbytes, self.stream)

    def __exit__(self, *arguments: object) -> None:
        functions = self._functions
        with functions.on(self._device):
            for array in self.arrays:
                if array is not None:
                    functions.free(array.ptr, self.stream)
        for array in self._originals:
            if array is not None:
                order((self._device, self.stream), (array.device, array.stream))


def order(first: tuple[int, int], second: tuple[int, int]) -> None:
    """Let the second (device, stream) wait for what is on the first one."""
    functions = driver()
    with functions.on(first[0]):
        event = functions.event()
        functions.record(event, first[1])
    with functions.on(second[0]):
        functions.wait(second[1], event)
        functions.free_event(event)
