"""See `_signature.pyx`: what the arguments of a call say."""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int64_t, uint64_t
from mpi4py cimport libmpi as mpi


cdef enum:
    WORDS = 48  # that a signature has room for by itself
    DIMENSIONS = 32
    HANDLES = 32  # datatypes of a side that are kept


cdef struct Side:
    # A buffer of a call: what its memory is this time.
    char *address  # NULL: it has none
    int64_t length  # bytes, where they lie one behind the other
    bint strided  # an array whose elements do not lie one behind the other in C order
    int named  # datatypes, of which the first ones are kept
    mpi.MPI_Datatype handles[HANDLES]
    bint held  # until it is released
    Py_buffer view


cdef struct Signature:
    Side sides[2]
    uint64_t mixed  # all words
    int n
    int room
    int64_t *words
    int64_t own[WORDS]


cdef bint read(
    Signature *self, int method, sendbuf, recvbuf, op, root, counts, algorithm
) except -1
cdef void release(Signature *self) noexcept
cdef bint is_same(const Signature *self, const int64_t *words, int n) noexcept
