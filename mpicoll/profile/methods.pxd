"""The types of a recorded call, where it is compiled."""

import cython

from mpicoll.profile.calls cimport at_once, payload
from mpicoll.profile.recorder cimport Channel, Recorder, Row
from mpicoll.profile.requests cimport Pending


cdef class Collective:
    cdef bint _algorithms, _equal
    cdef Py_ssize_t _array, _root
    cdef object _counting, _function, _method, _name
    cdef Recorder _recorder
    cdef readonly bint persistent, starts

    @cython.locals(found="long long")
    cdef long long _nbytes(self, Channel channel, tuple arguments, dict named) except? -1

    @cython.locals(row=Row)
    cdef Row _row(
        self, Channel channel, tuple arguments, dict named, long long nbytes, object asked
    )

    @cython.locals(
        channel=Channel, row=Row, nbytes="long long", number="long long", begin=double, end=double
    )
    cpdef object short(self, tuple arguments, dict named)

    @cython.locals(
        channel=Channel, recorder=Recorder, row=Row, pending=Pending, kept=bint, look=bint,
        nbytes="long long", number="long long", pickled="long long", begin=double, end=double,
    )
    cpdef object long(self, tuple arguments, dict named)

    cdef Channel _channel(self, object comm)


cdef class Message:
    cdef Recorder _recorder
    cdef Row _row
    cdef object _function
    cdef str _buffer
    cdef bint _pickles

    @cython.locals(row=Row, pickled="long long", begin=double)
    cpdef object made(self, tuple arguments, dict named)
