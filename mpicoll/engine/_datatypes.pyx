"""What is known of datatypes, by their handles.

What is known of a derived datatype is an attribute of it: when it is freed, and its handle may
become another datatype's, the attribute is gone.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi


cdef extern from "_pieces.h" nogil:
    char *pieces_copy(
        char *packed, char *memory, const int64_t *counts, const int64_t *strides, int axes,
        int64_t length, bint back,
    )


cdef enum:
    FLAT_KNOWN = 64

# Predefined datatypes without holes, whose handles stay theirs.
cdef mpi.MPI_Datatype _flat[FLAT_KNOWN]
cdef int _nflat = 0

cdef int _keyval = mpi.MPI_KEYVAL_INVALID


cdef bint is_flat(mpi.MPI_Datatype handle) noexcept:
    """Whether it is known to be predefined and without holes."""
    cdef int i
    for i in range(_nflat):
        if _flat[i] == handle:
            return True
    return False


cdef const Known *known_of(mpi.MPI_Datatype handle, Known *space) noexcept:
    """What is known of a datatype, from now on if need be; NULL if nothing can be.

    Args:
        handle: of any datatype; where it is found to be flat, the answer is NULL, and `is_flat`
            knows it.
        space: for what cannot be kept.
    """
    global _nflat
    cdef const Known *found = kept(handle)
    cdef Known *known
    cdef int integers, addresses, datatypes, combiner
    cdef bint predefined
    if found != NULL:
        return found
    memset(space, 0, sizeof(Known))
    # The envelope of what a function of large counts has made cannot be had in this way.
    predefined = (
        mpi.MPI_Type_get_envelope(handle, &integers, &addresses, &datatypes, &combiner) == 0
        and combiner == mpi.MPI_COMBINER_NAMED
    )
    if (
        mpi.MPI_Type_size(handle, &space.size)
        or mpi.MPI_Type_get_extent(handle, &space.low, &space.extent)
        or mpi.MPI_Type_get_true_extent(handle, &space.first, &space.length)
        or space.size < 0  # more than MPI counts in an int
    ):
        return NULL
    if predefined:
        if space.size == space.extent and _nflat < FLAT_KNOWN:
            _flat[_nflat] = handle
            _nflat += 1
            return NULL
        return space
    known = _keep(handle)
    if known == NULL:
        return space
    known[0] = space[0]
    return known


cdef Known *_keep(mpi.MPI_Datatype handle) noexcept:
    """Memory that is freed with a datatype, NULL if there is none."""
    global _keyval
    cdef Known *known
    if _keyval == mpi.MPI_KEYVAL_INVALID and mpi.MPI_Type_create_keyval(
        mpi.MPI_TYPE_NULL_COPY_FN, _forget, &_keyval, NULL
    ):
        return NULL
    known = <Known *> calloc(1, sizeof(Known))
    if known != NULL and mpi.MPI_Type_set_attr(handle, _keyval, known):
        free(known)
        return NULL
    return known


cdef int _forget(mpi.MPI_Datatype handle, int keyval, void *known, void *more) noexcept nogil:
    """A datatype is freed."""
    free(known)
    return mpi.MPI_SUCCESS


cdef const Known *kept(mpi.MPI_Datatype handle) noexcept nogil:
    """What is kept of a derived datatype, NULL if nothing is."""
    cdef void *known = NULL
    cdef int found = 0
    if _keyval == mpi.MPI_KEYVAL_INVALID or mpi.MPI_Type_get_attr(
        handle, _keyval, &known, &found
    ):
        return NULL
    return <const Known *> known if found else NULL


cdef void copy_elements(
    const Known *known, char *memory, int64_t count, char *packed, bint back
) noexcept nogil:
    """Pack elements of a regular datatype, or unpack them."""
    cdef int64_t counts[AXES]
    cdef int64_t strides[AXES]
    cdef int i, axes = 0
    if count != 1:
        counts[0], strides[0], axes = count, known.extent, 1
    for i in range(known.axes):
        counts[axes], strides[axes] = known.counts[i], known.strides[i]
        axes += 1
    pieces_copy(packed, memory + known.start, counts, strides, axes, known.piece, back)


def is_described(MPI.Datatype datatype not None):
    """Whether it is known where the bytes of a derived datatype lie, or that this is not regular;
    also where that cannot be kept."""
    cdef const Known *known = kept(datatype.ob_mpi)
    return known == NULL or known.described


def describe(MPI.Datatype datatype not None, regular):
    """Keep where the bytes of a datatype lie.

    Args:
        datatype: one that a call has been made with.
        regular: a :class:`mpicoll.buffers.typemaps.Regular`, None if they do not lie so.
    """
    cdef Known *known = <Known *> kept(datatype.ob_mpi)
    if known == NULL:
        return
    known.described = True
    if regular is None or len(regular.axes) >= AXES:
        return
    for i, (count, stride) in enumerate(regular.axes):
        known.counts[i], known.strides[i] = count, stride
    known.axes, known.start, known.piece = len(regular.axes), regular.start, regular.length
    known.regular = True
