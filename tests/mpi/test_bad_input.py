"""Mistakes that all ranks make raise on all of them, the same on one rank as on many.

Nothing is sent before everything is checked, so the communicator works on afterwards: every test
ends with a call that must succeed.
"""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.comm import Intracomm

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
# A forced algorithm, the library's own, and the built-in choice must refuse the same.
HOW = [{"algorithm": "linear"}, {"algorithm": "native"}, {}]


def ring(how):
    """For collectives that have no linear algorithm."""
    return {"algorithm": "ring"} if how.get("algorithm") == "linear" else how


@pytest.fixture(scope="module")
def built():
    return Intracomm(WORLD)


@pytest.fixture
def ours(built):
    yield built
    out = np.zeros(3)
    built.Allreduce(np.ones(3), out, algorithm="linear")
    assert out.tolist() == [P] * 3


@pytest.fixture(params=HOW, ids=lambda how: how.get("algorithm", "chosen"))
def how(request):
    return request.param


def read_only(count=4):
    array = np.zeros(count)
    array.flags.writeable = False
    return array


# --- algorithms ---


def test_unknown_algorithm_names_the_known_ones(ours):
    known = "binomial, double_binary_tree, hierarchical, .*swing, native"
    with pytest.raises(ValueError, match=f"algorithm 'rign' for allreduce: known are {known}"):
        ours.Allreduce(np.zeros(4), np.zeros(4), algorithm="rign")
    with pytest.raises(ValueError, match=r"unknown algorithm 'ring' for bcast: known are .*linear"):
        ours.Bcast(np.zeros(4), algorithm="ring")
    with pytest.raises(TypeError, match="algorithm=3 must be a name"):
        ours.Barrier(algorithm=3)


def test_a_number_of_ranks_that_is_not_served(ours):
    P = ours.Get_size()
    a, b = np.full(2, P), np.zeros(2 * P, int)
    if P % 2 and P > 1:
        with pytest.raises(ValueError, match=f"needs an even number of ranks, not {P}"):
            ours.Allgather(a, b, algorithm="neighbor_exchange")
    else:
        ours.Allgather(a, b, algorithm="neighbor_exchange")
        np.testing.assert_array_equal(b, P)


def test_unknown_parameter_names_the_known_ones(ours):
    a, b = np.zeros(4), np.zeros(4)
    with pytest.raises(ValueError, match="no parameter 'chunks': known are segments, window"):
        ours.Allreduce(a, b, algorithm="double_binary_tree", chunks=2)
    with pytest.raises(ValueError, match="ring has no parameter 'segments': known are order"):
        ours.Allreduce(a, b, algorithm="ring", segments=2)
    with pytest.raises(ValueError, match="native has no parameter 'segments'"):
        ours.Allreduce(a, b, algorithm="native", segments=2)
    for value in (0, -1, 1.5, "2", True):
        with pytest.raises(ValueError, match=f"segments={value!r} must be an integer"):
            ours.Allreduce(a, b, algorithm="double_binary_tree", segments=value)
    with pytest.raises(TypeError, match=r"segments= is a parameter of an algorithm.*algorithm="):
        ours.Allreduce(a, b, segments=2)
    known = "mpi4py's, algorithm= and, with it, nodes=, order=, segments=, window="
    with pytest.raises(TypeError, match=f"Allreduce: unknown argument algo=; known are {known}"):
        ours.Allreduce(a, b, algo="ring")
    with pytest.raises(TypeError, match=r"Scan: unknown argument segments=; .*, algorithm=$"):
        ours.Scan(a, b, segments=2)
    with pytest.raises(TypeError, match="positional"):
        ours.Allreduce(a, b, MPI.SUM, "ring")


# --- operators ---


@pytest.mark.parametrize(
    ("op", "code", "text"),
    [
        (MPI.MAX, "c16", "max of complex128 has no meaning.*real and imaginary"),
        (MPI.MIN, "c8", "min of complex64"),
        (MPI.BAND, "f8", "band of float64.*view the array as integers"),
        (MPI.BXOR, "f4", "bxor of float32"),
        (MPI.LAND, "f8", "land of float64"),
        (MPI.SUM, "?", "sum of bool.*land, lor or lxor"),
        (MPI.MAXLOC, "f8", "maxloc of float64"),
        (MPI.SUM, "S1", "sum of"),
    ],
)
def test_operators_that_the_dtype_cannot_serve(ours, how, op, code, text):
    for count in (0, 4):
        with pytest.raises(TypeError, match=text):
            ours.Allreduce(np.zeros(count, code), np.zeros(count, code), op, **how)
    with pytest.raises(TypeError, match=text):
        ours.Reduce(np.zeros(4, code), np.zeros(4, code), op, **how)


def test_what_is_no_operator(ours, how):
    a, b = np.zeros(4), np.zeros(4)
    for op in (None, "sum", max):
        with pytest.raises(TypeError, match=r"op must be an MPI operator such as MPI\.SUM, not "):
            ours.Allreduce(a, b, op, **how)
    for op, name in ((MPI.REPLACE, "REPLACE"), (MPI.NO_OP, "NO_OP"), (MPI.OP_NULL, "OP_NULL")):
        with pytest.raises(ValueError, match=rf"op=MPI\.{name} does not reduce: choose .*MPI\.SUM"):
            ours.Allreduce(a, b, op, **how)


# --- roots ---


@pytest.mark.parametrize("root", [-1, P, MPI.PROC_NULL])
def test_root_out_of_range(ours, how, root):
    match = f"root={root} must be a rank of the communicator, 0 to {P - 1}"
    a, b = np.zeros(P), np.zeros(P)
    for call in (
        lambda: ours.Bcast(a, root, **how),
        lambda: ours.Reduce(a, b, MPI.SUM, root, **how),
        lambda: ours.Gather(a[:1], b, root, **how),
        lambda: ours.Scatter(a, b[:1], root, **how),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_root_that_is_no_integer(ours, how):
    for root in (0.0, "0", None):
        with pytest.raises(TypeError, match=f"root={root!r} must be an integer"):
            ours.Bcast(np.zeros(4), root, **how)
    ours.Bcast(np.zeros(4), np.int64(P - 1), **how)


# --- buffers ---


@pytest.mark.parametrize(
    ("send", "recv", "error", "text"),
    [
        (np.zeros(4, "f4"), np.zeros(4), ValueError, "MPI_FLOAT but receive buffer of MPI_DOUBLE"),
        (np.zeros(4), np.zeros(5), ValueError, "4 elements but receive buffer of 5"),
        (np.zeros(4), [np.zeros(3), 4], ValueError, "receive buffer: too small: 4 elements"),
        (np.zeros(4), read_only(), BufferError, "receive buffer: read-only"),
        (np.zeros(4, ">f8"), np.zeros(4), BufferError, "send buffer: .*byte order"),
        (np.zeros(4), np.zeros(4, ">f8"), BufferError, "receive buffer: .*byte order"),
        (np.zeros((4, 3)), np.zeros((3, 4), order="F"), ValueError, "result would be transposed"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], np.zeros(4), ValueError, "send buffer: a list of 5 items"),
        (7.0, np.zeros(1), TypeError, "send buffer: expected an array"),
        (np.zeros(4), None, TypeError, "receive buffer: None is no buffer"),
        (np.zeros(4), MPI.IN_PLACE, ValueError, r"MPI\.IN_PLACE as receive buffer of Allreduce"),
    ],
)
def test_buffers_that_do_not_fit(ours, how, send, recv, error, text):
    with pytest.raises(error, match=text):
        ours.Allreduce(send, recv, **how)


def test_overlapping_buffers(ours, how):
    base = np.zeros(8)
    with pytest.raises(ValueError, match=r"are the same memory.*pass MPI\.IN_PLACE"):
        ours.Allreduce(base, base, **how)
    with pytest.raises(ValueError, match=r"overlap.*pass MPI\.IN_PLACE"):
        ours.Allreduce(base[:6], base[2:], **how)
    blocks = np.zeros(2 * P)
    with pytest.raises(ValueError, match=r"pass MPI\.IN_PLACE as the send buffer"):
        ours.Allgather(blocks[2 * RANK : 2 * RANK + 2], blocks, **ring(how))


def test_block_counts(ours, how):
    with pytest.raises(ValueError, match="2 elements a block but receive buffer of 3"):
        ours.Allgather(np.zeros(2), np.zeros(3 * P), **ring(how))
    with pytest.raises(ValueError, match=r"receive buffer: too small: .*2 elements"):
        ours.Allgather(np.zeros(2), [np.zeros(2 * P - 1), 2], **ring(how))
    with pytest.raises(ValueError, match="2 elements a block but receive buffer of 1"):
        ours.Reduce_scatter_block(np.zeros(2 * P), np.zeros(1), **ring(how))


@pytest.mark.mpi(min_size=2)
def test_a_buffer_that_cannot_be_cut(ours, how):
    with pytest.raises(ValueError, match=f"cannot be cut into {P} equal blocks"):
        ours.Allgather(np.zeros(1), np.zeros(P + 1), **ring(how))
    with pytest.raises(ValueError, match=f"cannot be cut into {P} equal blocks"):
        ours.Reduce_scatter_block(np.zeros(P + 1), np.zeros(1), **ring(how))


# --- communicators ---


def test_what_is_no_intracommunicator():
    for wrong in (3, "world", MPI.GROUP_EMPTY):
        with pytest.raises(TypeError, match="expected an mpi4py communicator, not"):
            Intracomm(wrong)
    assert Intracomm() == Intracomm(None) == MPI.COMM_NULL  # as in mpi4py
    for null in (MPI.COMM_NULL, MPI.Intracomm()):
        with pytest.raises(ValueError, match=r"MPI\.COMM_NULL"):
            Intracomm(null)


@pytest.mark.mpi(min_size=2)
def test_intercommunicators_are_refused():
    half = WORLD.Split(RANK % 2)
    inter = half.Create_intercomm(0, WORLD, 1 - RANK % 2)
    with pytest.raises(TypeError, match=r"intercommunicator; use its Merge\(\)"):
        Intracomm(inter)
    merged = Intracomm(inter.Merge())
    out = np.zeros(1)
    merged.Allreduce(np.ones(1), out, algorithm="ring")
    assert out[0] == P
    for comm in (merged, inter, half):
        comm.Free()


# --- no mistakes ---


def test_a_count_of_zero_works(ours, how):
    nothing = np.zeros(0)
    ours.Allreduce(nothing, np.zeros(0), **how)
    ours.Allreduce(MPI.IN_PLACE, nothing, **how)
    ours.Reduce(nothing, np.zeros(0), **how)
    ours.Bcast(nothing, **how)
    ours.Allgather(nothing, np.zeros(0), **ring(how))
    ours.Gather([None, 0, MPI.INT], [None, 0, MPI.INT], **how)
    ours.Scatter(nothing, np.zeros(0), P - 1, **how)


def test_fewer_elements_than_ranks_work(ours):
    for count in range(P):
        out = np.zeros(count)
        for algorithm in ("ring", "parameter_server", "double_binary_tree"):
            ours.Allreduce(np.ones(count), out, algorithm=algorithm)
            assert out.tolist() == [P] * count


def test_the_root_of_a_broadcast_may_be_read_only(ours):
    for name in (*algorithms.names("bcast", ours.Get_size()), "native", None):
        buffer = bytes(range(16)) if ours.Get_rank() == 0 else bytearray(16)
        ours.Bcast(buffer, algorithm=name)
        assert bytes(buffer) == bytes(range(16))
