"""The fast path: calls that are made again reach the engine without building Python objects.

What a `FastPath` does not know goes the slow path, which parses the call and chooses an algorithm
(:mod:`mpicoll.comm.dispatch`), and lets it be remembered (`_routes`).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

cimport numpy as cnp

from mpicoll.engine._execution cimport Execution
from mpicoll.engine._flight cimport Airspace, CallCount, Flight
from mpicoll.engine._library cimport Given, call
from mpicoll.engine._packing cimport Packing
from mpicoll.engine._routes cimport Route, Routes, are_apart
from mpicoll.engine._signature cimport Side, Signature, read, release

import numpy as np
from mpi4py import MPI as _MPI

from mpicoll.schedule.methods import METHODS, STARTED

cnp.import_array()

cdef int IBARRIER = METHODS["Barrier"].number + STARTED


cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC_COARSE
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec *)

cdef extern from "Python.h":
    object PyObject_Vectorcall(object, PyObject **, size_t, PyObject *)


cdef class FastPath(Routes):
    """The fast path of calls that have been made before.

    Args:
        comm: carries the messages that MPI carries.
        pause: called again and again while nothing moves; may raise.
        poll: moves on what is under way besides.
        under_way: what is, if there is anything.
        hooks, forks: must be empty: the hooks, the process that this one was forked from.
        failed: told of an error and the execution; returns the error that it means.

    A call is told by its number, buffers, operator, root, counts and the algorithm that the caller
    names, or None.
    """

    def __cinit__(
        self, MPI.Comm comm, pause, poll, dict under_way, list hooks, list forks, failed
    ):
        self.comm, self.pause, self.poll, self.under_way = comm, pause, poll, under_way
        self.hooks, self.forks, self.failed = hooks, forks, failed
        self.open = True
        self.packed = [None, None]

    cdef int hear(self) except -1:
        """Look whether a rank has died, if the last look is a millisecond ago."""
        cdef timespec now
        cdef long milliseconds
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
        milliseconds = now.tv_sec * 1000 + now.tv_nsec // 1000000
        if milliseconds != self.looked:
            self.looked = milliseconds
            self.look()
        return 0

    def forget(self):
        """Forget all calls, but not how often they were made."""
        Routes.forget(self)
        self.packed, self.barrier = [None, None], None

    cpdef bint serve(
        self, comm, int method, sendbuf, recvbuf, op, root, counts, algorithm
    ) except -1:
        """Make a blocking call of a communicator; False if it has to go the slow path."""
        cdef Signature signature
        cdef Route route
        if not self.open or self.hooks or self.forks:
            return False
        if self.look is not None:
            self.hear()
        try:
            if not read(&signature, method, sendbuf, recvbuf, op, root, counts, algorithm):
                return self.devices is not None and self.on_device(
                    method, sendbuf, recvbuf, op, root, algorithm
                )
            route = self.find(&signature)
            if route is None or not are_apart(route, signature.sides):
                return False
            if route.execution is not None:
                return self.run(route, signature.sides, sendbuf, recvbuf)
            if self.under_way:
                return False
            if route.packings is not None:
                return self.pass_packed(
                    route, signature.sides, comm, sendbuf, recvbuf, op, root, counts
                )
            self.by_library(route, signature.sides, comm, sendbuf, recvbuf, op, root, counts)
            return True
        finally:
            release(&signature)

    cpdef object start(
        self, comm, int method, sendbuf, recvbuf, op, root, counts, algorithm
    ):
        """Start a call; None if it has to go the slow path.

        Returns mpi4py's request of a call by the MPI library.  It keeps the buffers alive, which
        mpi4py leaves to the caller.
        """
        cdef Signature signature
        cdef Route route
        cdef MPI.Request request
        cdef Side *sides
        cdef object kept
        if not self.open or self.hooks or self.forks:
            return None
        if self.look is not None:
            self.hear()
        try:
            if not read(&signature, method, sendbuf, recvbuf, op, root, counts, algorithm):
                return None
            route = self.find(&signature)
            if route is None or not are_apart(route, signature.sides):
                return None
            if route.pool is not None:
                return self.take_off(route, &signature, comm, sendbuf, recvbuf)
            if route.direct is None:
                request = self.pass_through(route, comm, sendbuf, recvbuf, op, root, counts)
                kept = request.ob_buf
            else:
                request = MPI.Request.__new__(MPI.Request)
                kept, sides = _kept(route, signature.sides), signature.sides
                if kept is not None:
                    sides = <Side *> PyBytes_AS_STRING(kept)
                _call(route, sides, comm, op, root, &request.ob_mpi)
                if method == IBARRIER and algorithm is None:
                    self.barrier = route
        finally:
            release(&signature)
        if sendbuf is not None or recvbuf is not None:
            request.ob_buf = (sendbuf, recvbuf, op, route, kept)
        route.count.calls += 1
        if self.under_way:
            self.poll()
        return request

    cdef MPI.Request start_barrier(self, comm):
        """Start a barrier that names no algorithm; None if `start` has to.

        It has no arguments to be known by, so that a look-up would take longer than all else.
        """
        cdef Route route = self.barrier  # which another thread may forget meanwhile
        cdef MPI.Request request
        cdef mpi.MPI_Comm handle = (<MPI.Comm> comm).ob_mpi
        cdef int code
        if (
            route is None or not self.open or self.hooks or self.forks
            or self.look is not None or self.under_way
        ):
            return None
        request = MPI.Request.__new__(MPI.Request)
        with nogil:
            code = mpi.MPI_Ibarrier(handle, &request.ob_mpi)
        if code != mpi.MPI_SUCCESS:
            raise _MPI.Exception(code)
        route.count.calls += 1
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

    cdef int by_library(
        self, Route route, Side *sides, comm, sendbuf, recvbuf, op, root, counts
    ) except -1:
        """Let the MPI library make a call."""
        if route.direct is None:
            self.pass_through(route, comm, sendbuf, recvbuf, op, root, counts)
        else:
            _call(route, sides, comm, op, root, NULL)
        route.count.calls += 1
        return 0

    cdef object pass_through(self, Route route, comm, sendbuf, recvbuf, op, root, counts):
        """Call mpi4py's method."""
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
                    memory, sides[route.sources[1]].handles[0], execution.bases[1]
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
                packing.load(execution.bases[i], sides[route.sources[i]].handles[0], packed)
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
                        sides[i].address + route.offsets[i], sides[i].handles[0], _memory(route, i)
                    )
            self.by_library(route, sides, comm, sendbuf, recvbuf, op, root, counts)
            if route.stores:
                (<Packing> route.packings[1]).store(
                    sides[1].address + route.offsets[1], sides[1].handles[0], _memory(route, 1)
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
            meant = self.failed(error, execution)
            if meant is error:
                raise
            raise meant from None
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


cdef object _owner(message):
    """What has the memory of a message."""
    return message[0] if type(message) is list or type(message) is tuple else message


cdef bytes _kept(Route route, const Side *sides):
    """What the MPI library may look at until a call that is started is complete."""
    if route.direct.given[0].typed or route.direct.given[1].typed:
        return PyBytes_FromStringAndSize(<const char *> sides, 2 * sizeof(Side))
    return None


cdef int _call(
    Route route, Side *sides, comm, op, root, mpi.MPI_Request *request
) except -1:
    """Make a call by a function of the MPI library; start it where there is a request."""
    cdef Given given[2]
    cdef void *buffers[2]
    cdef mpi.MPI_Op reduced = mpi.MPI_OP_NULL if op is None else (<MPI.Op> op).ob_mpi
    cdef mpi.MPI_Comm handle = (<MPI.Comm> comm).ob_mpi
    cdef int code, i, number = root, method = route.direct.method
    for i in range(2):
        given[i] = route.direct.given[i]
        if given[i].typed:
            given[i].datatype, given[i].datatypes = sides[i].handles[0], sides[i].handles
        buffers[i] = NULL
        if route.messages is not None and route.messages[i] is not None:
            buffers[i] = _memory(route, i)
        elif route.sources[i] == i:
            buffers[i] = sides[i].address + route.offsets[i]
    with nogil:
        code = call(
            method, buffers[0], &given[0], buffers[1], &given[1], reduced, number, handle, request
        )
    if code != mpi.MPI_SUCCESS:
        raise _MPI.Exception(code)
    return 0


cdef char *_memory(Route route, int side) except NULL:
    """The packed elements that the MPI library gets."""
    return <char *> cnp.PyArray_DATA(<cnp.ndarray> route.messages[side][0])
