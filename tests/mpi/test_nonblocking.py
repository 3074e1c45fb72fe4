"""Non-blocking and persistent collectives: every algorithm, and every order that MPI allows."""

import gc
import warnings

import numpy as np
import pytest
from arguments import call, made
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.comm import Intracomm
from mpicoll.engine import lanes, planning, progress
from mpicoll.errors import FallbackWarning
from mpicoll.requests import Prequest, Request
from mpicoll.requests.library import PersistentFallback
from mpicoll.runtime import plans, state
from mpicoll.schedule import collectives
from mpicoll.schedule.methods import METHODS

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
CASES = [(e.collective, e.name) for e in algorithms.catalogue() if e.runs_on(P)]


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


@pytest.fixture
def alone():
    """A communicator for one test, which must not leave anything under way."""
    comm = Intracomm(WORLD.Dup())
    yield comm
    assert not comm._state.under_way
    comm.Free()


@pytest.fixture(autouse=True)
def _nothing_stays_under_way():
    yield
    assert not progress.under_way


def total(rank_values):
    return sum(rank_values(rank) for rank in range(P))


def started(comm, value, count=7, algorithm="ring"):
    """A non-blocking all-reduce of a constant vector, and the array that gets the result."""
    recv = np.zeros(count)
    request = comm.Iallreduce(np.full(count, float(value)), recv, algorithm=algorithm)
    return request, recv


# --- every algorithm ---


def seen(name, recv, in_place, count):
    return recv[:count] if in_place and name == "reduce_scatter" else recv


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_non_blocking(ours, name, algorithm, in_place):
    roots = {0, P - 1} if collectives.collective(name).rooted else {0}
    for count in (0, 1, 13):
        for root in roots:
            send, theirs = made(name, count, "f8", root, in_place)
            call(WORLD, name, send, theirs, root=root)
            send, mine = made(name, count, "f8", root, in_place)
            request = call(ours, name, send, mine, root=root, mode="I", algorithm=algorithm)
            assert isinstance(request, Request)
            assert request.Wait() is True
            if isinstance(mine, np.ndarray):
                np.testing.assert_array_equal(
                    seen(name, mine, in_place, count), seen(name, theirs, in_place, count)
                )


@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_persistent(ours, name, algorithm):
    send, theirs = made(name, 5, "f8", 0, False)
    other, mine = made(name, 5, "f8", 0, False)
    plan = call(ours, name, other, mine, mode="_init", algorithm=algorithm)
    assert isinstance(plan, Prequest)
    assert plan.Wait() is True  # inactive
    for number in range(3):
        for array in (send, other):
            if array is not None:
                array += number
        if name == "bcast" and RANK == 0:
            mine += number
            theirs += number
        call(WORLD, name, send, theirs)
        plan.Start()
        plan.Wait()
        if mine is not None:
            np.testing.assert_array_equal(mine, theirs)
    plan.Free()
    with pytest.raises(ValueError, match="has been freed"):
        plan.Start()


@pytest.mark.parametrize("mode", ["I", "_init", "old"])
@pytest.mark.parametrize("method", METHODS)
def test_without_an_algorithm_the_library_serves_and_is_counted(request, alone, method, mode):
    if mode == "old":
        request.getfixturevalue("old")
        mode = "_init"
    one, every = np.ones(1), np.full(P, 7.0)
    vector, ones = [every, [1] * P], [np.ones(P), [1] * P]
    typed = [([1] * P, range(0, 8 * P, 8)), [MPI.DOUBLE] * P]
    arguments = {
        "Barrier": (),
        "Bcast": (one,),
        "Allgather": (one, every),
        "Allgatherv": (one, vector),
        "Gather": (one, every),
        "Gatherv": (one, vector),
        "Scatter": (np.ones(P), every[:1]),
        "Scatterv": (ones, every[:1]),
        "Alltoall": (np.ones(P), every),
        "Alltoallv": (ones, vector),
        "Alltoallw": ([np.ones(P), *typed], [every, *typed]),
        "Reduce_scatter": (np.ones(P), every[:1], [1] * P),
        "Reduce_scatter_block": (np.ones(P), every[:1]),
    }.get(method, (one, every[:1]))
    name = "I" + method.lower() if mode == "I" else method + mode
    started = getattr(alone, name)(*arguments)
    assert isinstance(started, MPI.Request if mode == "I" else (MPI.Prequest, PersistentFallback))
    if mode == "_init":
        started.Start()
    started.Wait()
    if mode == "_init":
        started.Free()
    assert alone.stats().calls == {(METHODS[method].collective, "native"): 1}
    reduced = METHODS[method].definition.reduces and (method != "Reduce" or RANK == 0)
    if reduced and method not in ("Scan", "Exscan"):
        assert every[0] == P
    if method in ("Allgather", "Alltoallw", "Allgatherv"):
        assert every.tolist() == [1] * P


def test_what_the_environment_names_does_not_run_without_progress(monkeypatch):
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_ALLREDUCE", "ring")
    comm = Intracomm(WORLD.Dup())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        comm.Iallreduce(np.ones(1), np.zeros(1)).Wait()
    assert comm.stats().calls == {("allreduce", "native"): 1}
    ((_, reason),) = comm.stats().fallbacks
    assert "MPICOLL_ALLREDUCE: what is not blocking must progress" in reason
    comm.Free()


def test_types_that_mpi_lacks_need_an_algorithm(ours):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    send = np.ones(3, ml_dtypes.bfloat16)
    recv = np.zeros_like(send)
    ours.Iallreduce(send, recv, algorithm="ring").Wait()
    assert recv.astype(int).tolist() == [P] * 3
    if getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL) == MPI.DATATYPE_NULL:
        with pytest.raises(TypeError, match=r"no datatype for bfloat16; name an algorithm"):
            ours.Iallreduce(send, recv)


def test_arguments_are_checked_at_once(ours):
    same = np.zeros(3)
    for name in ("Iallreduce", "Allreduce_init"):
        with pytest.raises(ValueError, match="are the same memory"):
            getattr(ours, name)(same, same, algorithm="ring")
        with pytest.raises(ValueError, match="unknown algorithm 'rign'"):
            getattr(ours, name)(np.zeros(3), np.zeros(3), algorithm="rign")


# --- requests ---


def test_spellings(alone):
    request, recv = started(alone, RANK)
    assert "Allreduce by ring" in repr(request)
    with pytest.raises(RuntimeError, match="cannot be cancelled"):
        request.Cancel()
    status = MPI.Status()
    while not request.Test(status):
        pass
    assert (status.source, status.tag) == (MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert not request
    assert request.Get_status() and request.Test() and request.Wait()
    assert request.test() == (True, None)
    assert request.wait() is None
    request.Free()
    assert recv[0] == total(lambda rank: rank)


def test_waitall_takes_both_kinds(alone):
    mine = [started(alone, RANK + k) for k in range(3)]
    theirs = np.zeros(1)
    requests = [r for r, _ in mine] + [alone.Iallreduce(np.ones(1), theirs)]
    statuses = []
    assert Request.Waitall(requests, statuses) is True
    assert len(statuses) == 4
    assert Request.Testall(requests)
    assert theirs[0] == P
    for k, (_, recv) in enumerate(mine):
        assert recv[0] == total(lambda rank, k=k: rank + k)
    request, _ = started(alone, 1)
    assert Request.waitall([request, alone.Ibarrier()])[0] is None


def test_the_librarys_waitall_refuses_them(alone):
    request, _ = started(alone, 1)
    with pytest.raises(TypeError):
        MPI.Request.Waitall([request])
    request.Wait()


def test_a_temporary_stays_alive(alone):
    count = 1 << 16
    requests, results = [], []
    for k in range(4):
        recv = np.zeros(count)
        requests.append(alone.Iallreduce(np.full(count, float(k)), recv, algorithm="ring"))
        results.append(recv)
    gc.collect()
    np.full((8, count), 77.0)  # where the temporaries would have been
    del requests[:2]  # and so do those that nobody waits for
    Request.Waitall(requests)
    alone.Barrier(algorithm="dissemination")
    progress.until(lambda: not alone._state.under_way)
    assert [recv[-1] for recv in results] == [k * P for k in range(4)]


# --- order ---


def test_waited_in_any_order(alone):
    mine = [started(alone, RANK * 10 + k, count=k + 1) for k in range(6)]
    order = list(range(6))
    np.random.default_rng(RANK).shuffle(order)
    for k in order:
        request, recv = mine[k]
        request.Wait()
        assert recv.tolist() == [total(lambda rank, k=k: rank * 10 + k)] * (k + 1)


def test_communicators_waited_in_opposite_orders(alone):
    comms = [alone, *(alone.Dup() for _ in range(3))]
    mine = [started(comm, RANK + k) for k, comm in enumerate(comms)]
    for k in range(4) if RANK % 2 else reversed(range(4)):
        request, recv = mine[k]
        request.Wait()
        assert recv[0] == total(lambda rank, k=k: rank + k)
    for comm in comms[1:]:
        comm.Barrier()
        progress.until(lambda comm=comm: not comm._state.under_way)
        comm.Free()


BLOCKING = {
    "native": lambda comm: comm.Bcast(np.zeros(1), root=P - 1),
    "ours": lambda comm: comm.Allreduce(np.zeros(3), np.zeros(3), algorithm="ring"),
    "vector": lambda comm: comm.Reduce_scatter(np.zeros(P), np.zeros(1)),
    "Dup": lambda comm: comm.Dup().Free(),
    "Split": lambda comm: comm.Split(0, RANK).Free(),
}


@pytest.mark.parametrize("name", BLOCKING)
@pytest.mark.parametrize("last", [0, P - 1])
def test_a_blocking_call_between_start_and_wait(alone, name, last):
    """One rank waits after the blocking call, the others before it."""
    request, recv = started(alone, RANK)
    if RANK != last:
        request.Wait()
    BLOCKING[name](alone)
    request.Wait()
    assert recv[0] == total(lambda rank: rank)


def test_an_init_between_start_and_wait(alone, monkeypatch):
    """Even one that has to agree on lanes with the other ranks."""
    monkeypatch.setattr(alone._state.lanes.persistent, "_free", lanes.deque())
    request, recv = started(alone, RANK)
    if RANK:
        request.Wait()
    plan = alone.Allreduce_init(np.ones(1), np.zeros(1), algorithm="ring")
    request.Wait()
    plan.Free()
    assert recv[0] == total(lambda rank: rank)


def test_every_call_of_ours_makes_progress(alone):
    """Rank 0 never looks at its request again: its other calls do the work."""
    request, recv = started(alone, RANK, algorithm="linear")
    other = alone.Dup()
    if RANK:
        request.Wait()
    other.Barrier(algorithm="dissemination")
    other.Allreduce(np.ones(1), np.zeros(1), algorithm="linear")
    request.Wait()
    assert recv[0] == total(lambda rank: rank)
    other.Free()


def test_the_same_call_under_way_several_times(alone, monkeypatch):
    built = []
    build = planning.build
    monkeypatch.setattr(
        planning, "build", lambda shape, piece: built.append(shape) or build(shape, piece)
    )
    # Nobody can be done before rank 0 has started, which it does when all others have.
    if RANK == 0:
        WORLD.Barrier()
    mine = [started(alone, RANK + k, algorithm="linear") for k in range(3)]
    if RANK:
        WORLD.Barrier()
    Request.Waitall([request for request, _ in mine])
    for k, (_, recv) in enumerate(mine):
        assert recv[0] == total(lambda rank, k=k: rank + k)
    assert 1 <= len(built) <= 3
    assert len(alone._state.plans._kept) == 1
    if P > 1 and RANK:  # the fast path has one plan for all
        assert len(built) == (3 if alone._state.fast_path.path is None else 1)


def test_more_calls_than_lanes(alone):
    many = len(lanes.CALLS) * 2 + 5
    mine = [started(alone, RANK + k, count=2) for k in range(many)]
    for k in range(many) if RANK % 2 else reversed(range(many)):
        request, recv = mine[k]
        request.Wait()
        assert recv[0] == total(lambda rank, k=k: rank + k)


# --- plans ---


def test_plans_started_in_different_orders(alone):
    names = algorithms.names("allreduce")
    sends = [np.zeros(9) for _ in names]
    recvs = [np.zeros(9) for _ in names]
    plans = [
        alone.Allreduce_init(send, recv, algorithm=name)
        for name, send, recv in zip(names, sends, recvs, strict=True)
    ]
    random = np.random.default_rng(RANK)
    for number in range(4):
        for k, send in enumerate(sends):
            send[:] = RANK + k + number
        for k in random.permutation(len(plans)):
            plans[k].Start()
        for k in random.permutation(len(plans)):
            plans[k].Wait()
            assert recvs[k][0] == total(lambda rank, k=k, number=number: rank + k + number)
    Prequest.Startall(plans)
    Request.Waitall(plans)
    for k in random.permutation(len(plans)):
        plans[k].Free()
    assert not alone._state.lanes.persistent._taken


def test_plans_beside_calls_of_the_same_shape(alone):
    send, recv = np.ones(5), np.zeros(5)
    plan = alone.Allreduce_init(send, recv, algorithm="ring")
    plan.Start()
    request, other = started(alone, 2, count=5)
    blocking = np.zeros(5)
    alone.Allreduce(np.full(5, 3.0), blocking, algorithm="ring")
    for waited in (plan, request) if RANK % 2 else (request, plan):
        waited.Wait()
    assert (recv[0], other[0], blocking[0]) == (P, 2 * P, 3 * P)
    plan.Free()


def test_more_plans_than_lanes(alone):
    """They go to another communicator; freed ones give lanes back, whenever each rank frees."""
    spare = alone._state.lanes
    plans, results = [], []

    def make(count):
        for _ in range(count):
            results.append(np.zeros(1))
            plans.append(alone.Allreduce_init(np.ones(1), results[-1], algorithm="linear"))

    make(len(lanes.PERSISTENT) + 3)
    assert len(spare.comms) == 2
    for plan in plans[::-1] if RANK % 2 else plans:
        plan.Start()
    Request.Waitall(plans)
    assert [recv[0] for recv in results] == [P] * len(results)
    # All free the first 20, and each rank another one, which the others cannot start any more.
    for plan in (*plans[:20], plans[20 + RANK]):
        plan.Free()
    halfway = plans[20 : 20 + P]
    del plans[: 20 + P], results[: 20 + P]
    numbers = {plan._lane for plan in halfway if plan}
    make(2 * len(lanes.PERSISTENT) - 3)
    assert len(spare.comms) == 3
    assert not numbers & {plan._lane for plan in plans}
    for recv in results:
        recv[:] = 0
    Prequest.Startall(plans)
    Request.Waitall(plans)
    assert [recv[0] for recv in results] == [P] * len(results)
    del plans[:], halfway, plan  # dropped, not freed
    gc.collect()
    assert not spare.persistent._taken


def test_plans_of_vectors(alone):
    counts = [(3 * rank) % 5 for rank in range(P)]
    recv = np.zeros(sum(counts))
    plan = alone.Allgatherv_init(
        np.full(counts[RANK], RANK + 1.0), [recv, counts], algorithm="bruck"
    )
    for _ in range(2):
        recv[:] = 0
        plan.Start()
        plan.Wait()
        assert recv.tolist() == np.repeat(np.arange(P) + 1.0, counts).tolist()
    plan.Free()
    table = [(RANK + other) % 3 for other in range(P)]
    got = np.zeros(sum(table))
    request = alone.Ialltoallv(
        [np.full(sum(table), RANK), table, MPI.LONG],
        [got.view(np.int64), table],
        algorithm="pairwise",
    )
    request.Wait()
    assert got.view(np.int64).tolist() == np.repeat(np.arange(P), table).tolist()
    few = np.zeros(counts[RANK])
    request = alone.Ireduce_scatter(np.ones(sum(counts)), few, counts, algorithm="pairwise")
    request.Wait()
    assert few.tolist() == [P] * counts[RANK]


# --- the end ---


@pytest.mark.skipif(P == 1, reason="nothing can be under way")
@pytest.mark.parametrize("method", ["Free", "free", "Disconnect"])
def test_a_communicator_in_use_is_not_freed(ours, method):
    made = ours.Dup()
    if RANK:
        WORLD.Barrier()
    request, _ = started(made, 1, algorithm="linear")
    if RANK == 0:  # nobody else has started
        with pytest.raises(RuntimeError, match=f"{method} of a communicator with 1 collective"):
            getattr(made, method)()
        with pytest.raises(RuntimeError, match="Free of Allreduce under way"):
            request.Free()
        WORLD.Barrier()
    request.Wait()
    getattr(made, method)()
    assert made == MPI.COMM_NULL


@pytest.mark.skipif(P == 1, reason="nothing can be under way")
def test_a_plan_under_way_is_not_started_again(alone):
    send, recv = np.ones(1), np.zeros(1)
    plan = alone.Allreduce_init(send, recv, algorithm="linear")
    if RANK:
        WORLD.Barrier()
    plan.Start()
    if RANK == 0:  # nobody else has started
        with pytest.raises(RuntimeError, match="Start of Allreduce under way"):
            plan.Start()
        with pytest.raises(RuntimeError, match="Free of Allreduce under way"):
            plan.Free()
        WORLD.Barrier()
    plan.Wait()
    assert recv[0] == P
    plan.Free()


def test_a_plan_does_not_outlive_its_communicator(ours):
    made = ours.Dup()
    plan = made.Allreduce_init(np.ones(1), np.zeros(1), algorithm="ring")
    made.Free()
    with pytest.raises(ValueError, match="this communicator has been freed"):
        plan.Start()
    plan.Free()


class Broken(Exception):
    pass


def test_a_failure_is_raised_by_wait_and_poisons(monkeypatch):
    base = WORLD.Dup()
    comm = Intracomm(base)
    shared = comm._state

    class Failing:
        def test(self):
            raise Broken("first")

    monkeypatch.setattr(plans.Plans, "execute", lambda *arguments: Failing())
    request, _ = started(comm, 1)
    for _ in range(2):
        with pytest.raises(Broken, match="first"):
            request.Wait()
    with pytest.raises(Broken, match="first"):
        request.Test()
    for call_again in (lambda: started(comm, 1), comm.Barrier, comm.stats):
        with pytest.raises(RuntimeError, match=r"cannot be used any more.*Broken: first"):
            call_again()
    base.Free()
    assert shared in state._LOST  # its messages may still arrive
    state._LOST.remove(shared)
    WORLD.Barrier()


def test_below_thread_multiple_nothing_starts_a_thread(alone, monkeypatch):
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    monkeypatch.setattr(progress.threading, "Thread", None)
    request, _ = started(alone, 1)
    alone.Bcast(np.zeros(1))  # would fail if it started one
    request.Wait()
