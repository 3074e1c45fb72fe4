"""See `_routes.pyx`: calls that are remembered."""

from libc.stdint cimport int64_t, uint64_t

from mpicoll._kernels cimport fold_function
from mpicoll.engine._execution cimport Execution
from mpicoll.engine._flight cimport CallCount
from mpicoll.engine._library cimport Direct
from mpicoll.engine._signature cimport Side, Signature


cdef enum:
    KNOWN = 512  # calls that are remembered


cdef class Route:
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
    cdef Direct direct  # the library's own function, None where that is not called
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

    cdef int know(self, const Signature *signature) except -1


cdef class Routes:
    cdef uint64_t mixed[KNOWN]  # of the signatures of the routes
    cdef list routes
    cdef dict named

    cdef CallCount count(self, name)
    cdef Route find(self, const Signature *signature)
    cdef Route route(
        self, Signature *signature, int method, tuple arguments, algorithm, name, call
    )
    cdef int remember(self, const Signature *signature, Route route) except -1


cdef inline bint are_apart(Route route, const Side *sides) noexcept:
    """Whether the bytes used of both sides of a call are apart in memory."""
    return (
        route.first[0] == route.end[0]
        or route.first[1] == route.end[1]
        or sides[0].address + route.first[0] >= sides[1].address + route.end[1]
        or sides[1].address + route.first[1] >= sides[0].address + route.end[0]
    )
