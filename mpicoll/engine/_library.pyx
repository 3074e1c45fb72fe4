"""The MPI library's non-blocking collectives of blocks of one length, by the numbers of methods.

What mpi4py's methods do, without looking at the buffers: whoever calls knows what they are.
"""

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

assert [METHODS[name].number for name in (
    "Allreduce", "Reduce", "Bcast", "Reduce_scatter_block", "Allgather", "Gather", "Scatter",
    "Alltoall", "Scan", "Exscan", "Barrier"
)] == [*range(11)]


cdef int start(
    int method, void *send, const Given *sent, void *recv, const Given *received, mpi.MPI_Op op,
    int root, mpi.MPI_Comm comm, mpi.MPI_Request *request,
) noexcept nogil:
    """Start a collective; MPI's error code."""
    # In place one side says it all; a rank that gives or gets nothing has the other one's.
    cdef const Given *both = received if sent.in_place or sent.count == 0 else sent
    if sent.in_place:
        send = mpi.MPI_IN_PLACE
    if received.in_place:
        recv = mpi.MPI_IN_PLACE
    if method == ALLREDUCE:
        return mpi.MPI_Iallreduce(send, recv, both.count, both.datatype, op, comm, request)
    if method == REDUCE:
        return mpi.MPI_Ireduce(send, recv, both.count, both.datatype, op, root, comm, request)
    if method == BCAST:
        return mpi.MPI_Ibcast(recv, received.count, received.datatype, root, comm, request)
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
    if method == REDUCE_SCATTER_BLOCK:
        return mpi.MPI_Ireduce_scatter_block(
            send, recv, received.count, received.datatype, op, comm, request
        )
    if method == SCAN:
        return mpi.MPI_Iscan(send, recv, both.count, both.datatype, op, comm, request)
    if method == EXSCAN:
        return mpi.MPI_Iexscan(send, recv, both.count, both.datatype, op, comm, request)
    return mpi.MPI_Ibarrier(comm, request)
