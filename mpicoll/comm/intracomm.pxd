"""The types of what every communicator passes that is made or freed, where it is compiled."""

cdef object _child(object comm, object made)
cdef object _adopt(object comm, object made, object hinted=*)
cdef object _made(object method, object comm, tuple arguments, dict more=*)
cdef object _let_go(object comm, str method)
