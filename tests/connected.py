"""Communicators whose ranks have met, as they have after a few calls."""

from __future__ import annotations


def connected(comm):
    """mpicoll's communicator on a handle, on a connection that no other has had or gets."""
    from mpicoll import Intracomm
    from mpicoll.runtime import connections

    connections.drain()
    ours = Intracomm(comm)
    state = ours._connected()
    state.connection.alike = None
    return ours
