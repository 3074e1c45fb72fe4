"""The fast paths: calls that are made again reach the engine without building Python objects.

A `FastPath` remembers calls, by their signatures (`_signature`), and how each was served.  A
`Starter` starts a persistent one.  What they do not know goes the slow path, which parses the call
and chooses an algorithm (:mod:`mpicoll.comm.dispatch`).
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

cimport numpy as cnp

from mpicoll._kernels cimport fold_function
from mpicoll.engine._execution cimport Execution
from mpicoll.engine._flight cimport Airspace, CallCount, Flight
from mpicoll.engine._library cimport Given, start
from mpicoll.engine._packing cimport Packing
from mpicoll.engine._program cimport kernel_of
from mpicoll.engine._signature cimport Side, Signature, is_same, read, release

import numpy as np
from mpi4py import MPI as _MPI

cnp.import_array()


cdef extern from "Python.h":
    object PyObject_Vectorcall(object, PyObject **, size_t, PyObject *)


cdef enum:
    KNOWN = 512  # calls that are remembered
    PLACES = 8  # that one of them may have
    # Bytes of packed elements that are kept for the next call, and for the next one like it.
    KEPT = 64 << 20
    KEPT_EACH = 4 << 20
    STARTED = 32  # what is added to the number of a method, see `mpicoll.schedule.methods`


cdef class Route:
    """How a call that is remembered is made again: by an execution, or by the MPI library."""

    cdef int64_t *words  # its signature
    cdef int n
    cdef object algorithm  # whose names are told apart by where they lie
    cdef CallCount count
    cdef int64_t first[2]  # bytes used, from where each side of the call has its memory
    cdef int64_t end[2]
    # By the MPI library: mpi4py's method, and which arguments it takes.
    cdef object function
    cdef int numbers[5]
    cdef int taken
    # The library's own function, where `direct`.
    cdef bint direct
    cdef int method
    cdef Given given[2]
    cdef tuple messages  # in place of what goes by value, else None
    # By an execution, else None: the sides of its two buffers, -1 for none, and where in them.
    cdef Execution execution
    cdef object reduction
    cdef fold_function kernel
    cdef list pool  # of a non-blocking call, executions like it that are idle
    cdef int sources[2]
    cdef int64_t offsets[2]
    # How each goes by value, None if it does not; None if both lie in the caller's memory.
    cdef tuple packings
    cdef bint loads[2]
    cdef bint stores

    def __cinit__(self):
        self.words = NULL

    def __dealloc__(self):
        free(self.words)

    cdef int know(self, const Signature *signature) except -1:
        """Remember a signature."""
        self.words = <int64_t *> malloc(signature.n * sizeof(int64_t))
        if self.words == NULL:
            raise MemoryError()
        self.n = signature.n
        memcpy(self.words, signature.words, self.n * sizeof(int64_t))
        return 0


cdef class FastPath:
    """The fast path of calls that have been made before.

    Args:
        comm: carries the messages that MPI carries.
        pause: called again and again while nothing moves; may raise.
        poll: moves on what is under way besides.
        under_way: what is, if there is anything.
        hooks, forks: must be empty: the hooks, the process that this one was forked from.
        failed: told of an error and the execution.

    A call is told by its number, buffers, operator, root, counts and the algorithm that the caller
    names, or None.
    """

    cdef uint64_t mixed[KNOWN]  # of the signatures of the routes
    cdef list routes
    cdef MPI.Comm comm
    cdef object pause, poll, under_way, failed
    cdef list hooks, forks
    cdef public bint open
    cdef public object devices  # serves arrays in device memory, None if nothing does
    cdef dict named
    cdef list packed  # memory for the elements of both buffers that go by value
    cdef bint packs  # it is in use
    cdef Airspace air
    cdef object flights  # the class of requests of non-blocking calls

    def __cinit__(self, MPI.Comm comm, pause, poll, under_way, list hooks, list forks, failed):
        self.comm, self.pause, self.poll, self.under_way = comm, pause, poll, under_way
        self.hooks, self.forks, self.failed = hooks, forks, failed
        self.open = True
        self.named = {}
        self.forget()

    def forget(self):
        """Forget all calls, but not how often they were made."""
        self.routes = [None] * KNOWN
        memset(self.mixed, 0, sizeof(self.mixed))
        self.packed = [None, None]

    cdef CallCount count(self, name):
        """The count of a (collective, algorithm)."""
        if name not in self.named:
            self.named[name] = CallCount(name)
        return self.named[name]

    def calls(self):
        """How often each (collective, algorithm) was run by a fast path."""
        cdef CallCount count
        return {count.name: count.calls for count in self.named.values() if count.calls}

    # --- making calls ---

    def serve(self, comm, int method, sendbuf, recvbuf, op, root, counts, algorithm):
        """Make a blocking call of a communicator; False if it has to go the slow path."""
        cdef Signature signature
        cdef Route route
        if not self.open or self.hooks or self.forks:
            return False
        try:
            if not read(&signature, method, sendbuf, recvbuf, op, root, counts, algorithm):
                return self.devices is not None and self.on_device(
                    method, sendbuf, recvbuf, op, root, algorithm
                )
            route = self.find(&signature)
            if route is None or not _apart(route, signature.sides):
                return False
            if route.execution is not None:
                return self.run(route, signature.sides, sendbuf, recvbuf)
            if self.under_way:
                return False
            if route.packings is not None:
                return self.pass_packed(
                    route, signature.sides, comm, sendbuf, recvbuf, op, root, counts
                )
            self.pass_through(route, comm, sendbuf, recvbuf, op, root, counts)
            route.count.calls += 1
            return True
        finally:
            release(&signature)

    def start(self, comm, int method, sendbuf, recvbuf, op, root, counts, algorithm):
        """Start a call; None if it has to go the slow path.

        Returns mpi4py's request of a call by the MPI library.  It keeps the buffers alive, which
        mpi4py leaves to the caller.
        """
        cdef Signature signature
        cdef Route route
        cdef MPI.Request request
        if not self.open or self.hooks or self.forks:
            return None
        try:
            if not read(&signature, method, sendbuf, recvbuf, op, root, counts, algorithm):
                return None
            route = self.find(&signature)
            if route is None or not _apart(route, signature.sides):
                return None
            if route.pool is not None:
                return self.take_off(route, &signature, comm, sendbuf, recvbuf)
            if route.direct:
                request = _started(route, signature.sides, comm, op, root)
            else:
                request = self.pass_through(route, comm, sendbuf, recvbuf, op, root, counts)
        finally:
            release(&signature)
        if sendbuf is not None or recvbuf is not None:
            request.ob_buf = (sendbuf, recvbuf, op, route, request.ob_buf)
        route.count.calls += 1
        if self.under_way:
            self.poll()
        return request

    cdef Flight take_off(
        self, Route route, const Signature *signature, comm, sendbuf, recvbuf
    ):
        """Start a call by an execution."""
        cdef Flight flight = self.flights.__new__(self.flights)
        cdef Execution execution
        cdef int i
        if route.pool:
            execution = route.pool.pop()
        else:
            execution = Execution(route.execution.plan, route.execution.device)
            execution.reduction, execution.kernel = route.reduction, route.kernel
        for i in range(2):
            execution.bases[i] = NULL
            if route.sources[i] >= 0:
                execution.bases[i] = (
                    signature.sides[route.sources[i]].address + route.offsets[i]
                )
        flight._comm, flight.air, flight.execution = comm, self.air, execution
        flight.pool, flight.count = route.pool, route.count
        # What has a buffer of its own must not change its length meanwhile.
        flight.kept = (
            memoryview(_owner(sendbuf)) if signature.sides[0].held else sendbuf,
            memoryview(_owner(recvbuf)) if signature.sides[1].held else recvbuf,
        )
        flight.depart()
        return flight

    cdef Route find(self, const Signature *signature):
        """The route of a call, None if it has none."""
        cdef int i, place, first = signature.mixed % KNOWN
        cdef Route route
        for i in range(first, first + PLACES):
            place = i % KNOWN
            if self.mixed[place] == signature.mixed:
                route = self.routes[place]
                if route is not None and is_same(signature, route.words, route.n):
                    return route
        return None

    cdef object pass_through(self, Route route, comm, sendbuf, recvbuf, op, root, counts):
        """Let the MPI library make a call."""
        cdef PyObject *every[5]
        cdef PyObject *arguments[6]
        cdef int i
        every[0], every[1], every[2] = <PyObject *> sendbuf, <PyObject *> recvbuf, <PyObject *> op
        every[3], every[4] = <PyObject *> root, <PyObject *> counts
        for i in range(2):
            if route.messages is not None and route.messages[i] is not None:
                every[i] = <PyObject *> route.messages[i]
        arguments[0] = <PyObject *> comm
        for i in range(route.taken):
            arguments[1 + i] = every[route.numbers[i]]
        return PyObject_Vectorcall(route.function, arguments, 1 + route.taken, NULL)

    cdef bint run(self, Route route, Side *sides, sendbuf, recvbuf) except -1:
        """Make a call by an execution; False if it has to go the slow path."""
        cdef Execution execution = route.execution
        cdef char *memory
        cdef int i
        if execution.active or (route.packings is not None and self.packs):
            return False
        for i in range(2):
            execution.bases[i] = NULL
            if route.sources[i] >= 0:
                execution.bases[i] = sides[route.sources[i]].address + route.offsets[i]
        if route.packings is None:
            self.execute(route, sendbuf, recvbuf)
            return True
        memory = execution.bases[1]
        self.packs = True
        try:
            self.pack(route, sides)
            self.execute(route, sendbuf, recvbuf)
            if route.stores:
                (<Packing> route.packings[1]).store(
                    memory, sides[route.sources[1]].datatype, execution.bases[1]
                )
        finally:
            self.packs = False
        return True

    cdef int pack(self, Route route, Side *sides) except -1:
        """Bind packed elements in place of what goes by value."""
        cdef Execution execution = route.execution
        cdef Packing packing
        cdef int i
        cdef char *packed
        for i in range(2):
            packing = route.packings[i]
            if packing is None:
                continue
            if i and route.packings[0] is packing:  # in place
                execution.bases[1] = execution.bases[0]
                continue
            packed = self.space(i, packing.length)
            if route.loads[i]:
                packing.load(execution.bases[i], sides[route.sources[i]].datatype, packed)
            execution.bases[i] = packed
        return 0

    cdef bint pass_packed(
        self, Route route, Side *sides, comm, sendbuf, recvbuf, op, root, counts
    ) except -1:
        """Let the MPI library make a call of buffers that go by value."""
        cdef Packing packing
        cdef int i
        if self.packs:
            return False
        self.packs = True
        try:
            for i in range(2):
                packing = route.packings[i]
                if packing is not None and route.loads[i]:
                    packing.load(
                        sides[i].address + route.offsets[i], sides[i].datatype, _memory(route, i)
                    )
            self.pass_through(route, comm, sendbuf, recvbuf, op, root, counts)
            route.count.calls += 1
            if route.stores:
                (<Packing> route.packings[1]).store(
                    sides[1].address + route.offsets[1], sides[1].datatype, _memory(route, 1)
                )
        finally:
            self.packs = False
        return True

    cdef char *space(self, int side, int64_t length) except NULL:
        """Memory for packed elements."""
        memory = self.packed[side]
        if memory is None or cnp.PyArray_NBYTES(<cnp.ndarray> memory) < length:
            memory = self.packed[side] = np.empty(max(length, 64), np.uint8)
        return <char *> cnp.PyArray_DATA(<cnp.ndarray> memory)

    cdef int execute(self, Route route, sendbuf, recvbuf) except -1:
        """Run an execution whose buffers are bound."""
        cdef Execution execution = route.execution
        execution.bind(self.comm, 0, 0)
        execution.reduction, execution.kernel = route.reduction, route.kernel
        try:
            if self.under_way:
                execution.go()
                self.poll()
                execution.wait(self.pause)
            else:
                execution.go_through(self.pause)
        except BaseException as error:
            execution._send, execution._recv = (sendbuf, self.packed[0]), (recvbuf, self.packed[1])
            self.failed(error, execution)
            raise
        route.count.calls += 1
        return 0

    cdef bint on_device(self, int method, sendbuf, recvbuf, op, root, algorithm) except -1:
        """Make a call of arrays in device memory; False if it has to go the slow path."""
        cdef CallCount count
        peers, counts = self.devices
        if algorithm is not None or method >= len(counts):
            return False
        count = counts[method]
        try:
            if not peers.serve(count.name[0], sendbuf, recvbuf, op, root):
                return False
        except BaseException as error:
            self.failed(error)
            raise
        count.calls += 1
        if self.under_way:
            self.poll()
        return True

    def serve_flights(self, Airspace air not None, flights):
        """Let non-blocking calls by an algorithm go the fast path too.

        Args:
            air: what they have around them.
            flights: the class of their requests, a `Flight`.
        """
        self.air, self.flights = air, flights

    def serve_devices(self, peers, names):
        """Let calls of arrays in device memory go the fast path too.

        Args:
            peers: its ``serve(collective, sendbuf, recvbuf, op, root)`` says whether it does.
            names: (collective, algorithm) by the numbers of methods.
        """
        self.devices = (peers, [self.count(name) for name in names])

    # --- remembering them ---

    def learn(
        self, int method, tuple arguments, algorithm, name, call, Execution execution,
        tuple packings, tuple loads, bint stores,
    ):
        """Remember a call that has been made on the slow path, if it has a signature.

        Args:
            method: its number.
            arguments: send buffer, receive buffer, operator, root, counts.
            algorithm: that the caller names, or None.
            name: (collective, algorithm) of what was run.
            call: the parsed call.
            execution: what ran it.
            packings: how each buffer goes by value, None if it does not.
            loads: whether each is to be packed before it starts.
            stores: whether the receive buffer is to be unpacked.
        """
        cdef Signature signature
        cdef Route route
        try:
            route = self.route(&signature, method, arguments, algorithm, name, call)
            if route is None:
                return
            route.reduction, route.kernel = call.reduction, kernel_of(call.reduction)
            if not _take_packings(route, packings, loads, stores, KEPT):
                return
            if method >= STARTED:
                if self.air is None or packings is not None:
                    return
                route.pool = []
            route.execution = execution
            self.remember(&signature, route)
        finally:
            release(&signature)

    def pass_on(
        self, int method, tuple arguments, algorithm, name, call, function, tuple numbers,
        tuple packings, tuple loads, bint stores, tuple messages, given,
    ):
        """Remember a call that the MPI library has served, if it has a signature.

        Args:
            method, arguments, algorithm, name, call: as for `learn`.
            function: mpi4py's method.
            numbers: which of the arguments it takes.
            packings, loads, stores: as for `learn`.
            messages: what it gets in place of a buffer that goes by value, [memory, ...], or None.
            given: for a function of the library's own what it gets of each buffer, None if in
                place, else the number of elements and the datatype; None for mpi4py's method.
        """
        cdef Signature signature
        cdef Route route
        cdef int i
        try:
            route = self.route(&signature, method, arguments, algorithm, name, call)
            if route is None:
                return
            route.function, route.taken = function, len(numbers)
            for i in range(route.taken):
                route.numbers[i] = numbers[i]
            if not _take_packings(route, packings, loads, stores, KEPT_EACH):
                return
            route.messages = messages
            if given is not None:
                route.direct, route.method = True, method % STARTED
                for i in range(2):
                    route.given[i].in_place = given[i] is None
                    route.given[i].count, route.given[i].datatype = 0, mpi.MPI_BYTE
                    if given[i] is not None:
                        route.given[i].count = given[i][0]
                        route.given[i].datatype = (<MPI.Datatype> given[i][1]).ob_mpi
            self.remember(&signature, route)
        finally:
            release(&signature)

    cdef Route route(
        self, Signature *signature, int method, tuple arguments, algorithm, name, call
    ):
        """What makes a call again, still to be filled in; None if it has no signature."""
        cdef Route route = Route()
        cdef int i, source
        cdef int64_t base
        sendbuf, recvbuf, op, root, counts = arguments
        if not read(signature, method, sendbuf, recvbuf, op, root, counts, algorithm):
            return None
        route.count, route.algorithm = self.count(name), algorithm
        for i in range(2):
            route.sources[i], route.first[i], route.end[i] = -1, 0, 0
        for i, (source, address, first, end) in enumerate(call.places()):
            if source < 0 or signature.sides[source].address == NULL:
                continue
            base = <int64_t> signature.sides[source].address
            route.sources[i] = source
            route.offsets[i] = address - base if address else 0
            if end > first:
                route.first[source], route.end[source] = first - base, end - base
        return route

    cdef int remember(self, const Signature *signature, Route route) except -1:
        """Take a place for a route: its own, a free one, or that of another call."""
        cdef int i, place, first = signature.mixed % KNOWN
        cdef int taken = first
        cdef Route other
        route.know(signature)
        for i in range(first + PLACES - 1, first - 1, -1):
            place = i % KNOWN
            other = self.routes[place]
            if other is None:
                taken = place
            elif is_same(signature, other.words, other.n):
                taken = place
                break
        self.routes[taken], self.mixed[taken] = route, signature.mixed
        return 0


cdef object _owner(message):
    """What has the memory of a message."""
    return message[0] if type(message) is list or type(message) is tuple else message


cdef object _started(Route route, const Side *sides, MPI.Comm comm, op, root):
    """Start a call by a function of the MPI library."""
    cdef MPI.Request request = MPI.Request.__new__(MPI.Request)
    cdef void *buffers[2]
    cdef mpi.MPI_Op reduced = mpi.MPI_OP_NULL if op is None else (<MPI.Op> op).ob_mpi
    cdef int code, i, number = root
    for i in range(2):
        buffers[i] = NULL
        if route.sources[i] == i:
            buffers[i] = sides[i].address + route.offsets[i]
        elif route.messages is not None and route.messages[i] is not None:
            buffers[i] = _memory(route, i)
    with nogil:
        code = start(
            route.method, buffers[0], &route.given[0], buffers[1], &route.given[1], reduced,
            number, comm.ob_mpi, &request.ob_mpi,
        )
    if code != mpi.MPI_SUCCESS:
        raise _MPI.Exception(code)
    return request


cdef bint _take_packings(
    Route route, tuple packings, tuple loads, bint stores, int64_t limit
) except -1:
    """Let a route pack; False if it cannot."""
    cdef int i
    if packings is None:
        return True
    route.packings, route.stores = packings, stores
    for i in range(2):
        route.loads[i] = loads[i]
        if packings[i] is not None and (
            route.sources[i] < 0 or (<Packing> packings[i]).length > limit
        ):
            return False
    return True


cdef char *_memory(Route route, int side) except NULL:
    """The packed elements that the MPI library gets."""
    return <char *> cnp.PyArray_DATA(<cnp.ndarray> route.messages[side][0])


cdef bint _apart(Route route, const Side *sides) noexcept:
    """Whether the bytes used of both sides are apart in memory."""
    return (
        route.first[0] == route.end[0]
        or route.first[1] == route.end[1]
        or sides[0].address + route.first[0] >= sides[1].address + route.end[1]
        or sides[1].address + route.first[1] >= sides[0].address + route.end[0]
    )


cdef enum:
    # Stages of a request, see `mpicoll.requests`.
    INACTIVE = 0
    ACTIVE = 2


cdef class Starter:
    """The fast path of a persistent call: its start, and the wait for its end.

    Args:
        path: that of the communicator's calls; where it is closed, so is this one.
        execution: of the call alone, with its lane and buffers bound.
        name: (collective, algorithm).
        pollers: threads that make progress; with one, everything goes the slow path.
        lock: held by who moves operations under way on.
    """

    cdef FastPath path
    cdef Execution execution
    cdef CallCount count
    cdef list pollers
    cdef object lock, is_locked
    cdef bint started  # the last time
    cdef bint waited  # for that start, here: the request is inactive, and knows the execution

    def __cinit__(
        self, FastPath path not None, Execution execution not None, name, list pollers, lock
    ):
        self.path, self.execution = path, execution
        self.count, self.pollers = path.count(name), pollers
        self.lock, self.is_locked = lock, lock.locked

    def start(self, request):
        """Start an inactive request; False if it has to go the slow path."""
        cdef FastPath path = self.path
        cdef bint waited = self.waited
        self.started = self.waited = False
        if not path.open or path.hooks or path.forks or self.pollers:
            return False
        if not waited and (self.execution.active or request._stage == ACTIVE):
            return False
        request._stage = ACTIVE
        try:
            self.execution.go()
        except BaseException as error:
            request._fail(error)
            return True
        self.started = True
        if not waited:
            request._execution = self.execution
        (<dict> path.under_way)[request] = None
        for poller in self.pollers:  # of a thread that has been started since
            poller.wake()
        if len(<dict> path.under_way) > 1:
            path.poll()
        return True

    def wait(self, request):
        """Wait for a request that was started here; False if it has to go the slow path."""
        cdef FastPath path = self.path
        if not self.started or not path.open or path.forks:
            return False  # after a failure the path is closed, and the slow one raises it
        try:
            self.execution.wait(path.pause)
        except BaseException as error:
            with self.lock:
                request._fail(error)
            return False
        if self.is_locked():
            return False  # another thread may have seen the end, too
        # The same as the request's own `_finish` where nobody is to be told; no other thread runs.
        if request._stage == ACTIVE:
            del (<dict> path.under_way)[request]
            self.count.calls += 1
            self.waited = True
        request._stage = INACTIVE
        return True
