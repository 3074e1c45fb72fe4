"""Messages between two ranks, in C.

Arrays of numbers go to the MPI library at once, all other memory of the host to mpi4py's methods.
"""

from cpython.object cimport PyObject
from libc.limits cimport INT_MAX, INT_MIN
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

cimport numpy as cnp

from mpicoll.engine._methods cimport (
    PyObject_Vectorcall, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyVectorcall_NARGS, Py_TYPE, Usual,
    place_of, vectorcallfunc,
)

from array import array

from mpi4py import MPI as _MPI
from numpy import dtype

cnp.import_array()


cdef extern from "Python.h":
    vectorcallfunc PyVectorcall_Function(object)
    long PyLong_AsLongAndOverflow(object, int *) except? -1
    Py_ssize_t PyList_GET_SIZE(PyObject *)
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)

cdef enum:
    MOST = 8  # arguments of a message's method
    NUMBERS = 17  # types of NumPy's that are numbers, but for those of 16 bits

cdef struct Message:
    PyObject *owner
    void *address
    int count
    mpi.MPI_Datatype datatype
    int peer
    int tag

#: Of NumPy's numbers, by their own; the null handle where MPI has none.
cdef mpi.MPI_Datatype _datatypes[NUMBERS]


cdef int _know_numbers() except -1:
    cdef int i
    for i in range(NUMBERS):
        _datatypes[i] = mpi.MPI_DATATYPE_NULL
    for code in "?bBhHiIlLqQfdgFDG":
        try:
            datatype = _MPI.Datatype.fromcode(code)
        except ValueError:  # mpi4py knows none
            continue
        _datatypes[dtype(code).num] = (<MPI.Datatype> datatype).ob_mpi
    return 0


_know_numbers()

cdef frozenset _ON_HOST = frozenset((memoryview, bytearray, bytes, array, _MPI.buffer))
cdef PyObject *_LIST = <PyObject *> list
cdef PyObject *_TUPLE = <PyObject *> tuple
cdef PyObject *_ARRAY = <PyObject *> cnp.ndarray


cdef class Messages(Usual):
    """Messages between two ranks from and to memory of the host: the function of mpi4py's.

    Args:
        native: that function.
        places: where among the arguments buffers are; the communicator is the first.
    """

    cdef object native
    cdef vectorcallfunc function  # what calls it
    cdef int n
    cdef int places[2]

    def __init__(self, native, places):
        self.native, self.function = native, PyVectorcall_Function(native)
        if self.function == NULL:
            self.function = <vectorcallfunc> <void *> PyObject_Vectorcall
        self.n = len(places)
        for i, place in enumerate(places):
            self.places[i] = place

    cdef object call(self, PyObject **arguments, size_t given, PyObject *names):
        cdef Py_ssize_t n = PyVectorcall_NARGS(given)
        cdef Py_ssize_t i, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
        for i in range(self.n):
            if self.places[i] < n and not _is_on_host(arguments[self.places[i]]):
                return Usual.call(self, arguments, given, names)
        for i in range(n, n + named):  # any of them may be a buffer
            value = <object> arguments[i]
            if not (
                type(value) is int or type(value) is MPI.Status or _is_on_host(arguments[i])
            ):
                return Usual.call(self, arguments, given, names)
        return self.function(<PyObject *> self.native, arguments, given, names)


cdef class BlockingMessages(Messages):
    """Messages that have been sent or received when the method returns.

    Those of arrays of numbers go to the MPI library at once: mpi4py takes as long to find out what
    an array is as a short message is on its way.

    Args:
        native, places: see `Messages`.
        names: of the arguments, the communicator's first.
        send, recv: where the buffers are; 0: there is none.
    """

    cdef tuple names
    cdef int send, recv

    def __init__(self, native, places, tuple names not None, int send, int recv):
        super().__init__(native, places)
        if len(names) > MOST:
            raise ValueError(f"{len(names)} arguments: there is room for {MOST}")
        self.names, self.send, self.recv = names, send, recv

    cdef object call(self, PyObject **arguments, size_t given, PyObject *names):
        if self.at_once(arguments, PyVectorcall_NARGS(given), names):
            return None
        return Messages.call(self, arguments, given, names)

    cdef bint at_once(self, PyObject **arguments, Py_ssize_t n, PyObject *names) except -1:
        """Send and receive arrays of numbers; False if that is not what the arguments are."""
        cdef PyObject *every[MOST]
        cdef Message send, recv
        cdef mpi.MPI_Status *status = mpi.MPI_STATUS_IGNORE
        cdef mpi.MPI_Comm comm
        cdef int code
        if n == 0 or not isinstance(<object> arguments[0], MPI.Comm):
            return False
        if not _sort(arguments, n, names, self.names, every):
            return False
        if self.send:
            if every[self.send + 1] == NULL or not _read(&send, every + self.send, 0, 0, False):
                return False
        if self.recv:
            if not _read(
                &recv, every + self.recv, mpi.MPI_ANY_SOURCE, mpi.MPI_ANY_TAG, True
            ):
                return False
            if every[self.recv + 3] != NULL and every[self.recv + 3] != <PyObject *> None:
                if type(<object> every[self.recv + 3]) is not MPI.Status:
                    return False
                status = &(<MPI.Status> every[self.recv + 3]).ob_mpi
        # A list may be given another array meanwhile.
        _sent = <object> send.owner if self.send else None
        _received = <object> recv.owner if self.recv else None
        comm = (<MPI.Comm> every[0]).ob_mpi
        with nogil:
            if not self.recv:
                code = mpi.MPI_Send(
                    send.address, send.count, send.datatype, send.peer, send.tag, comm
                )
            elif not self.send:
                code = mpi.MPI_Recv(
                    recv.address, recv.count, recv.datatype, recv.peer, recv.tag, comm, status
                )
            else:
                code = mpi.MPI_Sendrecv(
                    send.address, send.count, send.datatype, send.peer, send.tag,
                    recv.address, recv.count, recv.datatype, recv.peer, recv.tag, comm, status,
                )
        if code != mpi.MPI_SUCCESS:
            raise _MPI.Exception(code)
        return True


cdef bint _sort(
    PyObject **arguments, Py_ssize_t n, PyObject *names, tuple own, PyObject **every
) except -1:
    """Put arguments in the order of a function's own names; NULL: not given; False: wrong ones."""
    cdef Py_ssize_t i, j, most = len(own), named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    if n > most:
        return False
    for i in range(n):
        every[i] = arguments[i]
    for i in range(n, most):
        every[i] = NULL
    for i in range(named):
        j = place_of(PyTuple_GET_ITEM(names, i), own)
        if j < n or every[j] != NULL:
            return False
        every[j] = arguments[n + i]
    return True


cdef bint _read(Message *self, PyObject **given, int peer, int tag, bint writes) except -1:
    """A buffer, peer and tag; False if they are no array of numbers and no plain integers."""
    cdef PyObject *owner = given[0]
    cdef PyObject *count = NULL
    cdef PyObject *datatype = NULL
    cdef cnp.ndarray buffer
    cdef int number
    if owner == NULL:
        return False
    if <PyObject *> Py_TYPE(owner) == _LIST and 2 <= PyList_GET_SIZE(owner) <= 3:
        datatype = PyList_GET_ITEM(owner, PyList_GET_SIZE(owner) - 1)
        if PyList_GET_SIZE(owner) == 3:
            count = PyList_GET_ITEM(owner, 1)
        owner = PyList_GET_ITEM(owner, 0)
    if <PyObject *> Py_TYPE(owner) != _ARRAY:
        return False
    buffer = <cnp.ndarray> owner
    number = cnp.PyArray_TYPE(buffer)
    if (
        not 0 <= number < NUMBERS
        or _datatypes[number] == mpi.MPI_DATATYPE_NULL
        or not cnp.PyArray_ISNOTSWAPPED(buffer)
        or not cnp.PyArray_ISALIGNED(buffer)  # mpi4py refuses some
        or not (cnp.PyArray_IS_C_CONTIGUOUS(buffer) or cnp.PyArray_IS_F_CONTIGUOUS(buffer))
        or cnp.PyArray_SIZE(buffer) > INT_MAX
        or (writes and not cnp.PyArray_ISWRITEABLE(buffer))
    ):
        return False
    self.owner = owner
    self.address, self.count = cnp.PyArray_DATA(buffer), <int> cnp.PyArray_SIZE(buffer)
    self.datatype, self.peer, self.tag = _datatypes[number], peer, tag
    if datatype != NULL and (
        type(<object> datatype) is not MPI.Datatype
        or (<MPI.Datatype> datatype).ob_mpi != self.datatype
    ):
        return False
    if count != NULL and not (
        _put(&self.count, count) and 0 <= self.count <= cnp.PyArray_SIZE(buffer)
    ):
        return False
    return _put(&self.peer, given[1]) and _put(&self.tag, given[2])


cdef bint _put(int *self, PyObject *value) except -1:
    """Take an integer, if there is one; False if it is none of C's or no plain one."""
    cdef int overflow = 0
    cdef long number
    if value == NULL:
        return True
    if type(<object> value) is not int:
        return False
    number = PyLong_AsLongAndOverflow(<object> value, &overflow)
    if overflow or not INT_MIN <= number <= INT_MAX:
        return False
    self[0] = <int> number
    return True


cdef bint _is_on_host(PyObject *buf) except -1:
    """Whether it is clear at once that a buffer is in memory of the host."""
    cdef PyObject *kind = <PyObject *> Py_TYPE(buf)
    if kind == _LIST:
        if PyList_GET_SIZE(buf) == 0:
            return False
        buf = PyList_GET_ITEM(buf, 0)
        kind = <PyObject *> Py_TYPE(buf)
    elif kind == _TUPLE:
        if PyTuple_GET_SIZE(buf) == 0:
            return False
        buf = PyTuple_GET_ITEM(buf, 0)
        kind = <PyObject *> Py_TYPE(buf)
    return kind == _ARRAY or buf == <PyObject *> None or <object> kind in _ON_HOST
