"""Methods whose usual calls are made in C look and behave as the functions they stand for."""

import inspect
from types import MethodType

import numpy as np
import pytest
from connected import counted, on_fast_path
from mpi4py import MPI

from mpicoll.comm import Intracomm, objects
from mpicoll.engine import transport
from mpicoll.schedule.methods import METHODS

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(transport.Method is None, reason="the engine is not built"),
]

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.Get_size(), WORLD.Get_rank()
COLLECTIVES = [name for each in METHODS for name in (each, f"I{each.lower()}")]
MESSAGES = ("Send", "Recv", "Sendrecv", "Isend", "Irecv", "Send_init", "Recv_init")
OBJECTS = ("barrier", "bcast", "gather", "allgather", "alltoall", "allreduce", "scan", "exscan")


@pytest.fixture
def ours():
    yield from on_fast_path()


@pytest.mark.parametrize("name", [*COLLECTIVES, *MESSAGES])
def test_a_method_looks_like_its_function(name):
    method = getattr(Intracomm, name)
    assert type(method) is transport.Method
    function = inspect.unwrap(method)
    assert inspect.isfunction(function)
    assert (method.__name__, method.__doc__, method.__module__, method.__qualname__) == (
        *(name, function.__doc__, function.__module__, function.__qualname__),
    )
    assert method.__doc__
    assert inspect.signature(method) == inspect.signature(function)
    assert inspect.isroutine(method)
    bound = getattr(Intracomm(WORLD), name)
    assert type(bound) is MethodType
    assert (
        list(inspect.signature(bound).parameters) == [*inspect.signature(function).parameters][1:]
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x, y: comm.Allreduce(x, recvbuf=y),
        lambda comm, x, y: comm.Allreduce(op=MPI.MAX, recvbuf=y, sendbuf=x),
        lambda comm, x, y: comm.Allreduce(x, y, reproducible=False),
        lambda comm, x, y: comm.Allreduce(x, y, algorithm="ring"),
        lambda comm, x, y: comm.Allreduce(*[x, y], **{"op": MPI.MIN}),
        lambda comm, x, y: Intracomm.Allreduce(comm, x, y),
        lambda comm, x, y: comm.Bcast(buf=y, root=P - 1),
        lambda comm, x, y: comm.Bcast(y, P - 1, algorithm=None),
        lambda comm, x, y: comm.Reduce_scatter(x, y[:1], [1] * P),
        lambda comm, x, y: comm.Iallreduce(x, recvbuf=y).Wait(),
        lambda comm, x, y: comm.Iallreduce(x, y, algorithm="ring").Wait(),
        lambda comm, x, y: comm.Ibarrier(algorithm=None).Wait(),
    ],
)
def test_arguments_by_name_go_the_fast_path(ours, call):
    x, y = np.ones(P), np.zeros(P)
    assert counted(ours, lambda comm: call(comm, x, y)) == 3


def test_names_that_are_made_anew_are_understood(ours):
    """They are not the same objects as those of the arguments."""
    x, y = np.ones(4), np.zeros(4)
    ours.Allreduce(x, y)
    ours.Allreduce(**{"".join(["send", "buf"]): x, "".join(["recv", "buf"]): y})
    assert (y == P).all()
    with pytest.raises(TypeError, match="unknown argument no="):
        ours.Allreduce(x, y, **{"".join("no"): 1})


def test_counts_that_each_rank_knows_alone_go_the_slow_path(ours):
    x, y = np.ones(P), np.zeros(1)
    assert counted(ours, lambda comm: comm.Reduce_scatter(x, y)) == 0
    assert counted(ours, lambda comm: comm.Reduce_scatter(x, y, recvcounts=None)) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: comm.Allreduce(x),
        lambda comm, x: comm.Allreduce(recvbuf=x),
        lambda comm, x: comm.Allreduce(x, x, MPI.SUM, "ring"),
        lambda comm, x: comm.Allreduce(x, x, recvbuf=x),
        lambda comm, x: comm.Allreduce(x, x, nothing=1),
        lambda comm, x: comm.Iallreduce(x, sendbuf=x),
        lambda comm, x: comm.Barrier(1),
        lambda comm, x: comm.Bcast(),
        lambda comm, x: comm.Send(x),
        lambda comm, x: comm.Send(x, 0, 0, 0),
        lambda comm, x: comm.Recv(nothing=x),
        lambda comm, x: comm.bcast(),
        lambda comm, x: comm.bcast(x, 0, 0),
        lambda comm, x: Intracomm.Allreduce(),
        lambda comm, x: Intracomm.Send(),
    ],
)
def test_wrong_arguments_are_a_type_error(ours, call):
    with pytest.raises(TypeError):
        call(ours, np.zeros(2))


def test_any_object_may_be_what_a_call_returns(ours):
    given = [NotImplemented, *range(1, P)]
    got = ours.scatter(given if ours.Get_rank() == 0 else None)
    assert got is given[ours.Get_rank()] or got == given[ours.Get_rank()]
    assert ours.bcast(NotImplemented) is NotImplemented
    assert ours.bcast(7) == 7


def test_a_derived_class_may_call_it(ours):
    class Mine(Intracomm):
        def Allreduce(self, *given, **named):
            self.asked = getattr(self, "asked", 0) + 1
            super().Allreduce(*given, **named)

    comm, y = Mine(ours), np.zeros(1)
    for _ in range(3):
        comm.Allreduce(np.ones(1), y)
    assert (comm.asked, y[0]) == (3, P)


def test_a_bound_method_can_be_kept(ours):
    allreduce, y = ours.Allreduce, np.zeros(1)
    allreduce(np.ones(1), y)
    assert y[0] == P
    assert repr(allreduce).startswith("<bound method Blocking.Allreduce of ")


def test_objects_are_mpi4pys_until_a_rank_may_die(ours, monkeypatch):
    asked, before = [], dict(vars(objects.Objects))
    assert not before.keys() & {*OBJECTS}
    monkeypatch.setattr(objects, "_survives", lambda comm: bool(asked.append(comm)))
    assert ours.bcast(RANK, P - 1) == P - 1
    assert not asked
    objects.survive()
    try:
        assert ours.bcast(RANK, root=P - 1) == P - 1
        assert asked == [ours]
        assert all(name in vars(objects.Objects) for name in OBJECTS)
    finally:
        for name in vars(objects.Objects).keys() - before:
            delattr(objects.Objects, name)


def test_what_is_not_made_whole_cannot_be_called():
    empty = transport.Method.__new__(transport.Method)
    with pytest.raises(TypeError):
        empty()
    with pytest.raises(TypeError):
        transport.Method(len, None)
