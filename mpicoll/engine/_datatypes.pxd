"""See `_datatypes.pyx`: what is known of datatypes."""

from libc.stdint cimport int64_t
from mpi4py cimport libmpi as mpi


cdef enum:
    AXES = 8  # of pieces, one of them for the elements of a buffer


cdef struct Known:
    # A datatype that is derived, or has holes.
    int size
    mpi.MPI_Aint low, extent, first, length
    # Where the bytes of an element lie: pieces along axes, the outermost first.
    bint described, regular
    int axes
    int64_t start
    int64_t counts[AXES]
    int64_t strides[AXES]
    int64_t piece  # bytes


cdef bint is_flat(mpi.MPI_Datatype handle) noexcept
cdef const Known *known_of(mpi.MPI_Datatype handle, Known *space) noexcept
cdef const Known *kept(mpi.MPI_Datatype handle) noexcept nogil
cdef void copy_elements(
    const Known *known, char *memory, int64_t count, char *packed, bint back
) noexcept nogil
