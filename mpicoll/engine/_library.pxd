"""See `_library.pyx`: the MPI library's own collectives."""

from mpi4py cimport libmpi as mpi


cdef struct Given:
    # What it gets of a buffer beside the address.
    bint in_place
    bint typed  # its datatypes are derived, and those of this time
    int count
    mpi.MPI_Datatype datatype
    # Of blocks of any lengths, else NULL; and where each has a datatype.
    int *counts
    int *places
    mpi.MPI_Datatype *datatypes


cdef class Direct:
    cdef int method
    cdef Given given[2]

    cdef int fill(self, Given *side, given) except -1


cdef int call(
    int method, void *send, const Given *sent, void *recv, const Given *received, mpi.MPI_Op op,
    int root, mpi.MPI_Comm comm, mpi.MPI_Request *request,
) noexcept nogil
