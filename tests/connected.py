"""Communicators whose ranks have met, as they have after a few calls."""

from __future__ import annotations


def connected(comm, kind=None):
    """mpicoll's communicator on a handle."""
    from mpicoll import Intracomm

    ours = (kind or Intracomm)(comm)
    ours._connected()
    return ours
