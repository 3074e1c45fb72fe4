"""Strided arrays and arrays of different orders, through every collective and algorithm."""

import numpy as np
import pytest
from arguments import P, call, made
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.comm import Intracomm

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK = WORLD.rank

CASES = [(e.collective, e.name) for e in algorithms.catalogue() if e.runs_on(P)]
CASES += [(name, "native") for name in dict.fromkeys(collective for collective, _ in CASES)]
CASES = [case for case in CASES if case[0] != "barrier"]
#: How a vector lies in a larger one.
STRIDES = {
    "every other": slice(None, None, 2),
    "every third": slice(1, None, 3),
    "backwards": slice(None, None, -1),
}


@pytest.fixture(scope="module")
def ours():
    comm = Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


def spread(array, how):
    """The same numbers in a strided view of an array, and what lies between them."""
    if array is None or array is MPI.IN_PLACE:
        return array, lambda: []
    base = np.full(3 * array.size + 3, 99, array.dtype)
    view = base[STRIDES[how]][: array.size]
    gaps = np.ones(base.size, bool)
    gaps[STRIDES[how]][: array.size] = False
    view[:] = array
    return view, lambda: set(base[gaps].tolist()) - {99}


# The library's own requests do not copy, see below.
@pytest.mark.parametrize(
    ("collective", "algorithm", "mode"),
    [
        (*case, mode)
        for case in CASES
        for mode in ("", "I", "_init")
        if "native" not in case or not mode
    ],
)
def test_strided_vectors_give_what_contiguous_ones_give(ours, collective, algorithm, mode):
    for count in (1, 5):
        for how, in_place in [("every other", False), ("every third", True), ("backwards", False)]:
            root = P - 1
            plain = made(collective, count, "i4", root, in_place)
            (send, between), (recv, beside) = (spread(array, how) for array in plain)
            call(WORLD, collective, *plain, root=root)
            request = call(ours, collective, send, recv, root=root, mode=mode, algorithm=algorithm)
            if mode == "_init":
                request.Start()
            if mode:
                request.Wait()
            for found, want in zip((send, recv), plain, strict=True):
                np.testing.assert_array_equal(found, want)
            assert not between() and not beside()


@pytest.mark.parametrize("mode", ["I", "_init"])
def test_a_request_of_the_library_does_not_copy(ours, mode):
    odd = np.zeros(8)[::2]
    for pair in [(odd, np.zeros(4)), (np.zeros(4), odd)]:
        for how in ({}, {"algorithm": "native"}):
            with pytest.raises(BufferError, match=r"goes by value.*name an algorithm by algor"):
                call(ours, "allreduce", *pair, mode=mode, **how)


def test_a_persistent_call_copies_at_every_start(ours):
    send, recv = np.zeros(6)[::2], np.zeros(6)[::-2]
    request = ours.Allreduce_init(send, recv, algorithm="ring")
    for turn in range(3):
        send[:] = turn
        request.Start()
        request.Wait()
        assert recv.tolist() == [turn * P] * 3
    request.Free()


V_METHODS = ["Allgatherv", "Alltoallv", "Alltoallw", "Gatherv", "Scatterv"]


@pytest.mark.parametrize("algorithm", ["linear", "native"])
@pytest.mark.parametrize("method", V_METHODS)
def test_strided_blocks_of_different_lengths(ours, method, algorithm):
    """Rank r gives and gets r + 1 numbers, or r + s + 1 of and to rank s."""
    if "w" in method or "Allto" in method:
        counts = [RANK + rank + 1 for rank in range(P)]
        sends = recvs = counts
    else:
        sends = [RANK + 1] if method != "Scatterv" else [rank + 1 for rank in range(P)]
        recvs = [RANK + 1] if method == "Scatterv" else [rank + 1 for rank in range(P)]

    def buffer(array, counts):
        if len(counts) == 1 and method not in ("Alltoallv", "Alltoallw"):
            return array
        if method == "Alltoallw":
            places = 8 * np.concatenate([[0], np.cumsum(counts)[:-1]])
            return [array, (counts, places.tolist()), [MPI.DOUBLE] * P]
        return [array, counts]

    send = np.zeros(2 * sum(sends))[::2]
    send[:] = 100 * RANK + np.arange(sum(sends))
    recv = np.zeros(2 * sum(recvs))[::-2]
    want = np.zeros(sum(recvs))
    root = (0,) if method in ("Gatherv", "Scatterv") else ()
    plain = buffer(send.copy(), sends), buffer(want, recvs)
    getattr(WORLD, method)(*plain, *root)
    getattr(ours, method)(buffer(send, sends), buffer(recv, recvs), *root, algorithm=algorithm)
    np.testing.assert_array_equal(recv, want)


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_a_strided_reduce_scatter_of_counts(ours, algorithm):
    counts = [rank % 3 for rank in range(P)]
    send = np.arange(2.0 * sum(counts))[::2]
    recv = np.zeros(2 * counts[RANK])[::2]
    ours.Reduce_scatter(send, recv, counts, algorithm=algorithm)
    before = sum(counts[:RANK])
    np.testing.assert_array_equal(recv, P * send[before : before + counts[RANK]])


ORDERED = [
    (collective, name)
    for collective, name in CASES
    if collective in ("allreduce", "reduce", "allgather", "gather", "reduce_scatter", "scatter")
    or collective in ("alltoall", "scan")
]


@pytest.mark.parametrize("orders", ["CF", "FC"])
@pytest.mark.parametrize(("collective", "algorithm"), ORDERED)
def test_elements_go_to_their_own_place_whatever_the_order(ours, collective, algorithm, orders):
    """Element [i, j] of the send buffer arrives as element [i, j], on every rank."""
    root, whole, one = 0, (P, 2, 3), (2, 3)
    shapes = {"allgather": (one, whole), "gather": (one, whole), "scatter": (whole, one)}
    shapes |= {"reduce_scatter": (whole, one), "alltoall": (whole, whole)}
    sent, got = shapes.get(collective, (one, one))
    plain = np.arange(np.prod(sent)).reshape(sent) * 10 + RANK
    want = np.zeros(got, plain.dtype)
    call(WORLD, collective, plain, want, root=root)
    send, recv = np.array(plain, order=orders[0]), np.zeros(got, plain.dtype, order=orders[1])
    give = send if collective != "scatter" or RANK == root else None
    take = recv if collective not in ("gather", "reduce") or RANK == root else None
    call(ours, collective, give, take, root=root, algorithm=algorithm)
    np.testing.assert_array_equal(recv, want)


def test_fortran_arrays_alone_are_their_memory(ours):
    send = np.array(np.arange(6.0).reshape(2, 3) + RANK, order="F")
    recv = np.zeros((2, 3, P), order="F")
    ours.Allgather(send, recv, algorithm="ring")
    for rank in range(P):
        np.testing.assert_array_equal(recv[:, :, rank], np.arange(6.0).reshape(2, 3) + rank)
