"""See `_methods.pyx`: methods that serve the usual calls in C."""

from cpython.object cimport PyObject
from mpi4py cimport MPI


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        unsigned long tp_flags
        Py_ssize_t tp_vectorcall_offset
    ctypedef object (*vectorcallfunc)(PyObject *, PyObject **, size_t, PyObject *)
    PyTypeObject *Py_TYPE(PyObject *)
    object PyObject_Vectorcall(object, PyObject **, size_t, PyObject *)
    Py_ssize_t PyVectorcall_NARGS(size_t)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *)
    PyObject *PyTuple_GET_ITEM(PyObject *, Py_ssize_t)


cdef class FastComm(MPI.Intracomm):
    cdef public object _fast_path


cdef class Usual:
    cdef object call(self, PyObject **arguments, size_t given, PyObject *names)


cdef inline Py_ssize_t place_of(PyObject *name, tuple names) noexcept:
    """Where a name is among others; -1: nowhere.  In a program's text all are interned."""
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(<PyObject *> names)):
        if PyTuple_GET_ITEM(<PyObject *> names, i) == name:
            return i
    return -1
