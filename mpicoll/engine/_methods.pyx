"""Methods that serve the usual calls in C, and leave all others to a function of Python's.

A function of Python's costs a third of a microsecond before its first line: keywords become a
dictionary, and whatever it calls gets the arguments once more.  A short call of the MPI library
takes one or two.  A `Method` reads the caller's arguments where they lie.  The function that it
stands for makes all calls that are not usual, and says what is wrong with a call; to ``inspect``,
``help`` and derived classes the method looks like that function.
"""

cimport cython
from cpython.object cimport PyObject
from mpi4py cimport MPI

from mpicoll.engine._fast_path cimport FastPath


cdef extern from "Python.h":
    unsigned long Py_TPFLAGS_METHOD_DESCRIPTOR
    unsigned long Py_TPFLAGS_HAVE_VECTORCALL
    object PyVectorcall_Call(object, object, object)
    object PyMethod_New(object, object)

cdef enum:
    # Places of what a collective takes, see `mpicoll.schedule.methods`; the last is the algorithm.
    SEND = 0
    RECV = 1
    OP = 2
    ROOT = 3
    COUNTS = 4
    ALGORITHM = 5
    PLACES = 6

cdef object _UNUSUAL = object()  # in place of what a call returns, which may be any other


@cython.auto_pickle(False)  # mpi4py's way holds
cdef class FastComm(MPI.Intracomm):
    """A communicator that keeps its fast path where methods in C find it.

    Attributes:
        _fast_path: serves calls like earlier ones; None until there has been one.
    """


cdef class Usual:
    """The usual calls of a method."""

    cdef object call(self, PyObject **arguments, size_t given, PyObject *names):
        """Make a call, if it is one of these; else `_UNUSUAL`."""
        return _UNUSUAL


cdef class Method:
    """A method in place of a function.

    Args:
        function: makes every call that is not a usual one.
        usual: makes those.
    """

    cdef vectorcallfunc vectorcall
    cdef Usual usual
    cdef readonly object __wrapped__

    def __init__(self, function, Usual usual not None):
        self.__wrapped__, self.usual = function, usual
        self.vectorcall = <vectorcallfunc> <void *> _call

    @property
    def __doc__(self):
        return self.__wrapped__.__doc__

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

    def __get__(self, instance, owner):
        return self if instance is None else PyMethod_New(self, instance)

    def __call__(self, *arguments, **named):
        return PyVectorcall_Call(self, arguments, named)

    def __repr__(self):
        return repr(self.__wrapped__)


cdef object _call(PyObject *called, PyObject **arguments, size_t given, PyObject *names):
    cdef Method self = <Method> called
    result = self.usual.call(arguments, given, names)
    if result is _UNUSUAL:
        return PyObject_Vectorcall(self.__wrapped__, arguments, given, names)
    return result


cdef int _ready(Method some) except -1:
    """Let methods get the arguments of a call as they lie, and without a bound method."""
    cdef PyTypeObject *kind = <PyTypeObject *> <PyObject *> Method
    kind.tp_vectorcall_offset = <char *> &some.vectorcall - <char *> <PyObject *> some
    kind.tp_flags |= Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_VECTORCALL
    return 0


_ready(Method(None, Usual()))


cdef class Collectives(Usual):
    """Calls of a collective that the communicator's fast path knows.

    Args:
        number: what the fast path tells the method by.
        starts: whether the method starts the collective.
        names: of the arguments, the algorithm's at the end.
        places: what each argument is, as in :mod:`mpicoll.schedule.methods`; the algorithm is 5.
        required: how many arguments have no default.
        defaults: by place.
        switch: a keyword that changes nothing where it is False; None if there is none.
    """

    cdef int number, required, n
    cdef bint starts, counted
    cdef tuple names, defaults
    cdef object switch
    cdef int places[PLACES]

    def __init__(
        self, int number, bint starts, tuple names, places, int required, tuple defaults, switch
    ):
        self.number, self.starts, self.required = number, starts, required
        self.names, self.defaults, self.n, self.switch = names, defaults, len(names), switch
        # Without counts the ranks tell one another first.
        self.counted = COUNTS in places and not starts
        for i, place in enumerate(places):
            self.places[i] = place

    cdef object call(self, PyObject **arguments, size_t given, PyObject *names):
        cdef PyObject *every[PLACES]
        cdef bint served
        cdef Py_ssize_t n = PyVectorcall_NARGS(given)
        if n == 0 or not isinstance(<object> arguments[0], FastComm):
            return _UNUSUAL
        comm = <object> arguments[0]
        path = (<FastComm> comm)._fast_path
        if path is None:
            return _UNUSUAL
        if self.starts and self.n == 1 and n == 1 and names == NULL and type(path) is FastPath:
            request = (<FastPath> path).start_barrier(comm)
            if request is not None:
                return request
        if not _place(self, arguments, n, names, every):
            return _UNUSUAL
        algorithm = <object> every[ALGORITHM]
        sendbuf, recvbuf, op = <object> every[SEND], <object> every[RECV], <object> every[OP]
        root, counts = <object> every[ROOT], <object> every[COUNTS]
        if self.starts:
            if type(path) is FastPath:
                request = (<FastPath> path).start(
                    comm, self.number, sendbuf, recvbuf, op, root, counts, algorithm
                )
            else:
                request = path.start(
                    comm, self.number, sendbuf, recvbuf, op, root, counts, algorithm
                )
            return _UNUSUAL if request is None else request
        if type(path) is FastPath:
            served = (<FastPath> path).serve(
                comm, self.number, sendbuf, recvbuf, op, root, counts, algorithm
            )
        else:
            served = path.serve(comm, self.number, sendbuf, recvbuf, op, root, counts, algorithm)
        return None if served else _UNUSUAL


cdef bint _place(
    Collectives self, PyObject **arguments, Py_ssize_t n, PyObject *names, PyObject **every
) except -1:
    """Put a call's arguments in their places; False if it is not one of the usual."""
    cdef Py_ssize_t i, j, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    cdef int seen = 0
    if not 1 <= n <= self.n:  # all but the algorithm may be given by position
        return False
    for i in range(PLACES):
        every[i] = <PyObject *> self.defaults[i]
    for i in range(n - 1):
        every[self.places[i]] = arguments[1 + i]
        seen |= 1 << i
    for i in range(named):
        j = place_of(PyTuple_GET_ITEM(names, i), self.names)
        if j < 0:
            if (
                PyTuple_GET_ITEM(names, i) == <PyObject *> self.switch
                and <object> arguments[n + i] is False
            ):
                continue
            return False
        if seen & (1 << j):
            return False
        every[self.places[j]] = arguments[n + i]
        seen |= 1 << j
    if ~seen & ((1 << self.required) - 1):  # one of the first is missing
        return False
    return not (self.counted and every[COUNTS] == <PyObject *> None)
