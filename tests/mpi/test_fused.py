"""An all-reduce over a list of arrays."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.buffers import buckets
from mpicoll.comm import Intracomm

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
SHAPES = [((3,), "f4"), ((2, 5), "f4"), ((0,), "f4"), ((7,), "f8"), ((4,), "f4"), ((1,), "i8")]


@pytest.fixture
def ours():
    comm = Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


def tensors():
    return [
        (np.arange(np.prod(shape)).reshape(shape) + RANK + k).astype(dtype)
        for k, (shape, dtype) in enumerate(SHAPES)
    ]


@pytest.mark.parametrize("how", [{}, {"algorithm": "ring"}])
@pytest.mark.parametrize("in_place", [False, True])
def test_same_as_one_call_an_array(ours, how, in_place):
    send, recv = tensors(), [np.zeros_like(tensor) for tensor in tensors()]
    want = [np.zeros_like(tensor) for tensor in send]
    for given, result in zip(send, want, strict=True):
        WORLD.Allreduce(given, result)
    if in_place:
        recv = tensors()
    ours.Allreduce(MPI.IN_PLACE if in_place else send, recv, **how)
    for mine, theirs, given, before in zip(recv, want, send, tensors(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(given, before)


def test_small_ones_travel_together(ours, monkeypatch):
    ours.Allreduce(tensors(), [np.zeros_like(t) for t in tensors()], algorithm="ring")
    assert ours.stats().calls == {("allreduce", "ring"): 4}  # f4, f8, f4, i8
    monkeypatch.setattr(buckets, "BUCKET", 60)
    same = [np.full(5, RANK + 1.0) for _ in range(4)] + [np.ones(100), np.ones(1)]
    ours.Allreduce(MPI.IN_PLACE, same, MPI.MAX, algorithm="linear")
    assert ours.stats().calls["allreduce", "linear"] == 6
    assert [array[-1] for array in same] == [P] * 4 + [1, 1]


def test_what_is_no_list_of_arrays(ours):
    recv = np.zeros(2)
    for spec in ([recv, 2], [recv, MPI.DOUBLE], (recv, 2, MPI.DOUBLE), [recv, (2, 0)]):
        assert not buckets.is_list(spec)
        ours.Allreduce(np.ones(2), spec)
        assert recv.tolist() == [P, P]


def test_strided_arrays_go_by_value(ours):
    many = np.zeros((3, 4))
    columns = [many[:, column] for column in range(3)]  # not the last one
    give = [np.full(6, RANK + column, "f8")[::2] for column in range(3)]
    ours.Allreduce(give, columns)
    ours.Allreduce(MPI.IN_PLACE, [columns[0]])
    total = sum(range(P))
    want = [P * total, total + P, total + 2 * P, 0]
    np.testing.assert_array_equal(many, [want] * 3)


def test_bad_lists(ours):
    with pytest.raises(ValueError, match="list of 2 arrays, so the send buffer must be a list of"):
        ours.Allreduce([np.zeros(2)], [np.zeros(2), np.zeros(2)])
    with pytest.raises(ValueError, match="array 1 of the list: send buffer of 2 elements"):
        ours.Allreduce([np.zeros(2), np.zeros(2)], [np.zeros(2), np.zeros(3)])
    with pytest.raises(BufferError, match="array 0 of the list: receive buffer: read-only"):
        ours.Allreduce(MPI.IN_PLACE, [np.broadcast_to(0.0, (4,))])
    assert ours.stats().calls == {}
