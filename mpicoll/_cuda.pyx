"""The CUDA driver, opened at run time, and the short way from a call to a launch.

Nothing of CUDA is needed to build this, and nothing is opened before :func:`load`.

What may wait for a GPU lets other threads run: the one that watches the peers' processes ends the
wait where one has died.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset


cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    int RTLD_NOW


ctypedef uint64_t Address  # CUdeviceptr
ctypedef void *Handle  # of contexts, functions, streams and events

cdef struct IpcHandle:
    char bytes[64]

# The driver's functions, by their names; versions as of CUDA 11 and newer.
cdef int (*error_string)(int, const char **) noexcept nogil
cdef int (*device_get)(int *, int) noexcept nogil
cdef int (*device_count)(int *) noexcept nogil
cdef int (*device_uuid)(char *, int) noexcept nogil
cdef int (*p2p_attribute)(int *, int, int, int) noexcept nogil
cdef int (*ctx_get_current)(Handle *) noexcept nogil
cdef int (*ctx_push)(Handle) noexcept nogil
cdef int (*ctx_pop)(Handle *) noexcept nogil
cdef int (*ctx_synchronize)() noexcept nogil
cdef int (*mem_alloc)(Address *, size_t) noexcept nogil
cdef int (*mem_free)(Address) noexcept nogil
cdef int (*mem_host_alloc)(void **, size_t, unsigned) noexcept nogil
cdef int (*mem_free_host)(void *) noexcept nogil
cdef int (*address_range_of)(Address *, size_t *, Address) noexcept nogil
cdef int (*ipc_get)(IpcHandle *, Address) noexcept nogil
cdef int (*ipc_open)(Address *, IpcHandle, unsigned) noexcept nogil
cdef int (*ipc_close)(Address) noexcept nogil
cdef int (*pointer_attribute)(void *, int, Address) noexcept nogil
cdef int (*memset_d8)(Address, unsigned char, size_t) noexcept nogil
cdef int (*copy_to_host)(void *, Address, size_t) noexcept nogil
cdef int (*copy_to_device)(Address, const void *, size_t) noexcept nogil
cdef int (*func_load)(Handle) noexcept nogil
cdef int (*launch_kernel)(
    Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **,
    void **
) noexcept nogil
cdef int (*event_create)(Handle *, unsigned) noexcept nogil
cdef int (*event_destroy)(Handle) noexcept nogil
cdef int (*event_record)(Handle, Handle) noexcept nogil
cdef int (*stream_wait_event)(Handle, Handle, unsigned) noexcept nogil
cdef int (*stream_is_capturing)(Handle, int *) noexcept nogil

cdef void *_library = NULL

# Attributes of pointers and of pairs of devices, flags.
cdef enum:
    BUFFER_ID = 7
    IS_MANAGED = 8
    IPC_CAPABLE = 13
    ATOMICS_BETWEEN = 3
    ACCESS_BETWEEN = 2
    LAZY_PEER_ACCESS = 1
    HOST_PORTABLE_MAPPED = 3
    EVENT_WITHOUT_TIMING = 2


class DriverError(RuntimeError):
    """The CUDA driver has reported an error."""


cdef int check(int status, str what) except -1:
    cdef const char *text = NULL
    if status:
        error_string(status, &text)
        words = (<bytes> text).decode() if text != NULL else "unknown error"
        raise DriverError(f"{what}: {words} (CUDA error {status})")
    return 0


cdef void *symbol(const char *name) except NULL:
    cdef void *found = dlsym(_library, name)
    if found == NULL:
        raise DriverError(f"this CUDA driver has no {name.decode()}; CUDA 11.4 or newer is needed")
    return found


def load():
    """Open the driver.

    Raises:
        DriverError: there is none, or one that is too old.
    """
    global _library, error_string, device_get, device_count, device_uuid, p2p_attribute
    global ctx_get_current, ctx_push, ctx_pop, ctx_synchronize, mem_alloc, mem_free
    global mem_host_alloc, mem_free_host, address_range_of, ipc_get, ipc_open, ipc_close
    global pointer_attribute, memset_d8, copy_to_host, copy_to_device, func_load, launch_kernel
    global event_create, event_destroy, event_record, stream_wait_event, stream_is_capturing
    if _library != NULL:
        return
    _library = dlopen(b"libcuda.so.1", RTLD_NOW)
    if _library == NULL:
        raise DriverError("there is no CUDA driver (libcuda.so.1)")
    try:
        error_string = <int (*)(int, const char **) noexcept nogil> symbol(b"cuGetErrorString")
        device_get = <int (*)(int *, int) noexcept nogil> symbol(b"cuDeviceGet")
        device_count = <int (*)(int *) noexcept nogil> symbol(b"cuDeviceGetCount")
        device_uuid = <int (*)(char *, int) noexcept nogil> symbol(b"cuDeviceGetUuid_v2")
        p2p_attribute = <int (*)(int *, int, int, int) noexcept nogil> symbol(
            b"cuDeviceGetP2PAttribute")
        ctx_get_current = <int (*)(Handle *) noexcept nogil> symbol(b"cuCtxGetCurrent")
        ctx_push = <int (*)(Handle) noexcept nogil> symbol(b"cuCtxPushCurrent_v2")
        ctx_pop = <int (*)(Handle *) noexcept nogil> symbol(b"cuCtxPopCurrent_v2")
        ctx_synchronize = <int (*)() noexcept nogil> symbol(b"cuCtxSynchronize")
        mem_alloc = <int (*)(Address *, size_t) noexcept nogil> symbol(b"cuMemAlloc_v2")
        mem_free = <int (*)(Address) noexcept nogil> symbol(b"cuMemFree_v2")
        mem_host_alloc = <int (*)(void **, size_t, unsigned) noexcept nogil> symbol(
            b"cuMemHostAlloc")
        mem_free_host = <int (*)(void *) noexcept nogil> symbol(b"cuMemFreeHost")
        address_range_of = <int (*)(Address *, size_t *, Address) noexcept nogil> symbol(
            b"cuMemGetAddressRange_v2")
        ipc_get = <int (*)(IpcHandle *, Address) noexcept nogil> symbol(b"cuIpcGetMemHandle")
        ipc_open = <int (*)(Address *, IpcHandle, unsigned) noexcept nogil> symbol(
            b"cuIpcOpenMemHandle_v2")
        ipc_close = <int (*)(Address) noexcept nogil> symbol(b"cuIpcCloseMemHandle")
        pointer_attribute = <int (*)(void *, int, Address) noexcept nogil> symbol(
            b"cuPointerGetAttribute")
        memset_d8 = <int (*)(Address, unsigned char, size_t) noexcept nogil> symbol(
            b"cuMemsetD8_v2")
        copy_to_host = <int (*)(void *, Address, size_t) noexcept nogil> symbol(
            b"cuMemcpyDtoH_v2")
        copy_to_device = <int (*)(Address, const void *, size_t) noexcept nogil> symbol(
            b"cuMemcpyHtoD_v2")
        launch_kernel = <int (*)(
            Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
            void **, void **
        ) noexcept nogil> symbol(b"cuLaunchKernel")
        event_create = <int (*)(Handle *, unsigned) noexcept nogil> symbol(b"cuEventCreate")
        event_destroy = <int (*)(Handle) noexcept nogil> symbol(b"cuEventDestroy_v2")
        event_record = <int (*)(Handle, Handle) noexcept nogil> symbol(b"cuEventRecord")
        stream_wait_event = <int (*)(Handle, Handle, unsigned) noexcept nogil> symbol(
            b"cuStreamWaitEvent")
        stream_is_capturing = <int (*)(Handle, int *) noexcept nogil> symbol(
            b"cuStreamIsCapturing")
        # Since CUDA 12.4; before, getting a function loads it.
        func_load = <int (*)(Handle) noexcept nogil> dlsym(_library, b"cuFuncLoad")
    except BaseException:
        _library = NULL
        raise


def uuid(int ordinal):
    """The 16 bytes that name a device everywhere."""
    cdef int device
    cdef char name[16]
    check(device_get(&device, ordinal), f"device {ordinal}")
    check(device_uuid(name, device), f"device {ordinal}")
    return name[:16]


def uuids():
    """The names of all devices that this process may use, in order."""
    cdef int count
    check(device_count(&count), "number of devices")
    return [uuid(ordinal) for ordinal in range(count)]


def linked(int one, int other):
    """Whether a device can map another's memory, and whether their link has atomic operations."""
    cdef int devices[2]
    cdef int answers[2]
    check(device_get(&devices[0], one), f"device {one}")
    check(device_get(&devices[1], other), f"device {other}")
    for i, attribute in enumerate((ACCESS_BETWEEN, ATOMICS_BETWEEN)):
        check(
            p2p_attribute(&answers[i], attribute, devices[0], devices[1]),
            f"link of devices {one} and {other}",
        )
    return bool(answers[0]), bool(answers[1])


def allocate(size_t nbytes, bint cleared=True):
    """Memory of the current device outside every pool.

    ``cleared``: set to zero, in the order of the legacy default stream.
    """
    cdef Address address = 0
    cdef int status
    with nogil:
        status = mem_alloc(&address, nbytes)
    check(status, f"{nbytes} bytes of device memory")
    if cleared:
        check(memset_d8(address, 0, nbytes), "memset")
    return address


def free(Address address):
    """Free memory of :func:`allocate`."""
    cdef int status
    with nogil:
        status = mem_free(address)
    check(status, "free")


def allocate_host(size_t nbytes):
    """Memory of the host, set to zero, that all devices reach at the same address."""
    cdef void *address = NULL
    check(
        mem_host_alloc(&address, nbytes, HOST_PORTABLE_MAPPED), f"{nbytes} bytes of pinned memory"
    )
    memset(address, 0, nbytes)
    return <uintptr_t> address


def free_host(uintptr_t address):
    """Free memory of :func:`allocate_host`."""
    cdef int status
    with nogil:
        status = mem_free_host(<void *> address)
    check(status, "free of pinned memory")


def address_range(Address address):
    """Base and length of the allocation that an address is in."""
    cdef Address base
    cdef size_t length
    check(address_range_of(&base, &length, address), "address range")
    return base, length


def buffer_id(Address address):
    """The number of an allocation, never used twice in a process."""
    cdef uint64_t number
    check(pointer_attribute(&number, BUFFER_ID, address), "buffer id")
    return number


def exportable(Address address):
    """Whether another process can map this memory by its handle.

    It cannot where the memory comes from a stream-ordered pool, from virtual memory management, or
    is managed.
    """
    cdef uint32_t capable = 0, managed = 0
    check(pointer_attribute(&capable, IPC_CAPABLE, address), "kind of memory")
    check(pointer_attribute(&managed, IS_MANAGED, address), "kind of memory")
    return bool(capable) and not managed


def export(Address address):
    """The handle by which another process maps an allocation."""
    cdef IpcHandle handle
    check(ipc_get(&handle, address), "handle of device memory")
    return handle.bytes[:64]


def map(bytes handle not None):
    """Where an allocation of another process lies in this one."""
    cdef IpcHandle given
    cdef Address address = 0
    cdef int status
    if len(handle) != sizeof(IpcHandle):
        raise ValueError(f"a handle has {sizeof(IpcHandle)} bytes, not {len(handle)}")
    memcpy(&given, <const char *> handle, sizeof(IpcHandle))
    with nogil:
        status = ipc_open(&address, given, LAZY_PEER_ACCESS)
    check(status, "mapping of another process's memory")
    return address


def unmap(Address address):
    """Undo :func:`map`."""
    cdef int status
    with nogil:
        status = ipc_close(address)
    check(status, "unmapping")


def read(Address address, size_t nbytes):
    """Bytes of device memory, once everything before has run."""
    cdef int status
    cdef char *memory = <char *> PyMem_Malloc(nbytes or 1)
    if memory == NULL:
        raise MemoryError
    try:
        with nogil:
            status = copy_to_host(memory, address, nbytes)
        check(status, "copy to the host")
        return memory[:nbytes]
    finally:
        PyMem_Free(memory)


def write(Address address, bytes data not None):
    """Set device memory."""
    cdef const char *bytes_of = data
    cdef size_t nbytes = len(data)
    cdef int status
    with nogil:
        status = copy_to_device(address, bytes_of, nbytes)
        if not status:
            status = ctx_synchronize()  # it may still be on its way
    check(status, "copy to the device")


def capturing(uintptr_t stream):
    """Whether a stream is being captured for a graph."""
    cdef int answer = 0
    check(stream_is_capturing(<Handle> stream, &answer), "stream")
    return answer != 0


def synchronize():
    """Wait until the current device has done all that was enqueued."""
    cdef int status
    with nogil:
        status = ctx_synchronize()
    check(status, "synchronize")


def make_ready(uintptr_t function):
    """Load a kernel now: doing so later may wait for a kernel that waits for this process."""
    if func_load != NULL:
        check(func_load(<Handle> function), "loading of a kernel")


# ---- Launches ----


cdef enum:
    MOST = 64  # ranks
    KNOWN = 256  # calls that are remembered
    WAYS = 8  # places that one of them may have
    REGISTERED = 256  # registered allocations
    ABSENT = -1
    IN_PLACE = -2
    NOT_REGISTERED = 0
    NOT_NEEDED = -1


cdef struct Alarm:
    # See exchange.cuh.
    uint32_t stop
    uint32_t raised
    uint32_t peer
    uint32_t pad
    uint64_t step


cdef struct Args:
    # The same as in exchange.cuh.
    uint64_t send
    uint64_t recv
    int64_t n
    int64_t send_stride
    int64_t recv_stride
    uint64_t sends
    uint64_t members
    uint64_t targets
    int64_t total
    uint64_t steps
    uint64_t alarm
    uint64_t limit
    int64_t slot
    int64_t first
    int64_t channels
    int64_t second
    int rank
    int kind
    uint64_t keys[2]
    uint64_t table
    int64_t source
    int64_t target
    int64_t length
    int64_t stride
    uint64_t pulls
    uint64_t gives
    uint64_t window[MOST]


cdef struct Key:
    # What decides a call of one communicator, without addresses.
    uint64_t collective
    uint64_t op
    uint64_t dtype
    int64_t root
    int64_t lengths[2]


cdef struct Known:
    Key key
    Args args
    Handle function
    unsigned blocks
    unsigned threads
    bint registered  # whether the kernel asks for keys
    bint needed[2]
    int sources[2]  # the buffers' place in the call: 0 or 1, -1 for none
    int64_t shift  # from the send buffer's address
    bint used


cdef struct Region:
    uint64_t start
    uint64_t end
    uint64_t key


cdef class Launcher:
    """Enqueues the collectives of one communicator.

    Args:
        device: ordinal of this rank's device, whose context is current.
        rank: this rank's number.
        windows: where the windows of all ranks are mapped here.
        alarm, table: addresses, see exchange.cuh.
        channels: of packets and in bulk: address of the steps, number of channels, bytes of a slot,
            offset of the slots, offset of those of a second phase from them.
        limit: nanoseconds that a wait may take.
        array: CuPy's array type.
        in_place: MPI.IN_PLACE.
        current: returns CuPy's current stream, an object with `ptr`.
    """

    cdef Known *known
    cdef Region regions[REGISTERED]
    cdef int region_count
    cdef Args common
    cdef Alarm *alarm
    cdef Handle context, event, last
    cdef bint has_last, marked  # marked: the event has been recorded after the last call
    cdef object held, array, in_place, current
    cdef list kept
    cdef tuple channels
    cdef public bint open
    cdef readonly int device
    cdef readonly uint64_t launches

    def __cinit__(
        self, int device, int rank, windows, uint64_t alarm, uint64_t table, channels,
        uint64_t limit, array, in_place, current,
    ):
        self.known = <Known *> PyMem_Malloc(KNOWN * sizeof(Known))
        if self.known == NULL:
            raise MemoryError
        memset(self.known, 0, KNOWN * sizeof(Known))
        memset(&self.common, 0, sizeof(Args))
        if len(windows) > MOST:
            raise ValueError(f"{len(windows)} ranks, at most {MOST} are served")
        for i, window in enumerate(windows):
            self.common.window[i] = window
        self.common.rank, self.common.alarm = rank, alarm
        self.common.table, self.common.limit = table, limit
        self.channels = channels
        self.alarm = <Alarm *> <uintptr_t> alarm
        self.device, self.array, self.in_place = device, array, in_place
        self.current = current
        self.kept = [None] * KNOWN
        check(ctx_get_current(&self.context), "context")
        check(event_create(&self.event, EVENT_WITHOUT_TIMING), "event")
        self.open = True

    def __dealloc__(self):
        PyMem_Free(self.known)

    def close(self):
        """Refuse calls from now on."""
        if self.open:
            self.open = False
            self.held = None
            event_destroy(self.event)

    def stop(self):
        """Let every device-side wait end."""
        if self.alarm != NULL:
            self.alarm.stop = 1

    def alarmed(self):
        """(peer, step) of a wait that did not end in time; None if there is none."""
        if self.alarm == NULL or self.alarm.raised != 2:
            return None
        return self.alarm.peer, self.alarm.step

    def drop_alarm(self):
        """Do not look at the alarm any more, whose memory is about to be freed."""
        self.open = False
        self.alarm = NULL

    def register(self, uint64_t start, uint64_t length, int index):
        """Let buffers in this memory be read and written by peers; `index` from 0."""
        if self.region_count == REGISTERED:
            raise ValueError(f"there are {REGISTERED} registered allocations already")
        cdef Region *region = &self.regions[self.region_count]
        region.start, region.end = start, start + length
        region.key = <uint64_t> (index + 1) << 48
        self.region_count += 1

    def unregister(self, int index):
        """Undo :meth:`register`."""
        cdef int i, kept = 0
        for i in range(self.region_count):
            if self.regions[i].key >> 48 != <uint64_t> (index + 1):
                self.regions[kept] = self.regions[i]
                kept += 1
        self.region_count = kept

    def forget(self):
        """Forget all calls."""
        memset(self.known, 0, KNOWN * sizeof(Known))
        self.kept = [None] * KNOWN

    cdef uint64_t key_of(self, uint64_t address, int64_t length) noexcept:
        """Index and offset in registered memory."""
        cdef int i
        if address % 16 == 0:
            for i in range(self.region_count):
                if (
                    self.regions[i].start <= address
                    and address + <uint64_t> length <= self.regions[i].end
                ):
                    return self.regions[i].key + (address - self.regions[i].start)
        return NOT_REGISTERED

    def known_call(self, collective, op, dtype, int64_t root, int64_t send, int64_t recv):
        """Whether a call is remembered; see :meth:`remember`."""
        cdef Key key
        fill(&key, collective, op, dtype, root, send, recv)
        return self.find(&key) >= 0

    def remember(
        self, collective, op, dtype, int64_t root, int64_t send, int64_t recv, plan,
        uintptr_t function,
    ):
        """Remember how a call is launched.

        Args:
            collective, op, dtype: objects, kept and compared by identity.
            root: of the call.
            send, recv: lengths in bytes; -1 for no buffer, -2 for one in place.
            plan: a `shapes.Launch`.
            function: the kernel.
        """
        cdef Key key
        cdef int i, index
        fill(&key, collective, op, dtype, root, send, recv)
        index = self.find(&key)
        if index < 0:
            index = hashed(&key) % KNOWN
            for i in range(WAYS):
                if not self.known[(hashed(&key) + i) % KNOWN].used:
                    index = (hashed(&key) + i) % KNOWN
                    break
        cdef Known *known = &self.known[index]
        memset(known, 0, sizeof(Known))
        known.key, known.args = key, self.common
        cdef Args *args = &known.args
        args.n, args.send_stride, args.recv_stride = plan.n, plan.send_stride, plan.recv_stride
        args.sends, args.members, args.targets = plan.sends, plan.members, plan.targets
        args.total, args.kind = plan.total, plan.kind
        channels = self.channels[plan.in_bulk]
        args.steps, args.channels, args.slot, args.first, args.second = channels
        args.source, args.target, args.length = plan.source, plan.target, plan.length
        args.stride, args.pulls, args.gives = plan.stride, plan.pulls, plan.gives
        known.function = <Handle> function
        known.blocks, known.threads = plan.blocks, plan.threads
        known.registered = plan.registered
        known.needed[0], known.needed[1] = plan.needed
        known.sources[0] = 0 if send >= 0 else 1 if recv >= 0 else -1
        known.sources[1] = 1 if recv >= 0 else 0 if recv == IN_PLACE else -1
        known.shift = plan.shift
        known.used = True
        self.kept[index] = (collective, op, dtype)

    def run(
        self, collective, op, dtype, int64_t root, int64_t send, int64_t recv,
        uint64_t send_address, uint64_t recv_address, stream,
    ):
        """Enqueue a remembered call on a stream, an object with `ptr` or an address."""
        cdef Key key
        if not self.open:  # what the kernels use may not be mapped any more
            raise RuntimeError("this communicator has been freed, or has failed")
        fill(&key, collective, op, dtype, root, send, recv)
        cdef int index = self.find(&key)
        if index < 0:
            raise KeyError(collective)
        cdef uintptr_t handle = stream if isinstance(stream, int) else stream.ptr
        self.go(&self.known[index], send_address, recv_address, <Handle> handle, stream)

    def serve(self, collective, sendbuf, recvbuf, op, root):
        """Enqueue a call that is remembered, of CuPy's arrays; False if it must go the long way."""
        cdef Key key
        cdef uint64_t addresses[2]
        cdef int64_t lengths[2]
        cdef Handle context = NULL
        cdef int index
        if not self.open or self.alarm.raised:
            return False
        dtype = self.argument(recvbuf, &addresses[1], &lengths[1], None)
        dtype = self.argument(sendbuf, &addresses[0], &lengths[0], dtype)
        if dtype is None or type(root) is not int:
            return False
        fill(&key, collective, op, dtype, root, lengths[0], lengths[1])
        index = self.find(&key)
        if index < 0:
            return False
        ctx_get_current(&context)
        if context != self.context:
            return False
        stream = self.current()
        cdef uintptr_t handle = stream.ptr
        self.go(&self.known[index], addresses[0], addresses[1], <Handle> handle, stream)
        return True

    cdef argument(self, buffer, uint64_t *address, int64_t *length, dtype):
        """The common dtype of the buffers so far, None if a buffer is no plain array of it."""
        address[0] = 0
        if type(buffer) is not self.array:
            length[0] = IN_PLACE if buffer is self.in_place else ABSENT
            if buffer is not None and buffer is not self.in_place:
                length[0] = NOT_REGISTERED
                return None
            return _ANY if dtype is None else dtype
        own = buffer.dtype
        if not (dtype is None or dtype is _ANY or own is dtype) or not buffer._c_contiguous:
            return None
        memory = buffer.data
        if memory.device_id != self.device:
            return None
        address[0], length[0] = memory.ptr, buffer.nbytes
        return own

    cdef int find(self, Key *key) noexcept:
        """The place of a call, -1 if it has none."""
        cdef int i, index, first = hashed(key)
        for i in range(WAYS):
            index = (first + i) % KNOWN
            if self.known[index].used and memcmp(&self.known[index].key, key, sizeof(Key)) == 0:
                return index
        return -1

    cdef int go(
        self, Known *known, uint64_t send, uint64_t recv, Handle stream, holder
    ) except -1:
        """Launch."""
        cdef uint64_t addresses[2]
        cdef uint64_t address
        cdef Args args = known.args  # others may change that while the launch waits
        cdef Handle function = known.function
        cdef unsigned blocks = known.blocks, threads = known.threads
        cdef void *parameters[1]
        cdef Handle context = NULL
        cdef bint pushed
        cdef int status, i
        addresses[0], addresses[1] = send, recv
        args.send = addresses[known.sources[0]] if known.sources[0] >= 0 else 0
        args.recv = addresses[known.sources[1]] if known.sources[1] >= 0 else 0
        if known.registered:
            for i in range(2):
                address = args.recv if i else args.send
                if known.needed[i]:
                    args.keys[i] = self.key_of(address, known.key.lengths[known.sources[i]])
                else:  # this rank alone uses it, but by cells of 16 bytes too
                    args.keys[i] = <uint64_t> (NOT_REGISTERED if address % 16 else NOT_NEEDED)
        args.send += known.shift
        parameters[0] = &args
        ctx_get_current(&context)
        pushed = context != self.context
        if pushed:
            check(ctx_push(self.context), "context")
        try:
            # Streams 0, 1 and 2 are those of the current context.
            if stream != self.last or not self.has_last:
                self.chain(stream)
            with nogil:  # it waits where too much has been enqueued
                status = launch_kernel(
                    function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL
                )
            if status == 0 and isinstance(holder, int):
                status = self.mark(stream)
            elif stream == self.last:
                self.held, self.marked = holder, False
        finally:
            if pushed:
                ctx_pop(&context)
        self.launches += 1
        return check(status, "launch")

    cdef int mark(self, Handle stream) noexcept:
        """Record the event after a call on a stream that may be gone when another one is used."""
        cdef int capturing = 0
        cdef int status = stream_is_capturing(stream, &capturing)
        if status or capturing or stream != self.last:
            return status
        self.held, self.marked = None, True
        return event_record(self.event, stream)

    cdef int chain(self, Handle stream) except -1:
        """Let a stream wait for the calls on the one that was used last.

        What a graph is made of is ordered where the graph is launched.
        """
        cdef int capturing = 0
        check(stream_is_capturing(stream, &capturing), "stream")
        if capturing:
            return 0
        if self.has_last:
            if not self.marked:
                check(stream_is_capturing(self.last, &capturing), "stream")
                if not capturing:
                    check(event_record(self.event, self.last), "event")
            if not capturing:
                check(stream_wait_event(stream, self.event, 0), "event")
        self.last, self.has_last = stream, True
        return 0


cdef object _ANY = object()


cdef void fill(
    Key *key, collective, op, dtype, int64_t root, int64_t send, int64_t recv
) noexcept:
    key.collective = <uint64_t> <void *> collective
    key.op, key.dtype = <uint64_t> <void *> op, <uint64_t> <void *> dtype
    key.root, key.lengths[0], key.lengths[1] = root, send, recv


cdef int hashed(Key *key) noexcept:
    cdef uint64_t mixed = (
        key.collective + 7 * key.op + 11 * key.dtype + 31 * <uint64_t> key.root
        + 3 * <uint64_t> key.lengths[0] + <uint64_t> key.lengths[1]
    )
    return (mixed * <uint64_t> 0x9E3779B97F4A7C15) >> 56
