"""The types of what every recorded request has, where it is compiled."""

import cython

from mpicoll.profile.recorder cimport Channel, Row


cdef class Pending:
    cdef public Row row
    cdef public Channel channel
    cdef public long long nbytes, number
    cdef public double begin
    cdef public bint kept, busy

    cpdef waited(self, double begin, double end, Py_ssize_t share, bint over)


@cython.locals(begin=double, end=double)
cdef object _waiting(Pending pending, object function, tuple arguments, dict named)
