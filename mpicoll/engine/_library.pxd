"""See `_library.pyx`: the MPI library's non-blocking collectives."""

from mpi4py cimport libmpi as mpi


cdef struct Given:
    # What it gets of a buffer beside the address.
    bint in_place
    int count
    mpi.MPI_Datatype datatype


cdef int start(
    int method, void *send, const Given *sent, void *recv, const Given *received, mpi.MPI_Op op,
    int root, mpi.MPI_Comm comm, mpi.MPI_Request *request,
) noexcept nogil
