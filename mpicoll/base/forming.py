"""Communicators that a thread is setting up, so that another one can break that off.

A rank that dies meanwhile leaves the others in calls of the MPI library that only end where the
communicator is revoked, by each process that has it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

_lock = threading.Lock()
#: By thread.
_forming: dict[int, list[MPI.Intracomm]] = {}


@contextmanager
def forming(comm: MPI.Intracomm) -> Iterator[None]:
    """This thread sets up a communicator, or uses it for that, in the ``with`` block."""
    thread = threading.get_ident()
    with _lock:
        _forming.setdefault(thread, []).append(comm)
    try:
        yield
    finally:
        with _lock:
            _forming[thread].pop()
            if not _forming[thread]:
                del _forming[thread]


def revoke(thread: int) -> None:
    """Revoke all that a thread is setting up."""
    with _lock:
        for comm in _forming.get(thread, ()):
            if not comm.Is_revoked():
                comm.Revoke()
