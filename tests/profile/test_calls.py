"""Bytes of calls as mpi4py's methods take them, and what a rank has to wait for."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.profile.calls import ALL, COLLECTIVES, LOWER, NOBODY, ROOT, awaited, element, payload

X = np.zeros(12)
W = [MPI.DOUBLE, MPI.INT, MPI.DOUBLE]


@pytest.mark.parametrize(
    ("message", "several", "nbytes"),
    [
        (X, False, 96),
        ([X], False, 96),
        ([X, MPI.DOUBLE], False, 96),
        ([X, "d"], False, 96),
        ([X, 3], False, 24),
        ([X, 3, MPI.DOUBLE], False, 24),
        ((X, (3, 2), MPI.DOUBLE), False, 24),
        ([X, (1, 2, 3)], True, 48),
        ([X, (1, 2)], True, 24),
        ([X, ((1, 2), (0, 1)), MPI.DOUBLE], True, 24),
        ([X, [1, 2], [0, 1], MPI.DOUBLE], True, 24),
        ([X, np.array([1, 5]), MPI.DOUBLE], True, 48),
        ([X, ([1, 2, 3], [0, 8, 16]), W], True, 40),
        ([None, 4, MPI.INT], False, 16),
        (bytearray(5), False, 5),
        (memoryview(X), False, 96),
        (None, False, 0),
        (MPI.IN_PLACE, False, 0),
        ("no buffer", False, 0),
    ],
)
def test_bytes_of_a_message(message, several, nbytes):
    assert payload(message, several) == nbytes


@pytest.mark.parametrize(
    ("name", "arguments", "nbytes"),
    [
        ("Allreduce", (X, X), 96),
        ("Allreduce", (MPI.IN_PLACE, X), 96),
        ("Iallreduce", (X, X), 96),
        ("Reduce", (X, None), 96),
        ("Bcast", (X,), 96),
        ("Barrier", (), 0),
        ("Gather", (X, None), 384),
        ("Gather", (MPI.IN_PLACE, X), 96),
        ("Scatter", (None, X), 384),
        ("Scatter", (X, MPI.IN_PLACE), 96),
        ("Allgather", (X[:3], X), 96),
        ("Allgatherv", (X[:3], [X, (1, 2, 3, 0)]), 48),
        ("Reduce_scatter", (X, X[:3], [3] * 4), 96),
        ("Alltoall", (X, X), 96),
        ("Alltoallv", ([X, (1, 2, 3, 0)], [X, (3, 3, 3, 3)]), 48),
        ("Scatterv", (None, X), 96),
        ("Exscan_init", (X, X), 96),
    ],
)
def test_bytes_of_a_call_of_four_ranks(name, arguments, nbytes):
    assert COLLECTIVES[name].nbytes(arguments, {}, 4) == nbytes


def test_bytes_of_arguments_by_name():
    assert COLLECTIVES["Allreduce"].nbytes((), {"sendbuf": X, "recvbuf": X}, 4) == 96
    assert COLLECTIVES["Bcast"].nbytes((), {"buf": [X, 2, MPI.DOUBLE]}, 4) == 16


def test_blocking_methods_of_all_forms():
    forms = {"Ireduce_scatter_block": "Reduce_scatter_block", "Bcast_init": "Bcast"}
    forms |= {"Ineighbor_alltoallw": "Neighbor_alltoallw", "bcast": "bcast", "Barrier": "Barrier"}
    assert {name: COLLECTIVES[name].method for name in forms} == forms
    assert all(hasattr(MPI.Intracomm, n) or hasattr(MPI.Cartcomm, n) for n in COLLECTIVES)


def test_roots_are_where_mpi4py_has_them():
    found = {name: COLLECTIVES[name].root for name in ("Bcast", "Reduce", "Gather", "reduce")}
    assert found == {"Bcast": 1, "Reduce": 3, "Gather": 2, "reduce": 2}


def test_whom_a_rank_waits_for():
    assert awaited("allreduce", 0, -1) == ALL
    assert (awaited("bcast", 1, 1), awaited("bcast", 0, 1)) == (NOBODY, ROOT)
    assert (awaited("gather", 1, 1), awaited("gather", 0, 1)) == (ALL, ROOT)
    assert awaited("exscan", 2, -1) == LOWER
    assert awaited("neighbor_alltoall", 0, -1) == NOBODY


def test_elements():
    assert (element([X, MPI.DOUBLE]), element(bytearray(2)), element([])) == ("float64", "", "")
