"""See `_packing.pyx`: elements that do not lie one behind the other, and copies that do."""

from libc.stdint cimport int64_t
from mpi4py cimport libmpi as mpi

from mpicoll.engine._signature cimport DIMENSIONS

cimport numpy as cnp


cdef class Packing:
    cdef readonly int64_t length
    cdef int load(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1
    cdef int store(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1


cdef class StridedPacking(Packing):
    cdef int ndim, number
    cdef cnp.npy_intp shape[DIMENSIONS]
    cdef cnp.npy_intp strides[DIMENSIONS]
    cdef cnp.npy_intp packed[DIMENSIONS]
    cdef int copy(
        self, char *target, cnp.npy_intp *there, char *source, cnp.npy_intp *here
    ) except -1


cdef class TypedPacking(Packing):
    cdef list parts
    cdef int move(
        self, char *address, mpi.MPI_Datatype datatype, char *packed, bint back
    ) except -1
