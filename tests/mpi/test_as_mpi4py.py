"""What mpi4py takes as arguments of collectives, and what it does with them: the same here."""

import warnings

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.base import caller
from mpicoll.comm import Intracomm
from mpicoll.errors import FallbackWarning
from mpicoll.schedule.methods import METHODS

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
ROOT = P - 1
HOW = [{}, {"algorithm": "linear"}, {"algorithm": "native"}]
WAYS = ("blocking", "non-blocking", "persistent")


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


@pytest.fixture(params=HOW, ids=lambda how: how.get("algorithm", "chosen"))
def how(request):
    return request.param


class Index:
    """An integer of a kind that nobody knows."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def made_call(comm, way, method, *arguments, **how):
    """Make a call in one of three ways; twice, so that what is remembered of it is used too."""
    for _ in range(2):
        if way == "blocking":
            getattr(comm, method)(*arguments, **how)
        elif way == "non-blocking":
            getattr(comm, f"I{method.lower()}")(*arguments, **how).Wait()
        else:
            plan = getattr(comm, f"{method}_init")(*arguments, **how)
            plan.Start()
            plan.Wait()
            plan.Free()


# --- None is MPI.IN_PLACE ---

#: Methods with a place for MPI.IN_PLACE.
TAKING = [name for name in METHODS if name not in ("Barrier", "Bcast")]


def in_place(method, given):
    """Arguments of a call that is in place wherever it may be, and what it writes.

    ``given``: what stands for the place.
    """
    vector = METHODS[method].varies
    whole = np.arange(2.0 * P) + 100 * RANK
    own = np.arange(2.0) + 100 * RANK
    message = [whole, [2] * P] if vector and method != "Reduce_scatter" else whole
    if method == "Alltoallw":
        message = [whole, ([2] * P, range(0, 16 * P, 16)), [MPI.DOUBLE] * P]
    if method.startswith("Gather"):
        return (given, message, ROOT) if RANK == ROOT else (own, None, ROOT), whole
    if method.startswith("Scatter"):
        return (message, given, ROOT) if RANK == ROOT else (None, own, ROOT), (whole, own)
    if method == "Reduce":
        return (given, own, MPI.SUM, ROOT) if RANK == ROOT else (own, None, MPI.SUM, ROOT), own
    if method == "Reduce_scatter":
        return (given, whole, [2] * P), whole[:2]
    if method == "Reduce_scatter_block":
        return (given, whole), whole[:2]
    return (given, message), whole


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", TAKING)
def test_none_is_in_place(ours, method, way, how):
    known = METHODS[method].collective
    if how.get("algorithm") == "linear" and "linear" not in algorithms.names(known):
        how = {"algorithm": "ring"}
    if way == "persistent" and MPI.Get_version() < (4, 0):
        how = {"algorithm": "linear"}
    results = []
    for place in (MPI.IN_PLACE, None):
        arguments, written = in_place(method, place)
        made_call(ours, way, method, *arguments, **how)
        results.append(np.concatenate(written) if isinstance(written, tuple) else written)
    np.testing.assert_array_equal(*results)
    if method == "Gather" and RANK == ROOT:
        assert results[1].tolist() == [
            100 * rank + k + 2 * rank * (rank == ROOT) for rank in range(P) for k in range(2)
        ]


def test_none_is_no_place_elsewhere(ours, how):
    with pytest.raises(TypeError, match="receive buffer: None is no buffer"):
        ours.Allreduce(np.zeros(2), None, **how)
    if P > 1:
        arguments = (np.zeros(P), np.zeros(1)) if RANK == ROOT else (None, None)
        if RANK != ROOT:
            with pytest.raises(TypeError, match="receive buffer: None is no buffer"):
                ours.Scatter(*arguments, ROOT, **how)
            with pytest.raises(TypeError, match="send buffer: None is no buffer"):
                ours.Gather(*arguments, ROOT, **how)


# --- counts, displacements and datatypes ---


def test_whatever_is_an_index_is_a_count(ours, how):
    send, recv = np.arange(3.0 * P) + 100 * RANK, np.zeros(P)
    places = [Index(rank) for rank in range(P)]
    for _ in range(2):
        recv[:] = -1
        ours.Alltoallv(
            [send, np.array(1), Index(3), MPI.DOUBLE], [recv, ([np.array(1)] * P, places)], **how
        )
        assert recv.tolist() == [100 * rank + 3 * RANK for rank in range(P)]
    ours.Allreduce([send, Index(1)], [recv, (np.array(1), Index(0))], **how)
    assert recv[0] == sum(100 * rank for rank in range(P))


def test_a_null_datatype_where_nothing_is_sent(ours, how):
    """Each rank sends one element to itself alone."""
    send, recv = np.full(1, RANK), np.zeros(1, int)
    counts = [int(rank == RANK) for rank in range(P)]
    types = [MPI.LONG if count else MPI.DATATYPE_NULL for count in counts]
    for way in WAYS if how else WAYS[:2]:
        recv[:] = -1
        sides = [send, (counts, [0] * P), types], [recv, counts, [0] * P, types]
        made_call(ours, way, "Alltoallw", *sides, **how)
        assert recv[0] == RANK
    nothing = [send, ([1] * P, [0] * P), [MPI.DATATYPE_NULL] * P]
    with pytest.raises(ValueError, match=r"MPI\.DATATYPE_NULL"):
        ours.Alltoallw(nothing, [recv, (counts, [0] * P), types], **how)


def test_one_element_of_each_datatype_where_no_counts_are_given(ours, how):
    send, recv = np.full(1, RANK), np.zeros(P, int)
    types = [MPI.LONG] * P
    received = [recv, ([1] * P, range(0, 8 * P, 8)), types]
    for sent in ([send, types], [send, (None, None), types], [send, None, None, types]):
        recv[:] = -1
        ours.Alltoallw(sent, received, **how)
        assert recv.tolist() == list(range(P))
    with pytest.raises(TypeError, match=r"in the place of \[buffer, \(counts, displacements"):
        ours.Alltoallw([send, 1, types], received, **how)


def test_the_code_of_no_datatype_is_a_key_error(ours, how):
    buffer = np.zeros(P)
    for bad in ([buffer, "\0"], np.zeros(P, "M8[s]")):
        with pytest.raises(KeyError, match="send buffer: no MPI datatype") as caught:
            ours.Alltoall(bad, buffer, **how)
        assert isinstance(caught.value, TypeError)


# --- counts that reach beyond the buffer ---


def columns(rank):
    """Rank's column of a matrix of 3 rows, as a buffer of its first elements alone."""
    matrix = np.arange(3.0 * P).reshape(3, P) + 1000 * rank
    column = MPI.DOUBLE.Create_vector(3, 1, P).Create_resized(0, 8).Commit()
    return matrix, column


def test_a_datatype_that_reaches_beyond_on_one_rank(ours, how, monkeypatch):
    """As in heat's QR: one rank names its memory as shorter than what its datatype spans."""
    monkeypatch.setattr(caller, "_WARNED", set())
    matrix, column = columns(RANK)
    out = np.zeros((P, 3))
    held = matrix.ravel()[: 1 if RANK == ROOT else None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            ours.Allgather([held, 1, column], out, **how_of(how))
    want = [[1000 * rank + row * P for row in range(3)] for rank in range(P)]
    assert out.tolist() == want
    told = [str(one.message) for one in caught if one.category is FallbackWarning]
    assert len(told) == (RANK == ROOT)
    if told:
        assert caught[0].filename == __file__
        assert "would reach from byte 0 to" in told[0]
    assert sum(ours.stats().fallbacks.values()) >= 2 * (RANK == ROOT)
    column.Free()


def how_of(how):
    return {"algorithm": "ring"} if how.get("algorithm") == "linear" else how


def test_counts_that_reach_beyond_on_one_rank(ours, how):
    """A buffer of no length with an address, as programs make of other libraries' memory."""
    data = np.arange(4.0) + RANK
    given = MPI.buffer.fromaddress(data.ctypes.data, 0) if RANK == 0 else data
    out = np.zeros(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for _ in range(2):
            ours.Allreduce([given, 4, MPI.DOUBLE], out, **how)
        want = np.arange(4.0) * P + sum(range(P))
        assert out.tolist() == want.tolist()
        ours.Allreduce(MPI.IN_PLACE, [given, 4, MPI.DOUBLE], **how)
        assert data.tolist() == want.tolist()
        gathered = np.zeros(2 * P)
        short = gathered[:1] if RANK == 0 else gathered
        ours.Allgatherv([data[:1], 2, MPI.DOUBLE], [short, [2] * P, MPI.DOUBLE], **how_of(how))
        assert gathered.tolist() == want.tolist()[:2] * P
        places = ([2] * P, range(0, 16 * P, 16)), [MPI.DOUBLE] * P
        ours.Alltoallw([gathered[:1], *places], [(short := np.zeros(2 * P))[:1], *places])
        assert short.tolist() == want.tolist()[:2] * P


def test_reaching_beyond_is_refused_where_the_policy_says_so(monkeypatch):
    monkeypatch.setenv("MPICOLL_FALLBACK", "error")
    ours = Intracomm(WORLD.Dup())
    data, out = np.zeros(4), np.zeros(4)
    with pytest.raises(TypeError, match=r"to byte 32 of a buffer of 8 bytes.*error forbids"):
        ours.Allreduce([data[:1], 4, MPI.DOUBLE], out)
    ours.Free()
