"""Elements that do not lie one behind the other are copied to memory where they do, and back.

What :mod:`mpicoll.buffers.packing` does for a call that is parsed, for one that is made again: of
memory that lies elsewhere, and by the datatype's handle of this time.
"""

from mpi4py cimport libmpi as mpi

from mpicoll.engine._datatypes cimport Known, copy_elements, kept
from mpicoll.engine._signature cimport DIMENSIONS

cimport numpy as cnp

from mpi4py import MPI as _MPI

cnp.import_array()


cdef class Packing:
    """How the elements of one side of a call are packed."""

    cdef int load(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1:
        """Copy the elements of memory to packed ones."""
        raise NotImplementedError

    cdef int store(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1:
        """Copy them back."""
        raise NotImplementedError


cdef class StridedPacking(Packing):
    """The elements of an array.

    Args:
        array: an array like the caller's, cut into blocks.
        packed: an array of that shape over the packed elements.
    """

    def __cinit__(self, cnp.ndarray array not None, cnp.ndarray packed not None):
        cdef int i
        self.ndim, self.number = array.ndim, cnp.PyArray_TYPE(array)
        if self.ndim > DIMENSIONS or packed.ndim != self.ndim:
            raise ValueError(f"arrays of {array.ndim} and {packed.ndim} dimensions")
        self.length = cnp.PyArray_NBYTES(array)
        for i in range(self.ndim):
            self.shape[i] = cnp.PyArray_DIM(array, i)
            self.strides[i] = cnp.PyArray_STRIDE(array, i)
            self.packed[i] = cnp.PyArray_STRIDE(packed, i)

    cdef int load(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1:
        return self.copy(packed, self.packed, address, self.strides)

    cdef int store(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1:
        return self.copy(address, self.strides, packed, self.packed)

    cdef int copy(
        self, char *target, cnp.npy_intp *there, char *source, cnp.npy_intp *here
    ) except -1:
        cnp.PyArray_CopyInto(
            <cnp.ndarray> cnp.PyArray_New(
                cnp.ndarray, self.ndim, self.shape, self.number, there, target, 0,
                cnp.NPY_ARRAY_WRITEABLE, <object> NULL,
            ),
            <cnp.ndarray> cnp.PyArray_New(
                cnp.ndarray, self.ndim, self.shape, self.number, here, source, 0, 0, <object> NULL
            ),
        )
        return 0


cdef class TypedPacking(Packing):
    """Elements of a derived datatype.

    What is known to be regular is copied here, anything else by the MPI library.

    Args:
        parts: (offset in bytes, number of elements) of each part; they lie one behind the other.
        length: bytes of all packed elements.
    """

    def __cinit__(self, list parts not None, int64_t length):
        if length >= 1 << 31:
            raise ValueError(f"{length} bytes, which the MPI library may count in an int")
        self.parts, self.length = parts, length

    cdef int load(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1:
        return self.move(address, datatype, packed, False)

    cdef int store(self, char *address, mpi.MPI_Datatype datatype, char *packed) except -1:
        return self.move(address, datatype, packed, True)

    cdef int move(
        self, char *address, mpi.MPI_Datatype datatype, char *packed, bint back
    ) except -1:
        cdef const Known *known = kept(datatype)
        cdef int position = 0, code = mpi.MPI_SUCCESS, count, length = <int> self.length
        cdef mpi.MPI_Aint offset
        for offset, count in self.parts:
            with nogil:
                if known != NULL and known.regular:
                    copy_elements(known, address + offset, count, packed + position, back)
                    position += count * known.size
                elif back:
                    code = mpi.MPI_Unpack(
                        packed, length, &position, address + offset, count, datatype,
                        mpi.MPI_COMM_SELF,
                    )
                else:
                    code = mpi.MPI_Pack(
                        address + offset, count, datatype, packed, length, &position,
                        mpi.MPI_COMM_SELF,
                    )
            if code != mpi.MPI_SUCCESS:
                raise _MPI.Exception(code)
        return 0
