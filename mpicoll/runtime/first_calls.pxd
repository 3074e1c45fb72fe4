"""The types of first calls, where they are compiled."""


cdef class FirstCalls:
    cdef public object family, hints
    cdef public long left
    cdef bint _closed
    cdef object _known
    cdef int _unseen
    cdef dict _served

    cdef bint _pass_unseen(self, object comm, object sendbuf, object recvbuf) except -1
    cpdef bint may_pass(self, int method) except -1
    cdef bint _always_passes(self, int method) except -1
    cdef bint _is_open(self, object comm) except -1
    cdef object _path(self, object comm)
    cdef int _has_served(self, int method) except -1


cdef bint _are_plain(object sendbuf, object recvbuf) except -1
cdef bint _is_plain(object message) except -1
