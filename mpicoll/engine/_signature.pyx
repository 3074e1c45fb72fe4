"""What makes a call new: everything that its arguments say, but for the addresses of buffers.

Calls with one signature differ in nothing that parsing and choosing look at.  What a signature
cannot express (objects with a buffer of unknown classes, counts that are no plain numbers, ...) has
none, and goes the slow path every time.

A derived datatype is told by its size and extents, and not by its handle, which may be another
datatype's next time: whoever serves the call uses the handle of this time.
"""

from cpython.buffer cimport (
    PyBUF_FULL_RO, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.bytearray cimport PyByteArray_CheckExact
from cpython.bytes cimport PyBytes_CheckExact
from cpython.memoryview cimport PyMemoryView_Check
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, strlen
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

cimport numpy as cnp

from mpicoll.engine._datatypes cimport Known, is_flat, known_of

import array as _arrays

from numpy import integer

from mpi4py import MPI as _MPI

cnp.import_array()


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL


cdef enum:
    # Words that say what follows them; a plain array's own are numbers that are not negative.
    ABSENT = -1
    IN_PLACE = -2
    BUFFER = -3
    TENSOR = -4
    NOTHING = -5
    NUMBER = -6
    TEXT = -7
    FLAT = -8
    DERIVED = -9
    LIST = -10
    TUPLE = -11
    ARRAY = -12
    SHAPE = -13

cdef enum:
    DEPTH = 3

cdef object _IN_PLACE = _MPI.IN_PLACE
cdef object _Array = _arrays.array
cdef object _Memory = _MPI.buffer
cdef object _Integer = integer

#: The classes of PyTorch's tensors, once one has been passed.
cdef set _tensors = set()


def meet_tensor(kind):
    """Let tensors of a class have signatures."""
    _tensors.add(kind)


cdef bint read(
    Signature *self, int method, sendbuf, recvbuf, op, root, counts, algorithm
) except -1:
    """What a call's arguments say; False if it has no signature.  To be released either way."""
    self.sides[0].held = self.sides[1].held = False
    self.sides[0].address = self.sides[1].address = NULL
    self.sides[0].length = self.sides[1].length = 0
    self.sides[0].strided = self.sides[1].strided = False
    self.sides[0].named = self.sides[1].named = 0
    self.words, self.room, self.n, self.mixed = self.own, WORDS, 0, 0
    put(self, method)
    if not put_number(self, root):
        return False
    # The table keeps the name, so nothing else can lie there.
    put(self, 0 if algorithm is None else <int64_t> <void *> algorithm)
    if op is None:
        put(self, 0)
    elif type(op) is MPI.Op:
        put(self, <int64_t> (<MPI.Op> op).ob_mpi)
    else:
        return False
    if not (put_message(self, 0, sendbuf) and put_message(self, 1, recvbuf)):
        return False
    if counts is not None and not put_plain(self, NULL, counts, 0):
        return False
    if self.sides[0].strided or self.sides[1].strided:
        return put_shape(self, sendbuf) and put_shape(self, recvbuf)
    return True


cdef void release(Signature *self) noexcept:
    """Let go of all that it holds."""
    cdef int i
    for i in range(2):
        if self.sides[i].held:
            PyBuffer_Release(&self.sides[i].view)
            self.sides[i].held = False
    if self.words != self.own:
        free(self.words)
        self.words = self.own


cdef bint is_same(const Signature *self, const int64_t *words, int n) noexcept:
    return self.n == n and memcmp(self.words, words, n * sizeof(int64_t)) == 0


cdef inline int put(Signature *self, int64_t word) except -1:
    cdef int64_t *more
    if self.n == self.room:
        more = <int64_t *> malloc(2 * self.room * sizeof(int64_t))
        if more == NULL:
            raise MemoryError()
        memcpy(more, self.words, self.n * sizeof(int64_t))
        if self.words != self.own:
            free(self.words)
        self.words, self.room = more, 2 * self.room
    self.words[self.n] = word
    self.n += 1
    self.mixed = (self.mixed ^ <uint64_t> word) * <uint64_t> 0x9E3779B97F4A7C15
    self.mixed ^= self.mixed >> 29
    return 0


cdef bint put_message(Signature *self, int side, message) except -1:
    """A buffer as the caller passes it."""
    cdef Py_ssize_t i, n
    if message is None:
        put(self, ABSENT)
        return True
    if type(message) is list:
        put(self, LIST)
    elif type(message) is tuple:
        put(self, TUPLE)
    else:
        return put_owner(self, &self.sides[side], message)
    n = len(message)
    put(self, n)
    if n == 0 or not put_owner(self, &self.sides[side], message[0]):
        return False
    for i in range(1, n):
        if not put_plain(self, &self.sides[side], message[i], 0):
            return False
    return True


cdef bint put_owner(Signature *self, Side *side, owner) except -1:
    """What has the memory."""
    cdef cnp.ndarray array
    cdef int number
    if owner is None:
        put(self, ABSENT)
        return True
    if cnp.PyArray_Check(owner):
        array = <cnp.ndarray> owner
        number = cnp.PyArray_TYPE(array)
        # Numbers of flexible types do not tell how long an element is.
        if number < 0 or cnp.PyTypeNum_ISFLEXIBLE(number) or not cnp.PyArray_ISNOTSWAPPED(array):
            return False
        side.address = <char *> cnp.PyArray_DATA(array)
        side.length = cnp.PyArray_NBYTES(array)
        side.strided = not cnp.PyArray_IS_C_CONTIGUOUS(array)
        put(self, 2 * number + cnp.PyArray_ISWRITEABLE(array))
        put(self, side.length)
        return True
    if owner is _IN_PLACE:
        put(self, IN_PLACE)
        return True
    if (
        PyMemoryView_Check(owner)
        or PyByteArray_CheckExact(owner)
        or PyBytes_CheckExact(owner)
        or type(owner) is _Array
        or type(owner) is _Memory
    ):
        return put_buffer(self, side, owner)
    if type(owner) in _tensors:
        return put_tensor(self, side, owner)
    return False


cdef bint put_buffer(Signature *self, Side *side, owner) except -1:
    """What has a buffer of its own."""
    cdef int64_t format = 0
    cdef size_t length
    try:
        PyObject_GetBuffer(owner, &side.view, PyBUF_FULL_RO)
    except (BufferError, ValueError):
        return False  # the slow path says what is wrong
    side.held = True
    length = strlen(side.view.format) if side.view.format != NULL else 0
    if length > sizeof(format) or not PyBuffer_IsContiguous(&side.view, b"C"):
        return False
    memcpy(&format, side.view.format, length)
    side.address, side.length = <char *> side.view.buf, side.view.len
    put(self, BUFFER)
    put(self, 2 * side.view.itemsize + (side.view.readonly != 0))
    put(self, format)
    put(self, side.length)
    return True


cdef bint put_tensor(Signature *self, Side *side, owner) except -1:
    """A tensor of PyTorch in memory of the host, of plain numbers."""
    try:
        if (
            not owner.is_cpu or owner.requires_grad or not owner.is_contiguous()
            or owner.is_conj() or owner.is_neg()
        ):
            return False
        side.address = <char *> <uint64_t> owner.data_ptr()
        side.length = owner.nbytes
        put(self, TENSOR)
        put(self, <int64_t> <void *> owner.dtype)
        put(self, side.length)
    except Exception:
        return False  # the slow path says what is wrong
    return True


cdef bint put_plain(Signature *self, Side *side, value, int depth) except -1:
    """Numbers, datatypes and sequences of them; `side`: of what they describe, NULL: of nothing."""
    cdef Py_ssize_t i, n
    cdef const char *text
    cdef int64_t word = 0
    kind = type(value)
    if kind is int:
        put(self, NUMBER)
        return put_number(self, value)
    if kind is MPI.Datatype:
        return put_datatype(self, side, <MPI.Datatype> value)
    if value is None:
        put(self, NOTHING)
        return True
    if kind is list or kind is tuple:
        if depth == DEPTH:
            return False
        n = len(value)
        put(self, LIST if kind is list else TUPLE)
        put(self, n)
        for i in range(n):
            if not put_plain(self, side, value[i], depth + 1):
                return False
        return True
    if kind is str:
        text = PyUnicode_AsUTF8AndSize(value, &n)
        if n > <Py_ssize_t> sizeof(word):
            return False
        memcpy(&word, text, n)
        put(self, TEXT)
        put(self, word)
        return True
    if cnp.PyArray_CheckExact(value):
        return put_array(self, <cnp.ndarray> value)
    if isinstance(value, _Integer):
        put(self, NUMBER)
        return put_number(self, int(value))
    return False


cdef bint put_number(Signature *self, value) except -1:
    cdef int overflow = 0
    cdef int64_t word
    if type(value) is not int:
        if not isinstance(value, _Integer):
            return False
        value = int(value)
    word = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return False
    put(self, word)
    return True


cdef bint put_array(Signature *self, cnp.ndarray value) except -1:
    """Numbers in an array."""
    cdef Py_ssize_t i, n
    cdef const int64_t *numbers
    if (
        cnp.PyArray_NDIM(value) != 1
        or not cnp.PyTypeNum_ISINTEGER(cnp.PyArray_TYPE(value))
        or not cnp.PyArray_ISNOTSWAPPED(value)
    ):
        return False
    n = cnp.PyArray_SIZE(value)
    if cnp.PyArray_TYPE(value) != cnp.NPY_INT64 or not cnp.PyArray_IS_C_CONTIGUOUS(value):
        value = cnp.PyArray_ContiguousFromAny(value, cnp.NPY_INT64, 1, 1)
    numbers = <const int64_t *> cnp.PyArray_DATA(value)
    put(self, ARRAY)
    put(self, n)
    for i in range(n):
        put(self, numbers[i])
    return True


cdef bint put_datatype(Signature *self, Side *side, MPI.Datatype datatype) except -1:
    cdef mpi.MPI_Datatype handle = datatype.ob_mpi
    cdef const Known *known = NULL
    cdef Known space
    if handle == mpi.MPI_DATATYPE_NULL:
        return False
    if side != NULL:
        if side.named < HANDLES:
            side.handles[side.named] = handle
        side.named += 1
    if not is_flat(handle):
        known = known_of(handle, &space)
        if known == NULL and not is_flat(handle):
            return False
    if known == NULL:
        put(self, FLAT)
        put(self, <int64_t> handle)
        return True
    put(self, DERIVED)
    put(self, known.size)
    put(self, known.low)
    put(self, known.extent)
    put(self, known.first)
    put(self, known.length)
    return True


cdef bint put_shape(Signature *self, message) except -1:
    """How an array lies in memory; False for what is none."""
    cdef cnp.ndarray array
    cdef int i
    owner = message[0] if type(message) is list or type(message) is tuple else message
    put(self, SHAPE)
    if owner is None or owner is _IN_PLACE:
        return True
    if not cnp.PyArray_Check(owner):
        return False
    array = <cnp.ndarray> owner
    if cnp.PyArray_NDIM(array) > DIMENSIONS:
        return False
    put(self, cnp.PyArray_NDIM(array))
    for i in range(cnp.PyArray_NDIM(array)):
        put(self, cnp.PyArray_DIM(array, i))
        put(self, cnp.PyArray_STRIDE(array, i))
    return True
