"""The MPI library's own collectives, by the numbers of methods.

What mpi4py's methods do, without looking at the buffers: whoever calls knows what they are.
"""

from libc.stdlib cimport calloc, free
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

from mpicoll.schedule.methods import METHODS

cdef enum:
    ALLREDUCE = 0
    REDUCE = 1
    BCAST = 2
    REDUCE_SCATTER_BLOCK = 3
    ALLGATHER = 4
    GATHER = 5
    SCATTER = 6
    ALLTOALL = 7
    SCAN = 8
    EXSCAN = 9
    BARRIER = 10
    ALLGATHERV = 11
    ALLTOALLV = 12
    ALLTOALLW = 13
    GATHERV = 14
    REDUCE_SCATTER = 15
    SCATTERV = 16

assert [METHODS[name].number for name in (
    "Allreduce", "Reduce", "Bcast", "Reduce_scatter_block", "Allgather", "Gather", "Scatter",
    "Alltoall", "Scan", "Exscan", "Barrier", "Allgatherv", "Alltoallv", "Alltoallw", "Gatherv",
    "Reduce_scatter", "Scatterv",
)] == [*range(17)]


cdef class Direct:
    """A collective of the MPI library's, and what it gets of the two buffers but for addresses.

    Args:
        method: its number.
        send, recv: None if in place, else count and datatype, or counts, displacements and
            datatype; None as datatype: of each call its own.
    """

    def __cinit__(self, int method, send, recv):
        self.method = method
        self.fill(&self.given[0], send)
        self.fill(&self.given[1], recv)

    def __dealloc__(self):
        cdef int i
        for i in range(2):
            free(self.given[i].counts)
            free(self.given[i].places)

    cdef int fill(self, Given *side, given) except -1:
        cdef int i, n
        side.in_place, side.datatype = given is None, mpi.MPI_BYTE
        if given is None:
            return 0
        *numbers, datatype = given
        side.typed = datatype is None
        if datatype is not None:
            side.datatype = (<MPI.Datatype?> datatype).ob_mpi
        if len(numbers) == 1:
            side.count = numbers[0]
            return 0
        counts, places = numbers
        n = len(counts)
        side.counts = <int *> calloc(max(n, 1), sizeof(int))
        side.places = <int *> calloc(max(n, 1), sizeof(int))
        if side.counts == NULL or side.places == NULL:
            raise MemoryError()
        for i in range(n):
            side.counts[i], side.places[i] = counts[i], places[i]
        return 0


cdef int call(
    int method, void *send, const Given *sent, void *recv, const Given *received, mpi.MPI_Op op,
    int root, mpi.MPI_Comm comm, mpi.MPI_Request *request,
) noexcept nogil:
    """Make a call, or start it where there is a place for a request; MPI's error code."""
    # Of a reduction, whose ranks all give something: in place it is where the result is.
    cdef const Given *both = received if sent.in_place else sent
    if sent.in_place:
        send = mpi.MPI_IN_PLACE
    if received.in_place:
        recv = mpi.MPI_IN_PLACE
    if request != NULL:
        return start(method, send, sent, recv, received, both, op, root, comm, request)
    if method == ALLREDUCE:
        return mpi.MPI_Allreduce(send, recv, both.count, both.datatype, op, comm)
    if method == REDUCE:
        return mpi.MPI_Reduce(send, recv, both.count, both.datatype, op, root, comm)
    if method == BCAST:
        return mpi.MPI_Bcast(recv, received.count, received.datatype, root, comm)
    if method == REDUCE_SCATTER_BLOCK:
        return mpi.MPI_Reduce_scatter_block(
            send, recv, received.count, received.datatype, op, comm
        )
    if method == ALLGATHER:
        return mpi.MPI_Allgather(
            send, sent.count, sent.datatype, recv, received.count, received.datatype, comm
        )
    if method == GATHER:
        return mpi.MPI_Gather(
            send, sent.count, sent.datatype, recv, received.count, received.datatype, root, comm
        )
    if method == SCATTER:
        return mpi.MPI_Scatter(
            send, sent.count, sent.datatype, recv, received.count, received.datatype, root, comm
        )
    if method == ALLTOALL:
        return mpi.MPI_Alltoall(
            send, sent.count, sent.datatype, recv, received.count, received.datatype, comm
        )
    if method == SCAN:
        return mpi.MPI_Scan(send, recv, both.count, both.datatype, op, comm)
    if method == EXSCAN:
        return mpi.MPI_Exscan(send, recv, both.count, both.datatype, op, comm)
    if method == ALLGATHERV:
        return mpi.MPI_Allgatherv(
            send, sent.count, sent.datatype, recv, received.counts, received.places,
            received.datatype, comm,
        )
    if method == ALLTOALLV:
        return mpi.MPI_Alltoallv(
            send, sent.counts, sent.places, sent.datatype, recv, received.counts,
            received.places, received.datatype, comm,
        )
    if method == ALLTOALLW:
        return mpi.MPI_Alltoallw(
            send, sent.counts, sent.places, sent.datatypes, recv, received.counts,
            received.places, received.datatypes, comm,
        )
    if method == GATHERV:
        return mpi.MPI_Gatherv(
            send, sent.count, sent.datatype, recv, received.counts, received.places,
            received.datatype, root, comm,
        )
    if method == REDUCE_SCATTER:
        return mpi.MPI_Reduce_scatter(
            send, recv, received.counts, received.datatype, op, comm
        )
    if method == SCATTERV:
        return mpi.MPI_Scatterv(
            send, sent.counts, sent.places, sent.datatype, recv, received.count,
            received.datatype, root, comm,
        )
    return mpi.MPI_Barrier(comm)


cdef int start(
    int method, void *send, const Given *sent, void *recv, const Given *received,
    const Given *both, mpi.MPI_Op op, int root, mpi.MPI_Comm comm, mpi.MPI_Request *request,
) noexcept nogil:
    """Start a call; MPI's error code."""
    if method == ALLREDUCE:
        return mpi.MPI_Iallreduce(send, recv, both.count, both.datatype, op, comm, request)
    if method == REDUCE:
        return mpi.MPI_Ireduce(send, recv, both.count, both.datatype, op, root, comm, request)
    if method == BCAST:
        return mpi.MPI_Ibcast(recv, received.count, received.datatype, root, comm, request)
    if method == REDUCE_SCATTER_BLOCK:
        return mpi.MPI_Ireduce_scatter_block(
            send, recv, received.count, received.datatype, op, comm, request
        )
    if method == ALLGATHER:
        return mpi.MPI_Iallgather(
            send, sent.count, sent.datatype, recv, received.count, received.datatype,
            comm, request,
        )
    if method == GATHER:
        return mpi.MPI_Igather(
            send, sent.count, sent.datatype, recv, received.count, received.datatype, root,
            comm, request,
        )
    if method == SCATTER:
        return mpi.MPI_Iscatter(
            send, sent.count, sent.datatype, recv, received.count, received.datatype, root,
            comm, request,
        )
    if method == ALLTOALL:
        return mpi.MPI_Ialltoall(
            send, sent.count, sent.datatype, recv, received.count, received.datatype,
            comm, request,
        )
    if method == SCAN:
        return mpi.MPI_Iscan(send, recv, both.count, both.datatype, op, comm, request)
    if method == EXSCAN:
        return mpi.MPI_Iexscan(send, recv, both.count, both.datatype, op, comm, request)
    if method == ALLGATHERV:
        return mpi.MPI_Iallgatherv(
            send, sent.count, sent.datatype, recv, received.counts, received.places,
            received.datatype, comm, request,
        )
    if method == ALLTOALLV:
        return mpi.MPI_Ialltoallv(
            send, sent.counts, sent.places, sent.datatype, recv, received.counts,
            received.places, received.datatype, comm, request,
        )
    if method == ALLTOALLW:
        return mpi.MPI_Ialltoallw(
            send, sent.counts, sent.places, sent.datatypes, recv, received.counts,
            received.places, received.datatypes, comm, request,
        )
    if method == GATHERV:
        return mpi.MPI_Igatherv(
            send, sent.count, sent.datatype, recv, received.counts, received.places,
            received.datatype, root, comm, request,
        )
    if method == REDUCE_SCATTER:
        return mpi.MPI_Ireduce_scatter(
            send, recv, received.counts, received.datatype, op, comm, request
        )
    if method == SCATTERV:
        return mpi.MPI_Iscatterv(
            send, sent.counts, sent.places, sent.datatype, recv, received.count,
            received.datatype, root, comm, request,
        )
    return mpi.MPI_Ibarrier(comm, request)
