"""The fast path from a collective call on GPUs to the launch of its kernel."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from mpicoll.base._call_cache cimport KNOWN, CallCache, Key, find, take
from mpicoll.cuda._driver cimport Handle, calls, check

from mpicoll.errors import Unordered


cdef enum:
    MOST = 64  # ranks
    REGISTERED = 256  # registered allocations
    GRAPHS = 8  # that are made at a time
    ABSENT = -1
    IN_PLACE = -2
    NOT_REGISTERED = 0
    NOT_NEEDED = -1
    EVENT_WITHOUT_TIMING = 2  # a flag of the driver's


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
    int64_t turn
    int left
    int right
    int place
    int pad
    uint8_t order[MOST]
    uint64_t window[MOST]


cdef struct Known:
    # How a remembered call is launched.
    Args args
    int64_t lengths[2]  # of the call's buffers
    Handle function
    unsigned blocks
    unsigned threads
    bint registered  # whether the kernel asks for keys
    bint needed[2]
    int sources[2]  # the buffers' place in the call: 0 or 1, -1 for none
    int64_t shift  # from the send buffer's address


cdef struct Graph:
    # One that is being made of calls: its number, 0 for none; the stream of the last call, and an
    # event that has been recorded after it.
    uint64_t number
    Handle last
    Handle event


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

    cdef CallCache cache
    cdef Known known[KNOWN]
    cdef Region regions[REGISTERED]
    cdef int region_count
    cdef Args common
    cdef Alarm *alarm
    cdef Handle context, event, last
    cdef Handle used  # an event: the last call that may use registered memory
    cdef bint has_last, marked  # marked: the event has been recorded after the last call
    cdef Graph graphs[GRAPHS]  # that calls have become parts of
    cdef int newest
    cdef bint has_captured
    cdef object held, array, in_place, current
    cdef object tensor_stream  # returns the handle of a device's current stream in PyTorch
    cdef set tensors  # classes
    cdef list kept
    cdef tuple channels
    cdef public bint open
    cdef readonly int device
    cdef readonly uint64_t launches
    cdef readonly set captured  # numbers of the registered buffers that graphs use

    def __cinit__(
        self, int device, int rank, windows, uint64_t alarm, uint64_t table, channels,
        uint64_t limit, array, in_place, current,
    ):
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
        self.captured, self.tensors = set(), set()
        check(calls.ctx_get_current(&self.context), "context")
        check(calls.event_create(&self.event, EVENT_WITHOUT_TIMING), "event")
        check(calls.event_create(&self.used, EVENT_WITHOUT_TIMING), "event")
        self.open = True

    def close(self):
        """Refuse calls from now on."""
        if self.open:
            self.open = False
            self.held = None
            calls.event_destroy(self.event)
            for i in range(GRAPHS):
                if self.graphs[i].event != NULL:
                    calls.event_destroy(self.graphs[i].event)
            calls.event_destroy(self.used)

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

    def await_registered(self):
        """Wait until the calls that may use registered memory are done.

        That is not what else is on the device, which may wait for what a peer enqueues later.
        """
        with nogil:
            check(calls.event_synchronize(self.used), "synchronize")

    def forget(self):
        """Forget all calls."""
        memset(&self.cache, 0, sizeof(CallCache))
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
        return find(&self.cache, &key) >= 0

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
        index = take(&self.cache, &key)
        cdef Known *known = &self.known[index]
        known.args, known.lengths = self.common, key.lengths
        cdef Args *args = &known.args
        args.n, args.send_stride, args.recv_stride = plan.n, plan.send_stride, plan.recv_stride
        args.sends, args.members, args.targets = plan.sends, plan.members, plan.targets
        args.total, args.kind = plan.total, plan.kind
        channels = self.channels[plan.in_bulk]
        args.steps, args.channels, args.slot, args.first, args.second = channels
        args.source, args.target, args.length = plan.source, plan.target, plan.length
        args.stride, args.pulls, args.gives = plan.stride, plan.pulls, plan.gives
        args.turn = plan.turn
        args.left, args.right, args.place = plan.left, plan.right, plan.place
        for i, other in enumerate(plan.order):
            args.order[i] = other
        known.function = <Handle> function
        known.blocks, known.threads = plan.blocks, plan.threads
        known.registered = plan.registered
        known.needed[0], known.needed[1] = plan.needed
        known.sources[0] = 0 if send >= 0 else 1 if recv >= 0 else -1
        known.sources[1] = 1 if recv >= 0 else 0 if recv == IN_PLACE else -1
        known.shift = plan.shift
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
        cdef int index = find(&self.cache, &key)
        if index < 0:
            raise KeyError(collective)
        cdef uintptr_t handle = stream if isinstance(stream, int) else stream.ptr
        self.go(&self.known[index], send_address, recv_address, <Handle> handle, stream)

    def meet_tensors(self, kinds, current):
        """Let PyTorch's tensors of some classes be served too.

        Args:
            kinds: the classes.
            current: returns the handle of PyTorch's current stream on a device.
        """
        self.tensors.update(kinds)
        self.tensor_stream = current

    def serve(self, collective, sendbuf, recvbuf, op, root):
        """Enqueue a call that is remembered; False if it needs the slow path.

        Its buffers are arrays of CuPy or tensors of PyTorch on the current stream of their library.
        """
        cdef Key key
        cdef uint64_t addresses[2]
        cdef int64_t lengths[2]
        cdef Handle context = NULL
        cdef int index
        cdef bint of_torch = False
        if not self.open or self.alarm.raised:
            return False
        dtype = self.argument(recvbuf, &addresses[1], &lengths[1], None, &of_torch)
        dtype = self.argument(sendbuf, &addresses[0], &lengths[0], dtype, &of_torch)
        if dtype is None or type(root) is not int:
            return False
        if (
            lengths[0] > 0 and lengths[1] > 0
            and addresses[0] < addresses[1] + <uint64_t> lengths[1]
            and addresses[1] < addresses[0] + <uint64_t> lengths[0]
        ):
            return False  # MPI forbids that, which is said there
        fill(&key, collective, op, dtype, root, lengths[0], lengths[1])
        index = find(&self.cache, &key)
        if index < 0:
            return False
        calls.ctx_get_current(&context)
        if context != self.context:
            return False
        cdef uintptr_t handle
        if of_torch:
            stream = handle = self.tensor_stream(self.device)
        else:
            stream = self.current()
            handle = stream.ptr
        self.go(&self.known[index], addresses[0], addresses[1], <Handle> handle, stream)
        return True

    cdef argument(
        self, buffer, uint64_t *address, int64_t *length, dtype, bint *of_torch
    ):
        """The common dtype of the buffers so far, None if a buffer is no plain array of it."""
        address[0] = 0
        if type(buffer) in self.tensors:
            of_torch[0] = True
            return self.tensor(buffer, address, length, dtype)
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

    cdef tensor(self, buffer, uint64_t *address, int64_t *length, dtype):
        """The same of a tensor, whose dtypes are PyTorch's."""
        try:
            own = buffer.dtype
            if (
                not (dtype is None or dtype is _ANY or own is dtype)
                or not buffer.is_cuda or buffer.get_device() != self.device
                or buffer.requires_grad or not buffer.is_contiguous()
                or buffer.is_conj() or buffer.is_neg()
            ):
                return None
            address[0], length[0] = buffer.data_ptr(), buffer.nbytes
        except Exception:
            return None  # the slow path says what is wrong
        return own

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
        cdef Graph *graph = NULL
        cdef bint pushed, registered = known.registered
        cdef int status, i
        addresses[0], addresses[1] = send, recv
        args.send = addresses[known.sources[0]] if known.sources[0] >= 0 else 0
        args.recv = addresses[known.sources[1]] if known.sources[1] >= 0 else 0
        if registered:
            for i in range(2):
                address = args.recv if i else args.send
                if known.needed[i]:
                    args.keys[i] = self.key_of(address, known.lengths[known.sources[i]])
                else:  # this rank alone uses it, but by cells of 16 bytes too
                    args.keys[i] = <uint64_t> (NOT_REGISTERED if address % 16 else NOT_NEEDED)
        args.send += known.shift
        parameters[0] = &args
        calls.ctx_get_current(&context)
        pushed = context != self.context
        if pushed:
            check(calls.ctx_push(self.context), "context")
        try:
            # Streams 0, 1 and 2 are those of the current context.
            # The last one, if it may be gone, may have left its number to another one.
            if stream != self.last or not self.has_last or self.has_captured or self.marked:
                graph = self.chain(stream)
            with nogil:  # it waits where too much has been enqueued
                status = calls.launch_kernel(
                    function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL
                )
            if status == 0 and graph != NULL:
                status = calls.event_record(graph.event, stream)
            elif status == 0 and isinstance(holder, int):
                status = self.mark(stream)
            elif stream == self.last:
                self.held, self.marked = holder, False
            if status == 0 and registered:
                status = self.mark_use(stream, &args)
        finally:
            if pushed:
                calls.ctx_pop(&context)
        self.launches += 1
        return check(status, "launch")

    cdef int mark(self, Handle stream) noexcept:
        """Record the event after a call on a stream that may be gone when another one is used."""
        cdef int capturing = 0
        cdef int status = calls.stream_is_capturing(stream, &capturing)
        if status or capturing:  # of a graph it is not: the next call there finds that out
            return status
        self.held, self.marked = None, True
        return calls.event_record(self.event, stream)

    cdef int mark_use(self, Handle stream, Args *args) except? 1:
        """Record the event after a call that may use registered memory.

        Of a graph, which may be launched again, the buffers must stay what they are.
        """
        cdef uint64_t key
        cdef int i, capturing = 0
        cdef int status = calls.stream_is_capturing(stream, &capturing)
        if status or not capturing:
            return status or calls.event_record(self.used, stream)
        for i in range(2):
            key = args.keys[i]
            if key != <uint64_t> NOT_REGISTERED and key != <uint64_t> NOT_NEEDED:
                self.captured.add((key >> 48) - 1)
        return 0

    cdef Graph *chain(self, Handle stream) except? NULL:
        """Let a stream wait for the calls on the one that was used last.

        What a graph is made of waits for what is in that graph alone: the graph itself is ordered
        where it is launched.

        Returns:
            The graph that the next call there becomes part of, NULL if it is to run.
        """
        cdef uint64_t number = 0, last_number = 0
        check(capture_of(stream, &number), "stream")
        if number:
            return self.chain_captured(stream, number)
        if self.has_last and (stream != self.last or self.marked):
            if not self.marked:
                if capture_of(self.last, &last_number) or last_number:
                    raise Unordered(
                        "a collective on one stream cannot follow one on a stream that is being "
                        "captured for a graph; use the same stream before the capture, or end the "
                        "capture first"
                    )
                check(calls.event_record(self.event, self.last), "event")
            check(calls.stream_wait_event(stream, self.event, 0), "event")
        self.last, self.has_last = stream, True
        return NULL

    cdef Graph *chain_captured(self, Handle stream, uint64_t number) except? NULL:
        """The same of calls that become parts of one graph."""
        cdef uint64_t last_number = 0
        cdef Graph *graph = self.graph_of(number)
        if graph != NULL:
            if stream != graph.last:
                check(calls.stream_wait_event(stream, graph.event, 0), "event")
        else:
            graph = self.new_graph(number)
            # Its first calls may have been on the stream that was used last before it.  (Of the
            # legacy one, which has no graph, the driver may refuse to say so.)
            if (
                self.has_last and not self.marked and stream != self.last
                and capture_of(self.last, &last_number) == 0 and last_number == number
            ):
                check(calls.event_record(graph.event, self.last), "event")
                check(calls.stream_wait_event(stream, graph.event, 0), "event")
        graph.last = stream
        return graph

    cdef Graph *graph_of(self, uint64_t number) noexcept:
        """The graph of a number, NULL if no call is known to be part of it."""
        cdef int i
        for i in range(GRAPHS):
            if self.graphs[i].number == number:
                return &self.graphs[i]
        return NULL

    cdef Graph *new_graph(self, uint64_t number) except NULL:
        """A place for a graph, that of the oldest one."""
        self.newest = (self.newest + 1) % GRAPHS
        cdef Graph *graph = &self.graphs[self.newest]
        if graph.event == NULL:
            check(calls.event_create(&graph.event, EVENT_WITHOUT_TIMING), "event")
        graph.number, self.has_captured = number, True
        return graph


cdef int capture_of(Handle stream, uint64_t *graph) noexcept nogil:
    """A number of the graph that a stream is being captured for, 0 if it is not."""
    cdef int capturing = 0
    cdef int status = calls.stream_get_capture_info(stream, &capturing, graph, NULL, NULL, NULL)
    if not capturing:
        graph[0] = 0
    return status


cdef object _ANY = object()


cdef void fill(
    Key *key, collective, op, dtype, int64_t root, int64_t send, int64_t recv
) noexcept:
    memset(key, 0, sizeof(Key))
    key.method, key.op = <int64_t> <void *> collective, <int64_t> <void *> op
    key.kinds[0], key.root = <int64_t> <void *> dtype, root
    key.lengths[0], key.lengths[1] = send, recv
