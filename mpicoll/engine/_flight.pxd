"""See `_flight.pyx`: non-blocking calls on the fast path."""

from libc.stdint cimport int64_t
from mpi4py cimport MPI

from mpicoll.engine._execution cimport Execution


cdef enum:
    # Stages of a request, see `mpicoll.requests`.
    INACTIVE = 0
    COMPLETE = 1
    ACTIVE = 2


cdef class CallCount:
    cdef readonly object name
    cdef readonly int64_t calls


cdef class Airspace:
    cdef MPI.Comm comm
    cdef object pause, poll, lock, is_locked, lanes, look
    cdef dict under_way
    cdef list pollers, forks


cdef class Flight:
    cdef public int _stage
    cdef public object _error
    cdef public object _comm  # the communicator
    cdef Airspace air
    cdef Execution execution
    cdef list pool
    cdef CallCount count
    cdef object lane, kept
    cdef bint begun

    cdef int depart(self) except -1
    cdef int begin(self) except -1
    cdef int finish(self) except -1
