"""The types of what counts the bytes of a call, where it is compiled."""

cpdef long long at_once(object message)
cpdef long long payload(object message, bint several=*)
cdef long long _of_list(object message, bint several) except? -1
cdef bint _is_list(object value)
cdef bint _is_type(object value)
cdef long long _whole(object buffer) except? -1
cdef long long _size(object kind, object buffer) except? -1
