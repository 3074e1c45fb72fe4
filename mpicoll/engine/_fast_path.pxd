"""See `_fast_path.pyx`: calls that are made again."""

from libc.stdint cimport int64_t
from mpi4py cimport MPI

from mpicoll.engine._flight cimport Airspace, Flight
from mpicoll.engine._routes cimport Route, Routes
from mpicoll.engine._signature cimport Side, Signature


cdef class FastPath(Routes):
    cdef MPI.Comm comm
    cdef object pause, poll, failed
    cdef dict under_way
    cdef public object look  # raises if a rank has died; None where that is not to be known
    cdef long looked  # when, in milliseconds
    cdef list hooks, forks
    cdef public bint open
    cdef public object devices  # serves arrays in device memory, None if nothing does
    cdef list packed  # memory for the elements of both buffers that go by value
    cdef bint packs  # it is in use
    cdef Route barrier  # of Ibarrier, once the library has made one
    cdef Airspace air
    cdef object flights  # the class of requests of non-blocking calls

    cpdef bint serve(
        self, comm, int method, sendbuf, recvbuf, op, root, counts, algorithm
    ) except -1
    cpdef object start(
        self, comm, int method, sendbuf, recvbuf, op, root, counts, algorithm
    )
    cdef MPI.Request start_barrier(self, comm)
    cdef int hear(self) except -1
    cdef Flight take_off(self, Route route, const Signature *signature, comm, sendbuf, recvbuf)
    cdef object pass_through(self, Route route, comm, sendbuf, recvbuf, op, root, counts)
    cdef int by_library(
        self, Route route, Side *sides, comm, sendbuf, recvbuf, op, root, counts
    ) except -1
    cdef bint run(self, Route route, Side *sides, sendbuf, recvbuf) except -1
    cdef int pack(self, Route route, Side *sides) except -1
    cdef bint pass_packed(
        self, Route route, Side *sides, comm, sendbuf, recvbuf, op, root, counts
    ) except -1
    cdef char *space(self, int side, int64_t length) except NULL
    cdef int execute(self, Route route, sendbuf, recvbuf) except -1
    cdef bint on_device(self, int method, sendbuf, recvbuf, op, root, algorithm) except -1
