"""Objects of Python's that end with communicators.

They are attributes of the communicators' handles.  The function that MPI calls when one is deleted
does not look at the communicator: where that has two attributes, MPICH 5.0.2 has freed the first
one, and still finds it in the list of them, while it deletes the second.  mpi4py's function asks
for the topology, which is an attribute, too.
"""

import traceback

from cpython.ref cimport Py_DECREF, Py_INCREF
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi


from mpi4py import MPI as _MPI


cdef extern from "Python.h":
    bint Py_IsInitialized() nogil


cdef class Attributes:
    """Attributes of communicators: one object of Python's for each."""

    cdef int keyval

    def __init__(self):
        _check(mpi.MPI_Comm_create_keyval(mpi.MPI_COMM_NULL_COPY_FN, _freed, &self.keyval, NULL))

    def find(self, MPI.Comm comm not None):
        """What is attached to a communicator, None if nothing is.

        Raises:
            MPI.Exception: what MPI reports.
        """
        cdef void *attached = NULL
        cdef int found = 0
        _check(mpi.MPI_Comm_get_attr(comm.ob_mpi, self.keyval, &attached, &found))
        return <object> attached if found else None

    def attach(self, MPI.Comm comm not None, attached not None):
        """Attach an object, whose ``close`` is called when the communicator is freed.

        Raises:
            MPI.Exception: what MPI reports.
        """
        _check(mpi.MPI_Comm_set_attr(comm.ob_mpi, self.keyval, <void *> attached))
        Py_INCREF(attached)


cdef int _check(int code) except -1:
    if code != mpi.MPI_SUCCESS:
        raise _MPI.Exception(code)
    return 0


cdef int _freed(mpi.MPI_Comm handle, int keyval, void *attached, void *more) noexcept nogil:
    """A communicator is freed."""
    if not Py_IsInitialized():
        return mpi.MPI_SUCCESS
    return _close(attached)


cdef int _close(void *attached) noexcept with gil:
    kept = <object> attached
    Py_DECREF(kept)
    try:
        kept.close()
    except BaseException as error:
        # It cannot go through the MPI library; whoever frees gets the code.
        traceback.print_exc()
        return error.Get_error_code() if isinstance(error, _MPI.Exception) else mpi.MPI_ERR_OTHER
    return mpi.MPI_SUCCESS
