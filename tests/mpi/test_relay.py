"""Reductions through the host that GPUs fold, without a GPU; the bits are those of the host."""

import sys
import types

import numpy as np
import pytest
from fake_cuda import FakeArray, FakeCupy, in_its_place
from mpi4py import MPI

import mpicoll
from mpicoll.base import caller
from mpicoll.runtime import relay, staging
from mpicoll.runtime.unavailable import Unavailable

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


class Folds:
    """See mpicoll.cuda.folds.Folds."""

    def __init__(self, fake):
        self.fake = fake

    def serves(self, reduction):
        return reduction.name == "sum"

    def run(self, reduction, address, pitch, nbytes, stream):
        assert address % 16 == pitch % 16 == 0

        def fold():
            views = [self.fake.find(address + k * pitch, nbytes)[0] for k in range(P)]
            views = [view.view(reduction.dtype) for view in views]
            reduction.fold(views[0], [view.copy() for view in views])

        self.fake._put(stream, fold)


@pytest.fixture(params=["lazy", "random", "eager"])
def fake(request, monkeypatch):
    with in_its_place(how=request.param, seed=RANK) as made:
        monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=FakeArray))
        monkeypatch.setattr(relay, "_folds", lambda state: Folds(made))
        for module in (relay, staging):
            monkeypatch.setattr(module, "CHUNK", 4096)
        monkeypatch.setenv("MPICOLL_GPU", "staged")
        yield made


@pytest.fixture
def ours(fake):
    comm = mpicoll.Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


@pytest.mark.parametrize("dtype", ["f4", "f2", "c16", "i8"])
def test_bits(fake, ours, dtype):
    random = np.random.default_rng(RANK)
    for count in (2049, 5000, 20000):
        values = (10 * random.standard_normal(count)).astype(dtype)
        host = values.copy()
        # A block each, folded in rank order.
        ours.Allreduce(MPI.IN_PLACE, host, algorithm="parameter_server")
        framed = fake.array(np.concatenate([[1], np.zeros_like(values), [2]]).astype(dtype))
        given = fake.array(np.zeros_like(values), stream=3)
        given.set(values)
        ours.Allreduce(given, [framed, (count, 1), MPI.BYTE.fromcode(np.dtype(dtype).char)])
        found = framed.get()
        assert found[1:-1].tobytes() == host.tobytes()
        assert (found[0], found[-1]) == (1, 2)
        assert given.get().tobytes() == values.tobytes()
        given.set(values)
        ours.Allreduce(MPI.IN_PLACE, given)
        assert given.get().tobytes() == host.tobytes()
    assert ours.stats().calls.get(("allreduce", "staged"), 0) == 6 * (P > 1)
    assert (staging.Area not in ours._state.made) == (P > 1)  # what only the host reduces by


def test_strided_arrays(fake, ours, monkeypatch):
    cupy = FakeCupy(fake)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    values = np.random.default_rng(RANK).standard_normal(5000).astype("f4")
    host = values.copy()
    ours.Allreduce(MPI.IN_PLACE, host, algorithm="parameter_server")
    array = fake.array(np.zeros(10000, "f4"), stream=5)
    array.set(values.repeat(2))
    view = cupy.view(array, np.s_[::2])
    view.stream = 5
    ours.Allreduce(MPI.IN_PLACE, view)
    assert array.get()[::2].tobytes() == host.tobytes()
    assert array.get()[1::2].tobytes() == values.tobytes()
    assert ours.stats().calls.get(("allreduce", "staged"), 0) == (P > 1)


@pytest.mark.parametrize("dtype", ["f2", "c16"])
@pytest.mark.parametrize("method", ["Reduce", "Reduce_scatter_block"])
def test_bits_where_not_all_get_all(fake, ours, method, dtype):
    """In place and not; of lengths that are no multiples of a cell."""
    random = np.random.default_rng(RANK)
    root = P - 1
    gets = method != "Reduce" or root == RANK
    more = {"root": root} if method == "Reduce" else {}
    count = 2051 if dtype == "c16" else 5003
    blocks = 1 if method == "Reduce" else P
    values = (10 * random.standard_normal(count * blocks)).astype(dtype)
    total = values.copy()
    ours.Allreduce(MPI.IN_PLACE, total, algorithm="parameter_server")
    expected = total if method == "Reduce" else total[RANK * count : (RANK + 1) * count]
    given = fake.array(np.zeros_like(values), stream=3)
    given.set(values)
    wanted = fake.array(np.full(count + 2, 7, dtype), stream=5)
    place = [wanted, (count, 1), MPI.BYTE.fromcode(np.dtype(dtype).char)]
    getattr(ours, method)(given, place if gets else None, **more)
    given.set(np.zeros_like(values))  # what was sent has left
    found = wanted.get()
    assert found[1:-1].tobytes() == (expected if gets else np.full(count, 7, dtype)).tobytes()
    assert found[0] == found[-1] == 7
    given.set(values)
    getattr(ours, method)(*((MPI.IN_PLACE, given) if gets else (given, None)), **more)
    found = given.get()
    assert found[:count].tobytes() == (expected if gets else values[:count]).tobytes()
    ours.Allreduce(MPI.IN_PLACE, wanted)  # the same slots again
    name = "reduce" if method == "Reduce" else "reduce_scatter"
    assert ours.stats().calls.get((name, "staged"), 0) == 2 * (P > 1)


def test_one_after_another_and_on_another_device(fake, ours):
    arrays = [fake.array(np.zeros(9000, "f4"), device=k % 2, stream=5 + k) for k in range(3)]
    for step in range(4):
        for array in arrays:
            array.set(np.full(9000, step + RANK, "f4"))
            ours.Allreduce(MPI.IN_PLACE, array)
        for array in arrays:
            assert {*array.get()} == {P * step + P * (P - 1) / 2}


def test_what_gpus_do_not_reduce_the_host_does(fake, ours):
    array = fake.array(np.full(9000, RANK + 1.0))
    ours.Allreduce(MPI.IN_PLACE, array, MPI.MAX)
    assert {*array.get()} == {float(P)}
    ours.Allreduce(MPI.IN_PLACE, array, algorithm="ring")
    assert "staged" not in {name for _, name in ours.stats().calls}


def test_where_it_cannot_be_had(fake, ours, monkeypatch):
    def missing(state):
        raise RuntimeError("no compiler here")

    if RANK == P - 1:
        monkeypatch.setattr(relay, "_folds", missing)
    monkeypatch.setattr(caller, "_WARNED", set())
    array = fake.array(np.full(9000, 1.0))
    if RANK == 0 and P > 1:
        with pytest.warns(mpicoll.errors.TransportWarning, match="no compiler here"):
            ours.Allreduce(MPI.IN_PLACE, array)
    else:
        ours.Allreduce(MPI.IN_PLACE, array)
    assert {*array.get()} == {float(P)}
    assert isinstance(ours._state.made.get(relay.Relay), Unavailable) == (P > 1)
