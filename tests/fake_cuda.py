"""A CUDA driver without a GPU: what the tests put in the driver's place.

Device memory has addresses at which nothing is mapped, so whoever looks at them on the host dies.
What is put on a stream happens as late as it may (``lazy``), at once (``eager``), or in between,
in a random order that the streams and events allow (``random``).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import threading
import types
import weakref

import numpy as np

from mpicoll.cuda import driver
from mpicoll.errors import CudaError

#: No process has memory there.
BASE = 0x7FF0_0000_0000_0000


@contextlib.contextmanager
def in_its_place(**arguments):
    """A :class:`FakeDriver` in the driver's place, until what it serves is gone."""
    made = FakeDriver(**arguments)
    undo = driver.use(made)
    yield made
    gc.collect()
    undo()


class FakeDriver:
    """See :class:`mpicoll.cuda.driver.Functions`.

    Args:
        devices: how many there are.
        how: when what is put on a stream happens.
        uuids: of the devices.
        seed: of a random order.
    """

    def __init__(self, devices=2, how="lazy", uuids=None, seed=0):
        self.devices, self.how = devices, how
        self.uuids = uuids or [f"GPU-{number}" for number in range(devices)]
        self.memory = {}  # base: (bytes, device)
        self.host = {}  # pinned by this driver
        self.registered = {}
        self.streams = {}  # handle: operations that have not happened
        self.events = {}  # handle: (number of records, number that have happened)
        self.tags = {}
        self.captured = set()  # streams
        self.stack = [0]
        self.next = BASE
        self.handle = 16
        self.random = random.Random(seed)
        self.lock = threading.RLock()
        self.copied = 0
        self.limit = None  # bytes of pinned memory

    # --- devices ---

    def count(self):
        return self.devices

    def current(self):
        return self.stack[-1]

    def uuid(self, device):
        return self.uuids[device]

    def name(self, device):
        return f"Fake {device}"

    def linked(self, device, other):
        return self.uuids[device] != self.uuids[other], False

    @contextlib.contextmanager
    def on(self, device):
        if not 0 <= device < self.devices:
            raise CudaError(f"no device {device}")
        with self.lock:
            self.stack.append(device)
            try:
                yield
            finally:
                self.stack.pop()

    # --- memory ---

    def array(self, values, device=0, stream=0, order="C"):
        """An array in device memory with these values."""
        return FakeArray(self, np.asarray(values, order=order), device, stream)

    def empty(self, nbytes, device):
        with self.lock:
            base = self.next
            self.next += (nbytes + 4095) // 4096 * 4096 + 4096
            self.memory[base] = np.full(nbytes, 0xA5, np.uint8), device
        return base

    def place(self, address):
        found = self.find(address, 0)
        return None if found is None else found[1]

    def find(self, address, nbytes):
        """Bytes of device memory, and the device; None where there is none."""
        for base, (memory, device) in self.memory.items():
            if base <= address < base + max(memory.size, 1):
                assert address + nbytes <= base + memory.size, "beyond the end of an array"
                return memory[address - base : address - base + nbytes], device
        return None

    def allocate(self, nbytes, stream):
        return self.empty(nbytes, self.current())

    def free(self, address, stream):
        self._put(stream, lambda: self.memory.pop(address))

    def pinned(self, nbytes):
        if self.limit is not None and sum(m.size for m in self.host.values()) + nbytes > self.limit:
            raise MemoryError(f"no {nbytes} bytes of pinned host memory")
        memory = np.full(nbytes + 64, 0x5A, np.uint8)
        address = memory.ctypes.data
        self.host[address] = memory
        return address

    def free_pinned(self, address):
        del self.host[address]

    def register(self, address, nbytes):
        assert address not in self.registered
        self.registered[address] = nbytes

    def unregister(self, address):
        del self.registered[address]

    def is_pinned(self, address, nbytes):
        spans = [(base, memory.size) for base, memory in self.host.items()]
        spans += self.registered.items()
        return any(base <= address and address + nbytes <= base + size for base, size in spans)

    # --- streams ---

    def copy(self, target, source, nbytes, stream):
        views = [self._view(address, nbytes) for address in (target, source)]

        def happen():
            np.copyto(*views)
            self.copied += nbytes

        self._put(stream, happen)

    def _view(self, address, nbytes):
        found = self.find(address, nbytes)
        if found is not None:
            return found[0]
        assert self.is_pinned(address, nbytes), "memory of the host that is not pinned"
        return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)

    def _put(self, stream, operation):
        with self.lock:
            self.streams.setdefault(stream, []).append(operation)
            if self.how == "eager":
                self._drain(stream)
            elif self.how == "random":
                self._some()

    def _drain(self, stream, until=lambda: False):
        with self.lock:
            queue = self.streams.setdefault(stream, [])
            while queue and not until():
                queue[0]()
                queue.pop(0)

    def _some(self):
        with self.lock:
            stream = self.random.choice([*self.streams])
            stop = self.random.randrange(3)
            queue = self.streams[stream]
            left = max(0, len(queue) - stop)
            self._drain(stream, lambda: len(queue) <= left)

    def synchronize(self, stream):
        self._drain(stream)

    def stream(self):
        self.handle += 1
        self.streams[self.handle] = []
        return self.handle

    def free_stream(self, stream):
        self.streams.pop(stream)

    def capturing(self, stream):
        return stream in self.captured

    def event(self):
        self.handle += 1
        self.events[self.handle] = [0, 0]
        return self.handle

    def free_event(self, event):
        # As CUDA has it: what waits for it is not disturbed.
        self.tags.pop(event, None)
        del self.events[event]

    def record(self, event, stream):
        assert stream not in self.captured  # whoever asks for such an event later fails
        state = self.events[event]
        state[0] += 1
        number = state[0]
        self.tags[event] = stream

        def happen():
            state[1] = max(state[1], number)

        self._put(stream, happen)

    def wait(self, stream, event):
        state, number, source = self.events[event], self.events[event][0], self.tags.get(event)

        def happen():
            self._drain(source, lambda: state[1] >= number)
            assert state[1] >= number

        if number:
            self._put(stream, happen)

    def happened(self, event):
        if self.streams:
            self._some()
        state = self.events[event]
        return state[1] >= state[0]

    def await_event(self, event):
        state = self.events[event]
        if state[1] < state[0]:
            self._drain(self.tags[event], lambda: state[1] >= state[0])


class FakeArray:
    """An array in device memory, as CuPy has it."""

    def __init__(self, functions, values, device, stream):
        self.functions, self.device, self.stream = functions, device, stream
        self.shape, self.dtype, self.strides = values.shape, values.dtype, values.strides
        self.ndim = values.ndim
        self.ptr = functions.empty(values.nbytes, device)
        self._order = "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"
        functions.memory[self.ptr][0][:] = values.ravel(order="K").view(np.uint8)

    @property
    def __cuda_array_interface__(self):
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": None if self._order == "C" else self.strides,
            "data": (self.ptr if self.dtype.itemsize * np.prod(self.shape) else 0, False),
            "stream": self.stream or 1,  # which is the same stream, and 0 may not be said
        }

    def get(self):
        """The values, once what is on the stream is done."""
        self.functions.synchronize(self.stream)
        memory = self.functions.memory[self.ptr][0]
        return memory.view(self.dtype).reshape(self.shape, order=self._order).copy(self._order)

    def set(self, values):
        """Values, in the order of the stream."""
        values = np.asarray(values, self.dtype).ravel(order=self._order).view(np.uint8).copy()
        memory = self.functions.memory[self.ptr][0]
        self.functions._put(self.stream, lambda: np.copyto(memory, values))

    def __del__(self):
        self.functions.memory.pop(self.ptr, None)


class FakeCupy:
    """What packs on a device, as CuPy does: to be imported as that.

    Memory that is given back is used by nobody but in the order of the stream that it was taken on.

    Args:
        functions: the driver whose memory and streams it uses.
    """

    def __init__(self, functions):
        self.functions, self.current = functions, [0]
        self.ndarray = type("ndarray", (_View,), {"cupy": self})
        self.cuda = types.SimpleNamespace(
            Device=functions.on,
            ExternalStream=self._on,
            Stream=types.SimpleNamespace(null=_Null(self)),
            UnownedMemory=lambda address, nbytes, owner, device: (address, owner),
            MemoryPointer=lambda memory, offset: types.SimpleNamespace(
                ptr=memory[0] + offset, memory=memory
            ),
            get_current_stream=lambda device: types.SimpleNamespace(ptr=self.current[-1]),
        )

    @contextlib.contextmanager
    def _on(self, stream):
        self.current.append(stream)
        try:
            yield
        finally:
            self.current.pop()

    def empty(self, count, dtype):
        """New memory."""
        nbytes, stream = count * np.dtype(dtype).itemsize, self.current[-1]
        address = self.functions.empty(nbytes, self.functions.current())
        made = self.ndarray((count,), dtype, types.SimpleNamespace(ptr=address), None)
        weakref.finalize(made, self.functions.free, address, stream).atexit = False
        return made

    def asarray(self, values):
        """An index, which is where it is used."""
        return np.array(values)

    def view(self, array, index):
        """A part of a `FakeArray`, which is kept by it."""
        part = np.empty(array.shape, array.dtype, order=array._order)
        offset = part[index].ctypes.data - part.ctypes.data
        memory = types.SimpleNamespace(ptr=array.ptr + offset, memory=array)
        return self.ndarray(part[index].shape, array.dtype, memory, part[index].strides)


class _Null(contextlib.AbstractContextManager):
    def __init__(self, cupy):
        self.cupy = cupy

    def __enter__(self):
        self.cupy.current.append(0)

    def __exit__(self, *error):
        self.cupy.current.pop()


class _View:
    """An array of CuPy's: what is done to it is done in the order of the current stream."""

    def __init__(self, shape, dtype, pointer, strides):
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), pointer
        plain = np.empty(shape, dtype)
        self.strides = plain.strides if strides is None else strides
        self.ndim, self.nbytes, self._c_contiguous = plain.ndim, plain.nbytes, strides is None
        self.stream = 0

    @property
    def __cuda_array_interface__(self):
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": self.strides,
            "data": (self.data.ptr, False),
            "stream": self.stream or 1,
        }

    def _on_host(self):
        memory = self.cupy.functions.memory
        base = max(base for base in memory if base <= self.data.ptr)
        offset = self.data.ptr - base
        return np.ndarray(self.shape, self.dtype, memory[base][0].data, offset, self.strides)

    def __getitem__(self, index):
        return lambda: self._on_host()[index]

    def __setitem__(self, index, value):
        def happen():
            self._on_host()[index] = value() if callable(value) else value._on_host()

        functions = self.cupy.functions
        functions._put(self.cupy.current[-1], happen)

    def get(self):
        """The values, once what is on the stream is done."""
        self.cupy.functions.synchronize(self.stream)
        return self._on_host().copy()
