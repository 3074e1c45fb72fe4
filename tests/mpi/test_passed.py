"""What is passed through to the MPI library, and counted: topologies and intercommunicators."""

import warnings

import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

import mpicoll
from mpicoll import hooks
from mpicoll.base import caller
from mpicoll.comm import Cartcomm, Distgraphcomm, Graphcomm, Intracomm
from mpicoll.comm.passed import NEIGHBOURHOOD, Intercomm, Neighbourhood
from mpicoll.runtime.settings import POLICIES
from mpicoll.schedule.methods import METHODS

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
LEFT, RIGHT = (RANK - 1) % P, (RANK + 1) % P


def settings(monkeypatch, **environment):
    monkeypatch.setattr(caller, "_WARNED", set())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Intracomm(WORLD.Dup())


@pytest.fixture
def ours(monkeypatch):
    comm = settings(monkeypatch, MPICOLL_FALLBACK="silent")
    yield comm
    comm.Free()


def ring(comm):
    return comm.Create_cart([P], periods=[True])


TOPOLOGIES = {
    "cart": (ring, Cartcomm),
    "graph": (
        lambda c: c.Create_graph(
            [2 * (rank + 1) for rank in range(P)],
            [n for rank in range(P) for n in ((rank - 1) % P, (rank + 1) % P)],
        ),
        Graphcomm,
    ),
    "dist_graph": (lambda c: c.Create_dist_graph([RANK], [2], [LEFT, RIGHT]), Distgraphcomm),
    "adjacent": (
        lambda c: c.Create_dist_graph_adjacent([LEFT, RIGHT], [LEFT, RIGHT]),
        Distgraphcomm,
    ),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topologies_are_of_this_class_and_mpi4pys(ours, name):
    make, kind = TOPOLOGIES[name]
    made = make(ours)
    assert type(made) is kind
    assert isinstance(made, Intracomm) and isinstance(made, kind.__bases__[-1])
    assert made.Get_topology() == make(WORLD).Get_topology()
    out = np.zeros(3)
    made.Allreduce(np.ones(3), out, algorithm="linear")
    assert out.tolist() == [P] * 3
    recv = np.zeros(2, "i4")
    made.Neighbor_allgather(np.array([RANK], "i4"), recv)
    assert sorted(recv.tolist()) == sorted([LEFT, RIGHT])
    assert made.stats().calls == {("allreduce", "linear"): 1, ("neighbor_allgather", "native"): 1}
    again = made.Dup()
    assert type(again) is kind
    again.Free()
    made.Free()


def test_a_topology_of_mpi4py_keeps_its_methods_when_wrapped():
    cart = ring(WORLD)
    wrapped = Intracomm(cart)
    assert type(wrapped) is Cartcomm
    assert wrapped.Shift(0, 1) == (LEFT, RIGHT)
    assert wrapped.handle == cart.handle

    class Mine(Intracomm):
        pass

    assert type(Mine(cart)) is Mine
    cart.Free()


def test_subgrids(ours):
    grid = ours.Create_cart(MPI.Compute_dims(P, 2))
    row = grid.Sub([False, True])
    assert type(row) is Cartcomm
    out = np.zeros(1)
    row.Allreduce(np.ones(1), out, algorithm="ring")
    assert out[0] == row.size == grid.dims[1]
    row.Free()
    grid.Free()


@pytest.mark.mpi(min_size=2)
def test_ranks_outside_of_a_topology(ours):
    made = ours.Create_cart([1])
    assert (made == MPI.COMM_NULL) == (RANK > 0)
    if made:
        made.Barrier(algorithm="tree")
        made.Free()


def neighbour_arguments(name):
    """Send and receive buffer: to left and right this rank's number, or the one after it."""
    send, recv = np.array([RANK], "i4"), np.full(2, -1, "i4")
    if name.startswith("neighbor_alltoall"):
        send = np.array([RANK, RANK + 100], "i4")
    if name == "neighbor_alltoallw":
        both = ([1, 1], [0, 4]), [MPI.INT32_T] * 2
        return [send, *both], [recv, *both]
    if name.endswith("v"):
        counts = ([1, 1], [0, 1])
        whole = [send, counts, MPI.INT32_T] if name == "neighbor_alltoallv" else send
        return whole, [recv, counts, MPI.INT32_T]
    return send, recv


def values(recv):
    return recv[0] if isinstance(recv, list) else recv


@pytest.mark.parametrize("mode", ["", "I", "_init", "old"])
@pytest.mark.parametrize("name", NEIGHBOURHOOD)
def test_neighbourhood_collectives_are_the_librarys_and_counted(request, ours, name, mode):
    """Persistent ones also where the library has none: Open MPI 4 is such a library."""
    if mode == "old":
        request.getfixturevalue("old")
        mode = "_init"
    cart, plain = ring(ours), ring(WORLD)
    send, expected = neighbour_arguments(name)
    if mode:  # two neighbours that are one come in the order of the library's way
        getattr(plain, f"I{name}")(send, expected).Wait()
    else:
        getattr(plain, name.capitalize())(send, expected)
    send, recv = neighbour_arguments(name)
    method = f"I{name}" if mode == "I" else name.capitalize() + mode
    made = getattr(cart, method)(send, recv)
    if mode == "_init":
        made.Start()
    if mode:
        made.Wait()
    if mode == "_init":
        made.Free()
    assert values(recv).tolist() == values(expected).tolist() != [-1, -1]
    stats = cart.stats()
    assert stats.calls == {(name, "native"): 1}
    ((key, reason),) = stats.fallbacks
    assert key == name and "neighbourhood collectives are passed through" in reason
    said = cart.explain(name)
    assert name in said and "native (passed through" in said
    assert getattr(type(cart), method).__doc__ == getattr(MPI.Cartcomm, method).__doc__
    for comm in (plain, cart):
        comm.Free()


@pytest.fixture
def old(monkeypatch):
    """The MPI library has no persistent collectives."""

    def lacks(self, definition, *arguments, **more):
        raise NotImplementedError  # as mpi4py does

    monkeypatch.setattr(Neighbourhood, "_native_prequest", lacks)


@pytest.mark.parametrize(
    ("name", "topology"),
    [(name, "cart") for name in NEIGHBOURHOOD]
    + [("neighbor_alltoall", "graph"), ("neighbor_alltoall", "adjacent")],  # neighbours in order
)
def test_a_library_without_persistent_collectives(ours, old, name, topology):
    """Each start is its non-blocking one, and starts come in another order on each rank."""
    made, plain = (TOPOLOGIES[topology][0](comm) for comm in (ours, WORLD))
    send, want = neighbour_arguments(name)
    getattr(plain, f"I{name}")(send, want).Wait()
    pairs = [neighbour_arguments(name) for _ in range(2)]
    bind = getattr(made, f"{name.capitalize()}_init")
    plans = [bind(send, recvbuf=recv) for send, recv in pairs]
    for _ in range(2):
        for plan in plans[:: 1 if RANK % 2 else -1]:
            plan.Start()
        mpicoll.Request.Waitall(plans)
        for _, recv in pairs:
            assert values(recv).tolist() == values(want).tolist() != [-1, -1]
            values(recv)[:] = -1
    for plan in plans:
        plan.Free()
    assert made.stats().calls == {(name, "native"): 4}
    for comm in (plain, made):
        comm.Free()


@pytest.mark.parametrize("policy", POLICIES)
def test_neighbourhood_collectives_are_counted_whatever_the_policy(monkeypatch, policy):
    """There is no algorithm for them, so nobody can have asked for one."""
    ours = settings(monkeypatch, MPICOLL_FALLBACK=policy)
    cart = ring(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        send, recv = neighbour_arguments("neighbor_alltoall")
        cart.Neighbor_alltoall(send, recv)
        cart.Ineighbor_alltoall(send, recv).Wait()
    assert cart.stats().calls == {("neighbor_alltoall", "native"): 2}
    assert sum(cart.stats().fallbacks.values()) == 2
    cart.Free()
    ours.Free()


def test_neighbourhood_collectives_keep_limits_checks_and_hooks(monkeypatch):
    ours = settings(monkeypatch, MPICOLL_FALLBACK="silent", MPICOLL_CHECK="1", MPICOLL_TIMEOUT="30")
    cart = ring(ours)
    seen = []
    hooks.add(seen.append)
    try:
        send, recv = neighbour_arguments("neighbor_alltoall")
        cart.Neighbor_alltoall(send, recv)
    finally:
        hooks.remove(seen.append)
    assert [(event.collective, event.algorithm) for event in seen] == [
        ("neighbor_alltoall", "native")
    ]
    assert -1 not in recv
    request = cart.Ineighbor_alltoall(send, recv)
    request.Wait()
    bound = cart.Neighbor_alltoall_init(send, recv)
    for _ in range(2):
        bound.Start()
        bound.Wait()
    bound.Free()
    cart.Free()
    ours.Free()


# --- intercommunicators ---


@pytest.fixture
def between(monkeypatch):
    """An intercommunicator between the even and the odd ranks."""
    ours = settings(monkeypatch, MPICOLL_FALLBACK="silent")
    half = ours.Split(RANK % 2, RANK)
    made = half.Create_intercomm(0, WORLD, 1 - RANK % 2)
    yield made
    made.Free()
    half.Free()
    ours.Free()


@pytest.mark.mpi(min_size=2)
def test_intercommunicators_are_passed_through_and_counted(between):
    assert type(between) is Intercomm is mpicoll.Intercomm
    out = np.zeros(2)
    between.Allreduce(np.ones(2), out)
    assert out.tolist() == [between.Get_remote_size()] * 2
    between.Barrier()
    request = between.Iallreduce(np.ones(2), out)
    request.Wait()
    stats = between.stats()
    assert stats.calls == {("allreduce", "native"): 2, ("barrier", "native"): 1}
    assert sum(stats.fallbacks.values()) == 3
    assert all("an intercommunicator's" in reason for _, reason in stats.fallbacks)
    merged = between.Merge(high=RANK % 2)
    assert type(merged) is MPI.Intracomm
    merged.Free()


@pytest.mark.mpi(min_size=2)
def test_no_policy_holds_for_intercommunicators(monkeypatch, between):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for policy in POLICIES:
            monkeypatch.setenv("MPICOLL_FALLBACK", policy)
            same = Intercomm(between)
            same.Barrier()
            assert sum(same.stats().fallbacks.values()) == 1
    with pytest.raises(TypeError, match="expected an intercommunicator, not Intracomm"):
        Intercomm(WORLD)
    with pytest.raises(TypeError, match=r"mpicoll\.Intercomm, which passes"):
        Intracomm(between)


@pytest.mark.parametrize("policy", POLICIES)
def test_futures_end_whatever_the_policy(monkeypatch, policy):
    """Their workers meet on an intercommunicator, of which the user has not asked anything."""
    ours = settings(monkeypatch, MPICOLL_FALLBACK=policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with MPICommExecutor(ours, root=0) as executor:
            if executor is not None:
                assert list(executor.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
    ours.Free()


def test_every_collective_of_an_intercommunicator_is_counted():
    for method in METHODS:
        for name in (method, f"I{method.lower()}", f"{method}_init"):
            if method in ("Scan", "Exscan"):
                assert not hasattr(Intercomm, name)
            else:
                assert getattr(Intercomm, name) is not getattr(MPI.Intercomm, name)
