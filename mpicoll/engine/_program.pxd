"""See `_program.pyx`: what a plan is in C."""

from libc.stdint cimport int64_t, uint64_t
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

from mpicoll._kernels cimport fold_function
from mpicoll.engine._transport cimport Device, Place, Receive, Receiver, Send


cdef struct Copy:
    Place target
    Place source


cdef struct Operand:
    int receive
    Place place


cdef struct Fold:
    Place target
    int operands
    int count


cdef struct Unit:
    int receives  # first in the list of numbers
    int count
    int folds
    int folds_end
    int sends  # that must be complete first: all before this number
    bint alone  # one message, once in each fold
    int missing
    bint folded


cdef struct Phase:
    int moves, moves_end
    int receives, receives_end
    int sends, sends_end
    int units, units_end
    int stores, stores_end
    int late, late_end
    bint last


cdef struct Channel:
    int phases, phases_end
    int segment
    int current
    int receives  # that are under way
    int sends, sends_end  # that are under way, the first one and the end
    int unfolded  # units of the current phase that are complete but for sends
    bint closed


cdef class Program(Receiver):
    cdef readonly object plan
    cdef readonly bint active
    cdef readonly Device device
    cdef object reduction
    cdef object _send, _recv, _temporary  # keep memory alive
    cdef list _late
    cdef int nbases, nchannels, nsegments, window, most_open
    cdef int nphases, nunits, nfolds, noperands, nnumbers, widest
    cdef Channel *channels
    cdef Phase *phases
    cdef Copy *copies
    cdef Receive *receives
    cdef Send *sends
    cdef Operand *operands
    cdef Fold *folds
    cdef Unit *units
    cdef int *numbers
    cdef int nreceives, nsends, before_end, after, after_end
    cdef int *left
    cdef int *opening
    cdef int nopening, open_channels
    cdef char **pointers
    cdef int64_t *blocked
    cdef int64_t scan
    cdef int pending  # sends that wait or are not acknowledged
    cdef int idle  # tests without progress
    cdef bint touched  # by a message, since it last advanced
    cdef fold_function kernel
    cdef int64_t itemsize
    cdef uint64_t remote  # length from which on messages are read where they lie
    cdef mpi.MPI_Comm comm
    cdef mpi.MPI_Request *requests
    cdef int *owners
    cdef int *indices
    cdef mpi.MPI_Status *statuses
    cdef int nrequests
    cdef int code  # of MPI
    cdef int lane, high  # that the tags are made for

    cdef _take(self, Py_ssize_t copies)
    cdef _fill(self, channels)
    cdef _scale(self, Program like, int64_t old, int64_t new)
    cdef int bind(self, MPI.Comm comm, int high, int lane) except -1


cdef fold_function kernel_of(reduction)
