"""See `_execution.pyx`."""

cimport cython

from mpicoll.engine._folding cimport Folding
from mpicoll.engine._program cimport Channel
from mpicoll.engine._transport cimport Idle


@cython.final
cdef class Execution(Folding):
    cdef int go(self) except -1
    cpdef int wait(self, pause) except -1
    cdef int go_through(self, pause) except -1
    cdef int finish(self, bint begins, pause) except -1
    cdef throw(self)
    cdef int spin(self, Idle *idle) noexcept nogil
    cdef void ease(self, int offers) noexcept nogil
    cdef void release(self) noexcept nogil
    cdef void copy(self, int start, int end) noexcept nogil
    cdef int begin(self) noexcept nogil
    cdef int step(self) noexcept nogil
    cdef int open(self) noexcept nogil
    cdef int advance_all(self) noexcept nogil
    cdef int advance(self, int c) noexcept nogil
    cdef int post(self, int c) noexcept nogil
    cdef int push(self) noexcept nogil
    cdef int push_channel(self, Channel *channel) noexcept nogil
    cdef void pass_done(self, Channel *channel) noexcept nogil
    cdef int test_requests(self) noexcept nogil
