"""The types of what every message passes, where it is compiled."""

cdef bint _is_on_host(object buf) except -1
