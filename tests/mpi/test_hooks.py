"""Hooks and traces see the calls that are made."""

import shutil
import tempfile

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import hooks
from mpicoll.comm import Intracomm
from mpicoll.runtime import state as module
from mpicoll.runtime import trace

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


def test_a_hook_sees_collective_algorithm_size_and_duration(events):
    comm = Intracomm(WORLD)
    comm.Allreduce(np.ones(100), np.zeros(100), algorithm="ring")
    comm.Bcast(np.zeros(4, "f4"), algorithm="native")
    facts = [(e.collective, e.algorithm, e.size, e.rank, e.nbytes, e.error) for e in events]
    assert facts == [
        ("allreduce", "ring", P, RANK, 800, None),
        ("bcast", "native", P, RANK, 16, None),
    ]
    assert all(event.seconds > 0 for event in events)


def test_a_hook_is_not_called_for_what_does_not_run(events):
    with pytest.raises(ValueError, match="unknown algorithm"):
        Intracomm(WORLD).Barrier(algorithm="wishful")
    assert events == []


def test_removing_what_is_not_there():
    with pytest.raises(ValueError, match="is no hook"):
        hooks.remove(print)


def test_a_trace_has_every_message(monkeypatch):
    folder = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    path = f"{folder}/trace"
    monkeypatch.setenv("MPICOLL_TRACE", path)
    handle = WORLD.Dup()
    comm = Intracomm(handle)
    comm.Allreduce(np.ones(4 * P), np.zeros(4 * P), algorithm="ring")
    comm.Barrier(algorithm="native")
    sub = comm.Split(RANK % 2)
    sub.Bcast(np.zeros(2), algorithm="linear")
    sub.Free()
    comm.Free()
    trace._FILES.pop(path).close()
    WORLD.Barrier()
    steps = trace.read(path)
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)
    of_ring = [step for step in steps if step["algorithm"] == "ring"]
    sends = sorted((s["rank"], s["peer"], s["bytes"]) for s in of_ring if s["step"] == "send")
    assert sends == sorted((r, (r + 1) % P, 32) for r in range(P) for _ in range(2 * (P - 1)))
    received = sorted((s["peer"], s["rank"], s["bytes"]) for s in of_ring if s["step"] == "recv")
    assert received == sends
    assert sum(s["step"] == "fold" for s in of_ring) == P * (P - 1)
    assert all(s["start"] <= s["end"] for s in steps)
    calls = sorted((s["comm"], s["call"], s["collective"]) for s in steps if s["step"] == "call")
    assert len({comm for comm, _, name in calls if name == "bcast"}) == min(P, 2)
    assert len({comm for comm, _, name in calls if name != "bcast"}) == 1
    assert [number for _, number, name in calls if name == "barrier"] == [2] * P
    assert not module._OPEN.keys() & {None}


def test_a_trace_changes_no_choice(monkeypatch):
    plain = Intracomm(WORLD.Dup())
    folder = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    monkeypatch.setenv("MPICOLL_TRACE", f"{folder}/trace")
    traced = Intracomm(WORLD.Dup())
    plain.Barrier()
    assert traced._state.table == plain._state.table
    assert traced._state.plans.piece == plain._state.plans.piece
    for comm in (plain, traced):
        comm.Free()
    if files := trace._FILES.pop(f"{folder}/trace", None):
        files.close()
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)
