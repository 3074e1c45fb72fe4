"""Several requests of both kinds, operators that are freed, and what hooks and traces see."""

import gc
import shutil
import tempfile
import weakref

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import hooks
from mpicoll.comm import Intracomm
from mpicoll.engine import progress
from mpicoll.requests import Prequest, Request
from mpicoll.requests.library import LibraryPrequest, LibraryRequest, PersistentFallback
from mpicoll.runtime import plans, state, trace

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
RIGHT, LEFT = (RANK + 1) % P, (RANK - 1) % P


@pytest.fixture
def alone():
    comm = Intracomm(WORLD.Dup())
    yield comm
    assert not comm._state.under_way
    assert not progress.under_way
    comm.Free()


def with_settings(monkeypatch, **variables):
    """A communicator made with these variables on rank 0."""
    for name, value in variables.items():
        if RANK == 0:
            monkeypatch.setenv(name, value)
    return Intracomm(WORLD.Dup())


@pytest.fixture(params=["plain", "limited", "checked"])
def comm(request, monkeypatch):
    variables = {"limited": {"MPICOLL_TIMEOUT": "60"}, "checked": {"MPICOLL_CHECK": "1"}}
    made = with_settings(monkeypatch, **variables.get(request.param, {}))
    yield made
    assert not progress.under_way
    made.Free()


def mixture(comm):
    """Three collectives of ours, one of the library, a message; and their results."""
    results = [np.zeros(3) for _ in range(5)]
    requests = [
        comm.Iallreduce(np.full(3, 1.0 + k), results[k], algorithm="ring") for k in range(3)
    ]
    requests.append(comm.Iallreduce(np.full(3, 4.0), results[3]))
    requests.append(comm.Irecv(results[4], LEFT))
    comm.Send(np.full(3, 5.0), RIGHT)
    return requests, [(result, (1 + k) * (P if k < 4 else 1)) for k, result in enumerate(results)]


def check(results):
    for result, value in results:
        assert result.tolist() == [value] * 3


# --- any and some ---


def test_waitany(comm):
    requests, results = mixture(comm)
    statuses = [MPI.Status() for _ in requests]
    found = [Request.Waitany(requests, status) for status in statuses]
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert statuses[found.index(4)].source == LEFT
    check(results)
    assert Request.Waitany(requests) == MPI.UNDEFINED
    assert Request.Testany(requests) == (MPI.UNDEFINED, True)
    assert not any(requests)


def test_testany(comm):
    requests, results = mixture(comm)
    found = []
    while len(found) < 5:
        index, done = Request.Testany(requests)
        assert done == (index != MPI.UNDEFINED)
        if done:
            found.append(index)
    assert sorted(found) == [0, 1, 2, 3, 4]
    check(results)


@pytest.mark.parametrize("method", ["Waitsome", "Testsome"])
def test_some(comm, method):
    requests, results = mixture(comm)
    found, sources = [], {}
    first = MPI.Status()
    while True:
        statuses = [first]
        indices = getattr(Request, method)(requests, statuses)
        if indices is None:
            break
        assert indices or method == "Testsome"
        assert len(statuses) == max(len(indices), 1)
        assert statuses[0] is first
        sources.update((index, s.source) for index, s in zip(indices, statuses, strict=False))
        found += indices
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert sources[4] == LEFT
    check(results)


def test_all(comm):
    requests, results = mixture(comm)
    statuses = []
    while not Request.Testall(requests, statuses):
        assert statuses == []
    assert len(statuses) == 5
    assert statuses[4].source == LEFT
    check(results)
    assert Request.Testall([]) and Request.Waitall([])
    assert Request.Waitany([]) == MPI.UNDEFINED
    assert Request.Waitsome([]) is None


class Unreadable:
    """A message that raises where it is unpickled."""

    def __reduce__(self):
        return divmod, (1, 0)


@pytest.mark.parametrize("kind", [MPI.Request, Request])
@pytest.mark.parametrize("method", ["Waitany", "Testany", "Waitsome", "Testsome"])
def test_upper_case_leaves_what_arrived_unpickled(comm, kind, method):
    request = comm.irecv(source=LEFT)
    comm.send(Unreadable(), RIGHT)
    while request:
        getattr(kind, method)([request])
    assert request.wait() is None  # mpi4py has dropped it


def test_lower_case_returns_what_arrived(comm):
    def start():
        request, result = comm.irecv(source=LEFT), np.zeros(1)
        comm.send({"from": RANK}, RIGHT)
        own = comm.Iallreduce(np.ones(1), result, algorithm="linear")
        return [request, own]

    message = {"from": LEFT}
    assert Request.waitall(start()) == [message, None]
    requests = start()
    got = [Request.waitany(requests) for _ in range(2)]
    assert sorted(got, key=lambda pair: pair[0]) == [(0, message), (1, None)]
    assert Request.waitany(requests) == (MPI.UNDEFINED, None)
    for function in (Request.waitsome, Request.testsome):
        requests, found = start(), {}
        while (pair := function(requests))[0] is not None:
            found |= dict(zip(*pair, strict=True))
        assert found == {0: message, 1: None}
    requests, found = start(), {}
    while len(found) < 2:
        index, done, got = Request.testany(requests)
        found |= {index: got} if done else {}
    assert found == {0: message, 1: None}
    requests = start()
    while not (answer := Request.testall(requests))[0]:
        assert answer[1] is None
    assert answer[1] == [message, None]


def test_inactive_plans_are_not_waited_for(comm):
    result = np.zeros(1)
    plans = [
        comm.Allreduce_init(np.ones(1), result, algorithm="ring"),
        comm.Barrier_init(),
    ]
    assert Request.Waitany(plans) == MPI.UNDEFINED
    for plan in plans:
        plan.Start()
        while Request.Waitany(plans) != MPI.UNDEFINED:
            pass
        assert Request.Testsome(plans) is None
    assert result[0] == P
    for plan in plans:
        plan.Free()


def test_a_library_without_persistent_collectives(old, comm):
    """Each start is its non-blocking one."""
    mine, total, everyone = np.ones(P), np.zeros(P), np.zeros(P)
    plans = [
        comm.Allreduce_init(mine, total),
        comm.Allgather_init(mine[:1], everyone),
        comm.Reduce_scatter_init(mine, np.zeros(1), [1] * P),
        comm.Barrier_init(),
    ]
    kept = weakref.ref(plans[0])
    assert Request.Waitany(plans) == MPI.UNDEFINED
    for number in range(1, 4):
        mine[:] = number
        # In another order on each rank.
        Prequest.Startall(plans[RANK % 4 :] + plans[: RANK % 4])
        with pytest.raises(RuntimeError, match="under way"):
            plans[0].Start()
        with pytest.raises(RuntimeError, match="under way"):
            plans[1].Free()
        if number == 1:
            Request.Waitall(plans)
        else:
            for plan in plans:
                plan.Wait()
        assert (total == P * number).all()
        assert (everyone == number).all()
        assert plans[0].test() == (True, None)
    with pytest.raises(RuntimeError, match="cannot be cancelled"):
        plans[0].Cancel()
    for plan in plans:
        assert plan
        plan.Free()
        assert not plan
    with pytest.raises(ValueError, match="freed"):
        plans[0].Start()
    del plans, plan
    gc.collect()
    assert kept() is None


def test_their_communicators_serve_again_and_go_with_the_callers(old):
    """Whenever each rank frees or drops the plan."""
    comm, total = Intracomm(WORLD.Dup()), np.zeros(1)
    lanes = comm._state.lanes
    for number in range(1, 7):
        plan = comm.Allreduce_init(np.full(1, float(number)), total)
        plan.Start()
        plan.Wait()
        assert total[0] == P * number
        if (RANK + number) % 2:
            plan.Free()
        del plan
        gc.collect()
    assert len(lanes.comms) == 2
    plans = [comm.Barrier_init() for _ in range(P + 1)]
    plans[RANK].Free()  # the others keep it
    del plans[P]
    gc.collect()
    plans += [comm.Barrier_init(), comm.Barrier_init()]
    assert len(lanes.comms) == P + 2 + (P > 1)
    del plans[RANK]
    Prequest.Startall(plans[P - 1 :])
    Request.Waitall(plans[P - 1 :])
    comms = [*lanes.comms]
    comm.Free()
    assert all(each == MPI.COMM_NULL for each in comms)
    with pytest.raises(ValueError, match="freed"):
        plans[-1].Start()
    plans[-1].Free()


def test_they_are_kept_while_under_way_and_have_the_callers_error_handler(old, alone):
    alone.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    plan = alone.Barrier_init()
    seen = weakref.ref(plan)
    assert plan._comm.Get_errhandler() == MPI.ERRORS_ARE_FATAL
    plan.Start()
    del plan
    gc.collect()
    seen().Wait()
    gc.collect()
    assert seen() is None
    assert not alone._state.restarted


def test_hooks_hear_of_starts_that_a_library_without_persistent_ones_makes(old, alone, events):
    plan = alone.Allreduce_init(np.ones(100), np.zeros(100))
    for number in range(2):
        assert facts(events) == [("allreduce", "native", 800, False, None)] * number
        plan.Start()
        plan.Wait()
    plan.Free()
    assert alone.stats().calls["allreduce", "native"] == 2


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_each_start_is_counted(comm, algorithm):
    ours = comm.Dup()
    plan = ours.Allreduce_init(np.ones(10), np.zeros(10), algorithm=algorithm)
    assert not ours.stats().calls
    for _ in range(3):
        plan.Start()
        plan.Wait()
    plan.Free()
    assert ours.stats().calls == {("allreduce", algorithm): 3}
    ours.Free()


def test_complete_is_pending_until_the_owner_knows(alone):
    request = alone.Iallreduce(np.ones(1), np.zeros(1), algorithm="ring")
    while alone._state.under_way:
        progress.poll()
    assert request and request.Get_status()
    assert Request.Waitany([request]) == 0
    assert not request


# --- operators that are freed ---


def add(invec, inoutvec, datatype):
    np.frombuffer(inoutvec, "f8")[:] += np.frombuffer(invec, "f8")


def wrong(invec, inoutvec, datatype):
    np.frombuffer(inoutvec, "f8")[:] = -1


@pytest.mark.parametrize("mode", ["I", "_init"])
def test_an_operator_freed_while_in_use(alone, mode):
    send, recv = np.full(3, RANK + 1.0), np.zeros(3)
    send.flags.writeable = False
    op = MPI.Op.Create(add, commute=True)
    if mode == "_init":
        request = alone.Allreduce_init(send, recv, op, algorithm="linear")
    if RANK:  # rank 0 cannot have completed anything before it has freed the operator
        WORLD.Barrier()
    if mode == "I":
        request = alone.Iallreduce(send, recv, op, algorithm="linear")
    op.Free()
    other = MPI.Op.Create(wrong, commute=True)  # takes the place of the one freed
    if RANK == 0:
        WORLD.Barrier()
    for _ in range(1 if mode == "I" else 3):
        if mode == "_init":
            recv[:] = 0
            request.Start()
        request.Wait()
        assert recv.tolist() == [P * (P + 1) / 2] * 3
    request.Free()
    other.Free()


def test_an_operator_that_frees_itself(alone):
    def last(invec, inoutvec, datatype):
        if op != MPI.OP_NULL:
            op.Free()
        assert datatype == MPI.DOUBLE
        add(invec, inoutvec, datatype)

    op = MPI.Op.Create(last, commute=True)
    recv = np.zeros(3)
    alone.Allreduce(np.ones(3), recv, op, algorithm="linear")
    assert recv.tolist() == [P] * 3
    if P == 1:
        op.Free()


def test_an_operator_not_made_here(alone):
    op = MPI.Op.Create(add, commute=True)
    recv = np.zeros(3)
    alone.Iallreduce(np.ones(3), recv, MPI.Op.fromhandle(op.handle), algorithm="linear").Wait()
    assert recv.tolist() == [P] * 3
    op.Free()


# --- the library's requests ---


@pytest.mark.parametrize("mode", ["I", "_init"])
def test_what_the_library_is_passed_stays_alive(comm, mode):
    send = np.ones(1 << 16)
    seen, recv = weakref.ref(send), np.zeros(1 << 16)
    request = getattr(comm, "Iallreduce" if mode == "I" else "Allreduce_init")(send, recv)
    del send
    gc.collect()
    assert seen() is not None
    if mode == "_init":
        request.Start()
    request.Wait()
    assert (recv == P).all()
    request.Free() if mode == "_init" else None
    del request
    assert seen() is None


def has_persistent_collectives():
    """Whether the MPI library has them; Open MPI 4 has not."""
    try:
        MPI.COMM_SELF.Barrier_init().Free()
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("has", [True, False])
def test_they_are_looked_after_where_that_is_asked_for(request, monkeypatch, has):
    if not has:
        request.getfixturevalue("old")
    has = has and has_persistent_collectives()
    plain = with_settings(monkeypatch)
    first, plan = plain.Ibarrier(), plain.Barrier_init()
    assert not isinstance(first, LibraryRequest)
    assert not isinstance(plan, LibraryPrequest)
    limited = with_settings(monkeypatch, MPICOLL_TIMEOUT="60")
    other, bound = limited.Ibarrier(), limited.Barrier_init()
    assert isinstance(other, LibraryRequest)
    assert isinstance(bound, LibraryPrequest if has else PersistentFallback)
    assert other.test()[0] in (False, True)
    assert other.wait() is None
    bound.Start()
    # Where both are the library's, by its own function too.
    (MPI.Request if has else Request).Waitall([first, bound])
    plan.Free()
    bound.Free()
    plain.Free()
    limited.Free()


# --- hooks ---


def facts(events):
    return [(e.collective, e.algorithm, e.nbytes, e.complete, e.error) for e in events]


def test_hooks_hear_of_completion(alone, events):
    request = alone.Iallreduce(np.ones(100), np.zeros(100), algorithm="ring")
    assert P == 1 or events == [] or events[0].seconds > 0
    request.Wait()
    ring = ("allreduce", "ring", 800, True, None)
    assert facts(events) == [ring]
    plan = alone.Allreduce_init(np.ones(100), np.zeros(100), algorithm="ring")
    assert facts(events) == [ring]
    for number in range(2):
        plan.Start()
        plan.Wait()
        assert facts(events) == [ring] * (number + 2)
    plan.Free()
    assert all((e.size, e.rank) == (P, RANK) and e.seconds > 0 for e in events)


def test_hooks_hear_of_the_start_of_the_librarys(alone, events):
    native = ("allreduce", "native", 800, False, None)
    request = alone.Iallreduce(np.ones(100), np.zeros(100))
    assert facts(events) == [native]
    request.Wait()
    plan = alone.Allreduce_init(np.ones(100), np.zeros(100))
    assert facts(events) == [native]
    for number in range(2):
        plan.Start()
        assert facts(events) == [native] * (number + 2)
        plan.Wait()
    plan.Free()


def test_hooks_hear_of_a_start_that_fails(alone, events, monkeypatch):
    def fails(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(Intracomm, "_native", fails)
    with pytest.raises(ZeroDivisionError):
        alone.Ibarrier()
    assert [(e.collective, e.complete, type(e.error)) for e in events] == [
        ("barrier", True, ZeroDivisionError)
    ]


def test_what_a_hook_raises_comes_out_of_wait(alone):
    def fails(event):
        raise LookupError("the hook's")

    hooks.add(fails)
    try:
        request = alone.Iallreduce(np.ones(1), np.zeros(1), algorithm="ring")
        with pytest.raises(LookupError, match="the hook's"):
            request.Wait()
        assert not request
    finally:
        hooks.remove(fails)
    alone.Barrier(algorithm="dissemination")  # nothing is wrong with the communicator


def test_a_hook_hears_of_a_failure(monkeypatch, events):
    class Failing:
        def test(self):
            raise ZeroDivisionError("first")

    base = WORLD.Dup()
    comm = Intracomm(base)
    monkeypatch.setattr(plans.Plans, "execute", lambda *arguments: Failing())
    request = comm.Iallreduce(np.ones(1), np.zeros(1), algorithm="ring")
    with pytest.raises(ZeroDivisionError, match="first"):
        request.Wait()
    assert [(e.algorithm, type(e.error)) for e in events] == [("ring", ZeroDivisionError)]
    shared = comm._state
    base.Free()
    state._LOST.remove(shared)  # its messages have arrived or will
    WORLD.Barrier()


# --- traces ---


def test_a_trace_has_every_message(monkeypatch):
    folder = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    path = f"{folder}/trace"
    comm = with_settings(monkeypatch, MPICOLL_TRACE=path)
    comm.Iallreduce(np.ones(4 * P), np.zeros(4 * P), algorithm="ring").Wait()
    plan = comm.Allreduce_init(np.ones(4 * P), np.zeros(4 * P), algorithm="ring")
    for _ in range(2):
        plan.Start()
        plan.Wait()
    plan.Free()
    comm.Ibarrier().Wait()
    bound = comm.Barrier_init()
    bound.Start()
    bound.Wait()
    bound.Free()
    comm.Free()
    trace._FILES.pop(path).close()
    WORLD.Barrier()
    steps = trace.read(path)
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)
    messages = [(s["call"], s["rank"], s["peer"], s["bytes"]) for s in steps if s["step"] == "send"]
    assert sorted(messages) == [
        (call, rank, (rank + 1) % P, 32)
        for call in (1, 2, 3)
        for rank in range(P)
        for _ in range(2 * (P - 1))
    ]
    ends = [(s["call"], s["collective"], s.get("complete", True)) for s in steps if "peer" not in s]
    calls = sorted(end for end in ends if end[1] == "barrier" or end[0] < 4)
    assert {("barrier", False), ("allreduce", True)} == {(name, done) for _, name, done in calls}
    by_number = {number: name for number, name, _ in calls}
    assert by_number == dict(enumerate(["allreduce"] * 3 + ["barrier"] * 2, 1))
    assert all(s["start"] <= s["end"] for s in steps)
    text = "\n".join(trace.lines(steps))
    assert text.count("started") == 2 * P


def test_the_check_agrees_and_runs(monkeypatch):
    comm = with_settings(monkeypatch, MPICOLL_CHECK="1")
    recv, other = np.zeros(3), np.zeros(3)
    requests = [
        comm.Iallreduce(np.ones(3), recv, algorithm="ring"),
        comm.Iallreduce(np.ones(3), other),
    ]
    comm.Barrier()
    plan = comm.Allreduce_init(np.ones(3), np.zeros(3), algorithm="ring")
    plan.Start()
    Request.Waitall([plan, *requests])
    assert recv.tolist() == other.tolist() == [P] * 3
    plan.Free()
    comm.Free()
