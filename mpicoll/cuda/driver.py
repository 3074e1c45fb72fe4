"""The few functions of the CUDA driver that bring bytes to the host and back, through ctypes.

Whoever wants to run without a GPU puts an object with the methods of :class:`Driver` in its place,
by :func:`use`.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from typing import Any, NamedTuple, Protocol

__all__ = ["CudaError", "Driver", "Functions", "Place", "driver", "is_wanted", "problem", "use"]

#: The driver's library, which comes with the kernel's module and not with CUDA's toolkit.
_LIBRARY = "libcuda.so.1"
#: Modules of which each can bring arrays in device memory.
_BRINGERS = ("cupy", "torch", "numba.cuda", "jax", "pycuda", "tensorflow")

# Values of the driver's enumerations.
_OUT_OF_MEMORY, _NOT_READY = 2, 600
_POINTER_MEMORY_TYPE, _POINTER_MANAGED, _POINTER_DEVICE = 2, 8, 9
_MEMORY_DEVICE = 2
_EVENT_NO_TIMING, _STREAM_NON_BLOCKING = 2, 1
_HOST_PORTABLE, _PEER_ATOMICS = 1, 3


class CudaError(RuntimeError):
    """What the CUDA driver has reported."""


class Place(NamedTuple):
    """Where an address is.

    Attributes:
        device: number of the device, as CUDA counts in this process.
        managed: whether the driver moves the memory between host and device as it is used.
    """

    device: int
    managed: bool


class Functions(Protocol):
    """What is used of the driver.

    Addresses, streams and events are integers.  Stream 0 is the legacy default one.  Copies,
    records and waits are ordered on their stream; they return at once, but a copy from or to
    memory of the host that is not pinned may wait.  All but ``count`` and ``place`` are for the
    device of the innermost ``on``.
    """

    def count(self) -> int:
        """Number of devices."""

    def current(self) -> int:
        """Number of the device that this thread uses, 0 if it has used none."""

    def uuid(self, device: int) -> str:
        """What names the device on every host and in every process."""

    def name(self, device: int) -> str:
        """The device's name in words."""

    def reaches(self, device: int, other: int) -> str:
        """How a device reads memory of another one, in words; "" if it cannot."""

    def place(self, address: int) -> Place | None:
        """Where an address is; None for memory of the host that CUDA has not given."""

    def on(self, device: int) -> Any:
        """A ``with`` block in which a device is the current one."""

    def pinned(self, nbytes: int) -> int:
        """The address of new pinned memory of the host."""

    def free_pinned(self, address: int) -> None:
        """Free it."""

    def register(self, address: int, nbytes: int) -> None:
        """Pin memory of the host that is there."""

    def unregister(self, address: int) -> None:
        """Do not pin it any more."""

    def allocate(self, nbytes: int, stream: int) -> int:
        """The address of new memory of the device, to be used in the order of a stream."""

    def free(self, address: int, stream: int) -> None:
        """Free it, in the order of a stream."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two addresses, of the host or of devices."""

    def synchronize(self, stream: int) -> None:
        """Wait until all that was put on a stream is done."""

    def stream(self) -> int:
        """A new stream that does not wait for the legacy default one."""

    def event(self) -> int:
        """A new event, which has happened until it is recorded."""

    def free_event(self, event: int) -> None:
        """Free an event."""

    def record(self, event: int, stream: int) -> None:
        """The event happens when all that was put on the stream before is done."""

    def wait(self, stream: int, event: int) -> None:
        """What is put on the stream from now on waits for the event, as recorded last."""

    def happened(self, event: int) -> bool:
        """Whether the event, as recorded last, has happened."""

    def await_event(self, event: int) -> None:
        """Wait until it has."""

    def launch(
        self, function: int, blocks: int, threads: int, arguments: Sequence[Any], stream: int
    ) -> None:
        """Put a kernel on a stream, given the handle of its function and ctypes' values."""


class Driver:
    """The driver of this process.

    Raises:
        OSError: there is none.
        CudaError: it cannot be initialised, for example because no device is there.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self._contexts: dict[int, c_void_p] = {}
        self._call("cuInit", c_uint(0))

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if not status:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({status})")

    def count(self) -> int:
        """See :class:`Functions`, as for all methods."""
        number = c_int()
        self._call("cuDeviceGetCount", byref(number))
        return number.value

    def current(self) -> int:
        device = c_int()
        if self._library.cuCtxGetDevice(byref(device)):  # no context is current
            return 0
        return device.value

    def uuid(self, device: int) -> str:
        found = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid", byref(found), c_int(device))
        return str(uuid.UUID(bytes=bytes(found)))

    def name(self, device: int) -> str:
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, c_int(len(text)), c_int(device))
        return text.value.decode(errors="replace")

    def reaches(self, device: int, other: int) -> str:
        can, atomics = c_int(), c_int()
        self._call("cuDeviceCanAccessPeer", byref(can), c_int(device), c_int(other))
        if not can.value:
            return ""
        self._call(
            "cuDeviceGetP2PAttribute", byref(atomics), _PEER_ATOMICS, c_int(device), c_int(other)
        )
        return "peer access with atomics" if atomics.value else "peer access"

    def place(self, address: int) -> Place | None:
        kind, managed, device = c_uint(), c_int(), c_int()
        get = self._library.cuPointerGetAttribute
        if get(byref(kind), _POINTER_MEMORY_TYPE, c_void_p(address)):
            return None
        get(byref(managed), _POINTER_MANAGED, c_void_p(address))
        if kind.value != _MEMORY_DEVICE and not managed.value:
            return None
        self._check("cuPointerGetAttribute", get(byref(device), _POINTER_DEVICE, c_void_p(address)))
        return Place(device.value, bool(managed.value))

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        context = self._contexts.get(device)
        if context is None:
            # The context that the runtime, and with it every library of arrays, uses.
            context = c_void_p()
            self._call("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
            self._contexts[device] = context
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def pinned(self, nbytes: int) -> int:
        address = c_void_p()
        status = self._library.cuMemHostAlloc(
            byref(address), c_size_t(nbytes), c_uint(_HOST_PORTABLE)
        )
        if status == _OUT_OF_MEMORY:
            raise MemoryError(
                f"no {nbytes} bytes of pinned host memory for a message from or to a GPU; free "
                "some, or send in parts"
            )
        self._check("cuMemHostAlloc", status)
        return address.value or 0

    def free_pinned(self, address: int) -> None:
        self._call("cuMemFreeHost", c_void_p(address))

    def register(self, address: int, nbytes: int) -> None:
        self._call(
            "cuMemHostRegister_v2", c_void_p(address), c_size_t(nbytes), c_uint(_HOST_PORTABLE)
        )

    def unregister(self, address: int) -> None:
        self._call("cuMemHostUnregister", c_void_p(address))

    def allocate(self, nbytes: int, stream: int) -> int:
        address = c_void_p()
        status = self._library.cuMemAllocAsync(
            byref(address), c_size_t(max(nbytes, 1)), c_void_p(stream)
        )
        if status == _OUT_OF_MEMORY:
            raise MemoryError(
                f"no {nbytes} bytes of device memory for an array of another device; free some, "
                "or pass an array of the device that was current when the communicator was built"
            )
        self._check("cuMemAllocAsync", status)
        return address.value or 0

    def free(self, address: int, stream: int) -> None:
        self._call("cuMemFreeAsync", c_void_p(address), c_void_p(stream))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        # Which is where the driver finds out: all addresses of a process are in one space.
        self._call(
            "cuMemcpyAsync", c_void_p(target), c_void_p(source), c_size_t(nbytes), c_void_p(stream)
        )

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", c_void_p(stream))

    def stream(self) -> int:
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), c_uint(_STREAM_NON_BLOCKING))
        return stream.value or 0

    def event(self) -> int:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), c_uint(_EVENT_NO_TIMING))
        return event.value or 0

    def free_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", c_void_p(event))

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", c_void_p(event), c_void_p(stream))

    def wait(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0))

    def happened(self, event: int) -> bool:
        status = self._library.cuEventQuery(c_void_p(event))
        if status != _NOT_READY:
            self._check("cuEventQuery", status)
        return status != _NOT_READY

    def await_event(self, event: int) -> None:
        self._call("cuEventSynchronize", c_void_p(event))

    def launch(
        self, function: int, blocks: int, threads: int, arguments: Sequence[Any], stream: int
    ) -> None:
        addresses = (c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        grid, block = (
            (c_uint(blocks), c_uint(1), c_uint(1)),
            (c_uint(threads), c_uint(1), c_uint(1)),
        )
        self._call(
            "cuLaunchKernel", c_void_p(function), *grid, *block, c_uint(0), c_void_p(stream),
            addresses, None,
        )  # fmt: skip


_used: Functions | None = None
_problem: str | None = None


def is_wanted() -> bool:
    """Whether this program may have arrays in device memory: what makes them is imported."""
    return _used is not None or any(name in sys.modules for name in _BRINGERS)


def problem() -> str:
    """Why there is no driver, "" if there is one."""
    global _used, _problem
    if _used is None and _problem is None:
        try:
            _used = Driver()
        except (OSError, CudaError) as error:
            _problem = str(error)
    return "" if _used is not None else _problem or ""


def driver() -> Functions:
    """The driver of this process.

    Raises:
        CudaError: there is none.
    """
    why = problem()
    if _used is None:
        raise CudaError(f"no CUDA driver: {why}")
    return _used


def use(functions: Functions | None) -> Callable[[], None]:
    """Put something else in the driver's place; what is returned undoes that."""
    global _used, _problem
    before = _used, _problem
    _used, _problem = functions, None

    def undo() -> None:
        global _used, _problem
        _used, _problem = before

    return undo
