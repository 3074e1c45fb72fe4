"""Communicators that come from others: nothing is set up until a call is worth it."""

import contextlib
import os
import threading
import warnings

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI

import mpicoll
from mpicoll import Intracomm
from mpicoll.cuda import driver
from mpicoll.engine import transport
from mpicoll.errors import FallbackWarning
from mpicoll.runtime import connections, first_calls

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
NATIVE, RING = ("allreduce", "native"), ("allreduce", "ring")


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


def summed(comm, **named):
    out = np.zeros(3)
    comm.Allreduce(np.full(3, 1.0 + RANK), out, **named)
    return out[0]


@pytest.fixture
def made(monkeypatch):
    """The connections that are made during a test."""
    made = []
    original = connections._made

    def spy(*arguments):
        made.append(original(*arguments))
        return made[-1]

    monkeypatch.setattr(connections, "_made", spy)
    connections.drain()
    return made


CREATORS = {
    "Dup": lambda c: c.Dup(),
    "Clone": lambda c: c.Clone(),
    "Split": lambda c: c.Split(0, c.rank),
    "Create": lambda c: c.Create(c.Get_group()),
    "Create_group": lambda c: c.Create_group(c.Get_group()),
    "Create_cart": lambda c: c.Create_cart([c.size]),
}


class Talk(AssertionError):
    pass


@pytest.mark.parametrize("name", CREATORS)
def test_creators_send_nothing_of_their_own(ours, name, monkeypatch):
    def talks(*arguments, **more):
        raise Talk

    for module, function in (
        (connections, "take"),
        (mpicoll.runtime.places, "ask"),
        (mpicoll.runtime.state, "read"),
    ):
        monkeypatch.setattr(module, function, talks)
    comm = CREATORS[name](ours)
    comm.stats()
    assert comm.explain("allreduce", 8)
    assert comm._state.connection is None
    comm.Free()


def test_the_first_calls_are_the_librarys_and_counted(ours, made):
    comm = ours.Dup()
    sums = {summed(comm) for _ in range(first_calls.FEW)}
    assert made == [] and comm.stats().calls == {NATIVE: first_calls.FEW}
    sums |= {summed(comm) for _ in range(3)}
    assert len(made) == 1
    assert sums == {P * (P + 1) / 2}
    assert sum(comm.stats().calls.values()) == first_calls.FEW + 3
    comm.Free()


def test_known_first_calls_build_nothing(ours, made):
    for _ in range(3):
        comm = ours.Dup()
        assert summed(comm) == P * (P + 1) / 2
        known = comm._state is None
        assert comm.stats().calls == {NATIVE: 1}
        comm.Free()
    assert made == []
    assert known or MPI.Query_thread() < MPI.THREAD_MULTIPLE


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="without a fast path")
def test_alltoallw_builds_nothing_however_often_it_is_called(ours, made):
    comm = ours.Dup()
    for count in range(1, first_calls.UNSEEN + 3):  # each with datatypes that are new
        block = MPI.DOUBLE.Create_vector(count, 1, 2).Commit()
        extent = 8 * 2 * count
        places = [extent * rank for rank in range(P)]
        send = np.arange(2.0 * count * P) + 1000 * RANK
        recv = np.full_like(send, -1)
        given = ([x, ([1] * P, places), [block] * P] for x in (send, recv))
        comm.Alltoallw(*given)
        expected = np.full((P, count, 2), -1.0)
        sent = np.arange(2.0 * count * P).reshape(P, count, 2)[RANK, :, 0]
        expected[:, :, 0] = sent + 1000 * np.arange(P)[:, None]
        np.testing.assert_array_equal(recv.reshape(P, count, 2), expected)
        block.Free()
    assert not made
    assert comm.stats().calls == {("alltoall", "native"): first_calls.UNSEEN + 2}
    message = [np.zeros(P), ([1] * P, [8 * rank for rank in range(P)]), [MPI.DOUBLE] * P]
    with pytest.raises(ValueError, match="overlap"):
        comm.Alltoallw(message, message)
    comm.Free()


def test_known_calls_that_are_not_blocking_build_nothing(ours, made):
    """Any number of them: no rank waits for another one."""
    given, blocks = np.full(2, 1.0 + RANK), np.zeros((P, 2))
    for turn in range(2):
        comm = ours.Dup()
        for _ in range(3):
            comm.Iallgather(given, blocks).Wait()
            comm.Iallgatherv(given, [blocks, [2] * P]).Wait()
            assert (blocks == np.arange(1.0, P + 1)[:, None]).all()
            blocks[:] = 0
        assert turn == 0 or comm._state is None
        assert comm.stats().calls == {("allgather", "native"): 6}
        comm.Free()
    assert made == []


def test_what_is_not_blocking_and_asked_for_is_counted_where_others_know_the_call(ours):
    out = np.zeros(1)
    plain = ours.Dup()
    for _ in range(2):
        plain.Iallreduce(np.ones(1), out).Wait()
    plain.Free()
    info = MPI.Info.Create()
    info["mpicoll_allreduce"] = "ring"
    asked = ours.Dup()
    asked.Set_info(info)
    info.Free()
    mpicoll.base.caller._WARNED.clear()
    with pytest.warns(FallbackWarning, match="MPICOLL_PROGRESS") if RANK == 0 else nothing():
        for _ in range(2):
            asked.Iallreduce(np.ones(1), out).Wait()
    assert sum(asked.stats().fallbacks.values()) == 2
    asked.Free()


def test_a_file_that_is_named_where_nobody_may_wait_has_to_be_loaded(ours):
    comm = ours.Dup()
    with pytest.raises(ValueError, match="has not been loaded"):
        comm.Iallreduce(np.ones(1), np.zeros(1), algorithm="file:a.json")
    comm.Free()


@pytest.mark.parametrize("calls", [0, 1])
def test_revoked_before_its_ranks_have_met(ours, calls):
    comm = ours.Dup()
    for _ in range(calls):
        comm.Barrier()
    try:
        comm.Revoke()
    except NotImplementedError:
        pytest.skip("this MPI library cannot revoke communicators")
    for call in (comm.Allreduce, comm.Iallreduce, comm.Allreduce_init):
        for named in ({}, {"algorithm": "ring"}):
            with pytest.raises(MPI.Exception) as caught:
                call(np.ones(1), np.zeros(1), **named)
            assert caught.value.Get_error_class() == MPI.ERR_REVOKED
    comm.Free()


def test_an_algorithm_that_is_named_is_taken_from_the_first_call_on(ours):
    comm = ours.Dup()
    summed(comm, algorithm="native")
    summed(comm, algorithm="ring")
    assert comm.stats().calls == {NATIVE: 1, RING: 1}
    comm.Free()


def test_hints_settings_and_subclasses_hold_from_the_first_call_on(monkeypatch):
    monkeypatch.setenv("MPICOLL_ALLREDUCE", "ring")
    asked = Intracomm(WORLD.Dup())
    monkeypatch.delenv("MPICOLL_ALLREDUCE")
    child = asked.Dup()
    summed(child)
    assert child.stats().calls == {RING: 1}
    info = MPI.Info.Create()
    info["mpicoll_allreduce"] = "linear"
    child.Set_info(info)
    info.Free()
    grandchild = child.Dup()
    summed(grandchild)
    assert grandchild.stats().calls == {("allreduce", "linear"): 1}
    for comm in (grandchild, child, asked):
        comm.Free()


def test_a_mistake_of_one_rank_is_no_call(ours):
    comm = ours.Dup()
    for _ in range(first_calls.FEW + 2):
        if RANK == 0:
            with pytest.raises((ValueError, TypeError, MPI.Exception)):
                comm.Allreduce(np.zeros(2), np.zeros(3))
    assert {summed(comm) for _ in range(first_calls.FEW + 2)} == {P * (P + 1) / 2}
    comm.Free()


def test_objects_on_one_handle_make_its_first_calls_together(ours):
    comm = ours.Dup()
    summed(comm)
    other = Intracomm(MPI.Intracomm(comm))
    again = Intracomm(comm)
    results = {summed((comm, other, again)[(RANK + k) % 3]) for k in range(6)}
    assert results == {P * (P + 1) / 2}
    assert comm.stats() == other.stats() == again.stats()
    comm.Free()


def test_a_connection_serves_one_communicator_after_the_other(ours, made):
    for kind in (ours.Dup, lambda: ours.Split(0, RANK)) * 3:
        comm = kind()
        for _ in range(4):
            assert summed(comm, algorithm="ring") == P * (P + 1) / 2
        comm.Free()
    assert len(made) == 1
    held = [ours.Dup() for _ in range(connections.ALIKE + 2)]
    for comm in held:
        summed(comm, algorithm="ring")
    assert len(made) == len(held)
    for comm in held:
        comm.Free()
    assert [len(alike.idle) for alike in connections._pool.values()] == [connections.ALIKE]


def test_parts_of_the_ranks_have_connections_of_their_own(ours, made):
    for _ in range(2):
        comm = ours.Split(RANK % 2, RANK)
        assert summed(comm, algorithm="ring") == sum(1.0 + r for r in range(RANK % 2, P, 2))
        comm.Free()
    assert len(made) == 1


def test_what_has_failed_serves_nobody_else(ours, made):
    comm = connected(ours.Dup())
    comm._state.guard.failure = ZeroDivisionError()
    comm.Free()
    assert all(not alike.idle for alike in connections._pool.values())


def test_a_freed_communicator_does_not_use_what_it_had(ours):
    comm = ours.Dup()
    for _ in range(4):
        summed(comm)
    heir = ours.Dup()
    comm.Free()
    summed(heir, algorithm="ring")
    with pytest.raises(ValueError, match="has been freed"):
        summed(comm)
    assert summed(heir) == P * (P + 1) / 2
    heir.Free()
    unused = ours.Dup()
    unused.Free()
    with pytest.raises(ValueError, match="has been freed"):
        summed(unused)


@pytest.mark.skipif(P == 1, reason="nobody to wait for")
def test_a_non_blocking_call_waits_for_nobody(ours):
    """One rank starts it and then sends what the others wait for before they start it."""
    comm, out, token = ours.Dup(), np.zeros(1), np.zeros(1)
    if RANK:
        WORLD.Recv(token, 0)
    with pytest.warns(FallbackWarning, match="must not wait") if RANK == 0 else nothing():
        mpicoll.base.caller._WARNED.clear()
        request = comm.Iallreduce(np.ones(1), out, algorithm="ring")
    if RANK == 0:
        for rank in range(1, P):
            WORLD.Send(token, rank)
    request.Wait()
    assert out[0] == P
    assert comm.stats().calls == {NATIVE: 1}
    summed(comm, algorithm="ring")
    comm.Iallreduce(np.ones(1), out, algorithm="ring").Wait()
    assert comm.stats().calls == {NATIVE: 1, RING: 2}
    comm.Free()


def nothing():
    import contextlib

    return contextlib.nullcontext()


def test_idup_waits_for_nobody(ours):
    comm, request = ours.Idup()
    request.Wait()
    out = np.zeros(1)
    comm.Iallreduce(np.ones(1), out).Wait()
    assert out[0] == P
    comm.Free()


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="threads may not call MPI")
def test_threads_take_connections_at_the_same_time(ours):
    comms = [ours.Dup() for _ in range(4)]
    results = [0.0] * 4

    def work(k):
        results[k] = summed(comms[k], algorithm="ring")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads if RANK % 2 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [P * (P + 1) / 2] * 4
    for comm in comms:
        comm.Free()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files():
    """But for the reports of other ranks, which a thread of rank 0's tests opens now and then."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in names if not name.endswith(".jsonl"))


def test_2000_live_communicators_that_are_not_used(ours):
    """They cost what the library's do, and 20 KB at most, and no file."""
    many = 2000 if MPI.get_vendor()[0] == "Open MPI" else 500
    plain = [WORLD.Dup() for _ in range(50)]
    files, before = open_files(), resident()
    live = [ours.Dup() for _ in range(many)]
    assert (resident() - before) / many <= 20_000
    assert open_files() == files
    for comm in (*live, *plain):
        comm.Free()


def test_a_connected_communicator_keeps_no_file_open(ours):
    before = open_files()
    live = [connected(ours.Dup()) for _ in range(5)]
    assert open_files() == before
    for comm in live:
        comm.Free()


def test_explain_knows_before_the_first_call_that_there_is_no_engine(monkeypatch):
    monkeypatch.setattr(transport, "engine_problem", lambda: "of a test")
    sizes = [1 << k for k in range(3, 25, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fresh = Intracomm(WORLD.Dup())
        said = [fresh.explain("allreduce", nbytes) for nbytes in sizes]
        connected(fresh)
    assert [fresh.explain("allreduce", nbytes) for nbytes in sizes] == said
    fresh.Free()


def test_a_connection_with_a_topology_serves_no_other_communicator(ours, made):
    """What it makes of a communicator is of that one, which is freed."""
    for _ in range(2):
        comm = connected(ours.Create_cart([P]))
        _, unbind = comm._state.lanes.with_topology(comm).take(comm, comm._state.guard.pause)
        unbind()
        comm.Free()
    assert len(made) == 2


def test_devices_are_looked_for_once(ours, monkeypatch):
    """Where PyTorch is imported each communicator asked the library anew."""
    from mpicoll.base import libraries

    monkeypatch.setattr(driver, "is_wanted", lambda: True)
    monkeypatch.setattr(driver, "problem", lambda: "none here")
    looked = []
    monkeypatch.setattr(libraries, "loaded", lambda pattern: looked.append(pattern) or [])
    for _ in range(3):
        connected(ours.Dup()).Free()
    assert looked == []
