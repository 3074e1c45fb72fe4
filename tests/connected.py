"""Communicators whose ranks have met, as they have after a few calls."""

from __future__ import annotations

import pytest
from mpi4py import MPI


def connected(comm):
    """mpicoll's communicator on a handle, on a connection that no other has had or gets."""
    from mpicoll import Intracomm
    from mpicoll.runtime import connections

    connections.drain()
    ours = Intracomm(comm)
    state = ours._connected()
    state.connection.alike = None
    return ours


def on_fast_path():
    """For a fixture: one whose calls go the fast path when they are made again."""
    comm = connected(MPI.COMM_WORLD.Dup())
    if comm._state.fast_path.path is None:
        pytest.skip("without the compiled engine, or threads, every call goes the slow path")
    yield comm
    comm.Free()


def counted(comm, call, turns=3):
    """How many of some calls went the fast path, after one that did not."""
    path = comm._state.fast_path.path
    call(comm)
    before = sum(path.calls().values())
    for _ in range(turns):
        call(comm)
    return sum(path.calls().values()) - before
