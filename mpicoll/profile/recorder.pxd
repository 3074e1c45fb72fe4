"""The types of what every recorded call reads and adds to, where it is compiled."""


cdef class Row:
    cdef public Py_ssize_t number
    cdef public dict about
    cdef public str algorithm
    cdef public object code
    cdef public long long calls, nbytes, written
    cdef public double seconds


cdef class Channel:
    cdef public Py_ssize_t number, size
    cdef public dict about, rows
    cdef public long long count, mask, left
    cdef public list times
    cdef public bint told

    cpdef keep(self, tuple times)


cdef class Recorder:
    cdef public double start
    cdef public list channels, rows
    cdef public Row messages
    cdef public long long pickled
    cdef object _alike, _world
