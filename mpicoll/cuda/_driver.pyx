"""The CUDA driver, opened at run time: each function of it that mpicoll needs, by a plain call.

Nothing of CUDA is needed to build this, and nothing is opened before :func:`load`.  What is said in
:class:`mpicoll.cuda.driver.Functions` is said there; the other functions are for memory that other
processes map.

What may wait for a GPU lets other threads run: the one that watches the peers' processes ends the
wait where one has died.
"""

import uuid as _uuid

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from mpicoll.errors import CudaError


cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    int RTLD_NOW


cdef void *_library = NULL

# Values of the driver's enumerations.
cdef enum:
    OUT_OF_MEMORY = 2
    NOT_READY = 600
    # attributes of pointers and of pairs of devices
    MEMORY_TYPE = 2
    BUFFER_ID = 7
    IS_MANAGED = 8
    DEVICE_ORDINAL = 9
    IPC_CAPABLE = 10
    ACCESS_BETWEEN = 2
    ATOMICS_BETWEEN = 3
    MEMORY_OF_DEVICE = 2
    # flags
    LAZY_PEER_ACCESS = 1
    HOST_PORTABLE = 1
    HOST_PORTABLE_MAPPED = 3
    EVENT_WITHOUT_TIMING = 2
    STREAM_NON_BLOCKING = 1

cdef enum:
    MOST_ARGUMENTS = 8


cdef int check(int status, const char *what, int64_t one=0, int64_t other=0) except -1 nogil:
    """Raise if a call has failed; `what` says what for, with places for two numbers."""
    cdef const char *text = NULL
    if status:
        with gil:
            calls.error_string(status, &text)
            words = (<bytes> text).decode() if text != NULL else "unknown error"
            subject = (<bytes> what).decode().format(one, other)
            raise CudaError(f"{subject}: {words} (CUDA error {status})")
    return 0


cdef void *symbol(const char *name) except NULL:
    cdef void *found = dlsym(_library, name)
    if found == NULL:
        raise CudaError(f"this CUDA driver has no {name.decode()}; CUDA 11.4 or newer is needed")
    return found


cdef int fill() except -1:
    """Find the driver's functions, in the versions of CUDA 11 and newer."""
    (<void **> &calls.error_string)[0] = symbol(b"cuGetErrorString")
    (<void **> &calls.init)[0] = symbol(b"cuInit")
    (<void **> &calls.device_get)[0] = symbol(b"cuDeviceGet")
    (<void **> &calls.device_get_count)[0] = symbol(b"cuDeviceGetCount")
    (<void **> &calls.device_get_name)[0] = symbol(b"cuDeviceGetName")
    (<void **> &calls.device_get_uuid)[0] = symbol(b"cuDeviceGetUuid_v2")
    (<void **> &calls.device_get_p2p_attribute)[0] = symbol(b"cuDeviceGetP2PAttribute")
    (<void **> &calls.primary_ctx_retain)[0] = symbol(b"cuDevicePrimaryCtxRetain")
    (<void **> &calls.ctx_get_current)[0] = symbol(b"cuCtxGetCurrent")
    (<void **> &calls.ctx_get_device)[0] = symbol(b"cuCtxGetDevice")
    (<void **> &calls.ctx_push)[0] = symbol(b"cuCtxPushCurrent_v2")
    (<void **> &calls.ctx_pop)[0] = symbol(b"cuCtxPopCurrent_v2")
    (<void **> &calls.ctx_synchronize)[0] = symbol(b"cuCtxSynchronize")
    (<void **> &calls.mem_alloc)[0] = symbol(b"cuMemAlloc_v2")
    (<void **> &calls.mem_free)[0] = symbol(b"cuMemFree_v2")
    (<void **> &calls.mem_alloc_async)[0] = symbol(b"cuMemAllocAsync")
    (<void **> &calls.mem_free_async)[0] = symbol(b"cuMemFreeAsync")
    (<void **> &calls.mem_host_alloc)[0] = symbol(b"cuMemHostAlloc")
    (<void **> &calls.mem_free_host)[0] = symbol(b"cuMemFreeHost")
    (<void **> &calls.mem_host_register)[0] = symbol(b"cuMemHostRegister_v2")
    (<void **> &calls.mem_host_unregister)[0] = symbol(b"cuMemHostUnregister")
    (<void **> &calls.mem_get_address_range)[0] = symbol(b"cuMemGetAddressRange_v2")
    (<void **> &calls.ipc_get_mem_handle)[0] = symbol(b"cuIpcGetMemHandle")
    (<void **> &calls.ipc_open_mem_handle)[0] = symbol(b"cuIpcOpenMemHandle_v2")
    (<void **> &calls.ipc_close_mem_handle)[0] = symbol(b"cuIpcCloseMemHandle")
    (<void **> &calls.pointer_get_attribute)[0] = symbol(b"cuPointerGetAttribute")
    (<void **> &calls.memset_d8_async)[0] = symbol(b"cuMemsetD8Async")
    (<void **> &calls.memcpy_async)[0] = symbol(b"cuMemcpyAsync")
    (<void **> &calls.launch_kernel)[0] = symbol(b"cuLaunchKernel")
    (<void **> &calls.event_create)[0] = symbol(b"cuEventCreate")
    (<void **> &calls.event_destroy)[0] = symbol(b"cuEventDestroy_v2")
    (<void **> &calls.event_record)[0] = symbol(b"cuEventRecord")
    (<void **> &calls.event_query)[0] = symbol(b"cuEventQuery")
    (<void **> &calls.event_synchronize)[0] = symbol(b"cuEventSynchronize")
    (<void **> &calls.stream_create)[0] = symbol(b"cuStreamCreate")
    (<void **> &calls.stream_destroy)[0] = symbol(b"cuStreamDestroy_v2")
    (<void **> &calls.stream_synchronize)[0] = symbol(b"cuStreamSynchronize")
    (<void **> &calls.stream_wait_event)[0] = symbol(b"cuStreamWaitEvent")
    (<void **> &calls.stream_is_capturing)[0] = symbol(b"cuStreamIsCapturing")
    (<void **> &calls.stream_get_capture_info)[0] = symbol(b"cuStreamGetCaptureInfo_v2")
    # Since CUDA 12.4; before, getting a function loads it.
    (<void **> &calls.func_load)[0] = dlsym(_library, "cuFuncLoad")
    return 0


def load():
    """Open the driver, and initialise it.

    Raises:
        CudaError: there is none, one that is too old, or one without a device.
    """
    global _library
    if _library != NULL:
        return
    _library = dlopen(b"libcuda.so.1", RTLD_NOW)
    if _library == NULL:
        raise CudaError("libcuda.so.1 cannot be opened")
    try:
        fill()
        with nogil:
            check(calls.init(0), "start of the CUDA driver")
    except BaseException:
        _library = NULL
        raise


# ---- Devices ----


cdef int device_of(int ordinal) except -1:
    cdef int device = 0
    check(calls.device_get(&device, ordinal), "device {}", ordinal)
    return device


def count():
    """Number of devices that this process may use."""
    cdef int number = 0
    check(calls.device_get_count(&number), "number of devices")
    return number


def current():
    """Ordinal of the device that this thread uses, 0 if it has used none."""
    cdef int device = 0
    return 0 if calls.ctx_get_device(&device) else device


def uuid(int ordinal):
    """What names a device on every host and in every process."""
    cdef char name[16]
    check(calls.device_get_uuid(name, device_of(ordinal)), "device {}", ordinal)
    return f"GPU-{_uuid.UUID(bytes=name[:16])}"  # as nvidia-smi says it


def name(int ordinal):
    """A device's name in words."""
    cdef char text[256]
    check(calls.device_get_name(text, sizeof(text), device_of(ordinal)), "device {}", ordinal)
    return (<bytes> text).decode(errors="replace")


def linked(int one, int other):
    """Whether a device can map another's memory, and whether their link has atomic operations."""
    cdef int answers[2]
    for i, attribute in enumerate((ACCESS_BETWEEN, ATOMICS_BETWEEN)):
        check(
            calls.device_get_p2p_attribute(
                &answers[i], attribute, device_of(one), device_of(other)
            ),
            "link of devices {} and {}",
            one,
            other,
        )
    return bool(answers[0]), bool(answers[1])


cdef class On:
    """In a ``with`` block: a device's primary context, which every library of arrays uses."""

    cdef Handle context

    def __enter__(self):
        check(calls.ctx_push(self.context), "context")

    def __exit__(self, *error):
        cdef Handle context
        calls.ctx_pop(&context)


cdef dict _on = {}


def on(int ordinal):
    """A ``with`` block in which a device is the current one."""
    cdef int device, status
    cdef On made = _on.get(ordinal)
    if made is None:
        made, device = On(), device_of(ordinal)
        with nogil:
            status = calls.primary_ctx_retain(&made.context, device)
        check(status, "context of device {}", ordinal)
        _on[ordinal] = made
    return made


def synchronize_device():
    """Wait until the current device has done all that was enqueued."""
    with nogil:
        check(calls.ctx_synchronize(), "synchronize")


# ---- Memory ----


def place(Address address):
    """Ordinal of the device an address is on; None for memory of the host not given by CUDA."""
    cdef uint32_t kind = 0, managed = 0
    cdef int device = 0
    if calls.pointer_get_attribute(&kind, MEMORY_TYPE, address):
        return None
    calls.pointer_get_attribute(&managed, IS_MANAGED, address)
    if kind != MEMORY_OF_DEVICE and not managed:
        return None
    check(calls.pointer_get_attribute(&device, DEVICE_ORDINAL, address), "device of an address")
    return device


def pinned(size_t nbytes):
    """The address of new pinned memory of the host, at which all devices reach it, too."""
    cdef void *address = NULL
    cdef int status
    with nogil:
        status = calls.mem_host_alloc(&address, nbytes, HOST_PORTABLE_MAPPED)
    if status == OUT_OF_MEMORY:
        raise MemoryError(
            f"no {nbytes} bytes of pinned host memory for a message from or to a GPU; free some, "
            "or send in parts"
        )
    check(status, "{} bytes of pinned memory", nbytes)
    return <uintptr_t> address


def free_pinned(uintptr_t address):
    """Free memory of :func:`pinned`."""
    with nogil:
        check(calls.mem_free_host(<void *> address), "free of pinned memory")


def register(uintptr_t address, size_t nbytes):
    """Pin memory of the host that is there."""
    with nogil:
        check(
            calls.mem_host_register(<void *> address, nbytes, HOST_PORTABLE),
            "pinning of {} bytes",
            nbytes,
        )


def unregister(uintptr_t address):
    """Do not pin it any more."""
    with nogil:
        check(calls.mem_host_unregister(<void *> address), "unpinning")


def allocate(size_t nbytes, uintptr_t stream):
    """The address of new memory of the device, to be used in the order of a stream."""
    cdef Address address = 0
    cdef int status
    with nogil:
        status = calls.mem_alloc_async(&address, nbytes or 1, <Handle> stream)
    if status == OUT_OF_MEMORY:
        raise MemoryError(f"no {nbytes} bytes of device memory; free some")
    check(status, "{} bytes of device memory", nbytes)
    return address


def free(Address address, uintptr_t stream):
    """Free memory of :func:`allocate`, in the order of a stream."""
    with nogil:
        check(calls.mem_free_async(address, <Handle> stream), "free")


def copy(Address target, Address source, size_t nbytes, uintptr_t stream):
    """Copy between any two addresses: all of a process are in one space."""
    with nogil:
        check(
            calls.memcpy_async(target, source, nbytes, <Handle> stream), "copy of {} bytes", nbytes
        )


def read(Address address, size_t nbytes, uintptr_t stream):
    """Bytes of device memory, once all that was put on a stream is done."""
    cdef char *memory = <char *> PyMem_Malloc(nbytes or 1)
    if memory == NULL:
        raise MemoryError
    try:
        copy(<uintptr_t> memory, address, nbytes, stream)
        synchronize(stream)
        return memory[:nbytes]
    finally:
        PyMem_Free(memory)


def write(Address address, bytes data not None, uintptr_t stream):
    """Set device memory, in the order of a stream; it is done when this returns."""
    copy(address, <uintptr_t> <const char *> data, len(data), stream)
    synchronize(stream)


def clear(Address address, size_t nbytes, uintptr_t stream):
    """Set device memory to zero, in the order of a stream."""
    with nogil:
        check(calls.memset_d8_async(address, 0, nbytes, <Handle> stream), "memset")


# ---- Memory that other processes map ----


def allocate_mappable(size_t nbytes):
    """Memory of the current device outside every pool, which other processes can map; not set."""
    cdef Address address = 0
    with nogil:
        check(calls.mem_alloc(&address, nbytes), "{} bytes of device memory", nbytes)
    return address


def free_mappable(Address address):
    """Free memory of :func:`allocate_mappable`."""
    with nogil:
        check(calls.mem_free(address), "free")


def address_range(Address address):
    """Base and length of the allocation that an address is in."""
    cdef Address base = 0
    cdef size_t length = 0
    check(calls.mem_get_address_range(&base, &length, address), "address range")
    return base, length


def buffer_id(Address address):
    """The number of an allocation, never used twice in a process."""
    cdef uint64_t number = 0
    check(calls.pointer_get_attribute(&number, BUFFER_ID, address), "buffer id")
    return number


def exportable(Address address):
    """Whether another process can map this memory by its handle.

    It cannot where the memory comes from a stream-ordered pool, from virtual memory management, or
    is managed.
    """
    cdef uint32_t capable = 0, managed = 0
    check(calls.pointer_get_attribute(&capable, IPC_CAPABLE, address), "kind of memory")
    check(calls.pointer_get_attribute(&managed, IS_MANAGED, address), "kind of memory")
    return bool(capable) and not managed


def export(Address address):
    """The handle by which another process maps an allocation."""
    cdef IpcHandle handle
    check(calls.ipc_get_mem_handle(&handle, address), "handle of device memory")
    return handle.bytes[:64]


def map(bytes handle not None):
    """Where an allocation of another process lies in this one."""
    cdef IpcHandle given
    cdef Address address = 0
    if len(handle) != sizeof(IpcHandle):
        raise ValueError(f"a handle has {sizeof(IpcHandle)} bytes, not {len(handle)}")
    memcpy(&given, <const char *> handle, sizeof(IpcHandle))
    with nogil:
        check(
            calls.ipc_open_mem_handle(&address, given, LAZY_PEER_ACCESS),
            "mapping of another process's memory",
        )
    return address


def unmap(Address address):
    """Undo :func:`map`."""
    with nogil:
        check(calls.ipc_close_mem_handle(address), "unmapping")


# ---- Streams, events and kernels ----


def stream():
    """A new stream that does not wait for the legacy default one."""
    cdef Handle made = NULL
    check(calls.stream_create(&made, STREAM_NON_BLOCKING), "stream")
    return <uintptr_t> made


def free_stream(uintptr_t stream):
    """Free a stream; what was put on it goes on."""
    check(calls.stream_destroy(<Handle> stream), "stream")


def synchronize(uintptr_t stream):
    """Wait until all that was put on a stream is done."""
    with nogil:
        check(calls.stream_synchronize(<Handle> stream), "synchronize")


def capturing(uintptr_t stream):
    """Whether a stream is being captured for a graph."""
    cdef int answer = 0
    check(calls.stream_is_capturing(<Handle> stream, &answer), "stream")
    return answer != 0


def event():
    """A new event, which has happened until it is recorded."""
    cdef Handle made = NULL
    check(calls.event_create(&made, EVENT_WITHOUT_TIMING), "event")
    return <uintptr_t> made


def free_event(uintptr_t event):
    """Free an event."""
    check(calls.event_destroy(<Handle> event), "event")


def record(uintptr_t event, uintptr_t stream):
    """The event happens when all that was put on the stream before is done."""
    with nogil:
        check(calls.event_record(<Handle> event, <Handle> stream), "event")


def wait(uintptr_t stream, uintptr_t event):
    """What is put on the stream from now on waits for the event, as recorded last."""
    with nogil:
        check(calls.stream_wait_event(<Handle> stream, <Handle> event, 0), "event")


def happened(uintptr_t event):
    """Whether the event, as recorded last, has happened."""
    cdef int status = calls.event_query(<Handle> event)
    if status != NOT_READY:
        check(status, "event")
    return status != NOT_READY


def await_event(uintptr_t event):
    """Wait until it has."""
    with nogil:
        check(calls.event_synchronize(<Handle> event), "event")


def make_ready(uintptr_t function):
    """Load a kernel now: doing so later may wait for a kernel that waits for this process."""
    if calls.func_load != NULL:
        check(calls.func_load(<Handle> function), "loading of a kernel")


def launch(
    uintptr_t function, unsigned blocks, unsigned threads, tuple arguments not None,
    uintptr_t stream,
):
    """Put a kernel on a stream, given the handle of its function and whole numbers.

    A kernel's shorter parameters are read from the first bytes of a number.
    """
    cdef uint64_t values[MOST_ARGUMENTS]
    cdef void *addresses[MOST_ARGUMENTS]
    if len(arguments) > MOST_ARGUMENTS:
        raise ValueError(f"{len(arguments)} arguments, at most {MOST_ARGUMENTS} are served")
    for i, argument in enumerate(arguments):
        values[i] = argument
        addresses[i] = &values[i]
    with nogil:
        check(
            calls.launch_kernel(
                <Handle> function, blocks, 1, 1, threads, 1, 1, 0, <Handle> stream, addresses, NULL
            ),
            "launch",
        )
