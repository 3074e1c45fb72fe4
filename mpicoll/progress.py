"""Operations under way that nobody may be waiting for, and how they move on.

A non-blocking collective by an algorithm of mpicoll's own makes progress only while this process
is inside a call of mpicoll.  So every such call, whatever it is for, moves all of them on:
those that wait (:func:`until`, and the runner's own loop) poll, and those that block in the MPI
library let a thread poll :func:`meanwhile`.  Below ``MPI.THREAD_MULTIPLE`` that thread is not
allowed, and what is under way rests until the library's call returns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from mpi4py import MPI

__all__ = ["PATIENCE", "Operation", "add", "meanwhile", "poll", "under_way", "until"]

#: Polls without success before the processor is offered to others.
PATIENCE = 50
#: Seconds between two polls of the thread of :func:`meanwhile`.
_PAUSE = 1e-4


class Operation(Protocol):
    """What can be under way."""

    def advance(self) -> bool:
        """Make what progress is possible without waiting; True once it is over.

        Keeps its own failures for who waits for it.
        """


#: Oldest first.
under_way: dict[Operation, None] = {}
#: Held by who polls: not to be entered twice, be it by another thread or by a user's operator.
_LOCK = threading.Lock()


def add(operation: Operation) -> None:
    """Move an operation on in every poll until it is over; it is kept alive so long."""
    under_way[operation] = None


def poll() -> None:
    """Move everything on that is under way."""
    if not under_way or not _LOCK.acquire(blocking=False):
        return
    try:
        for operation in [*under_way]:
            if operation.advance():
                under_way.pop(operation, None)
    finally:
        _LOCK.release()


def until(done: Callable[[], object]) -> None:
    """Poll until ``done()``; lets signals in, and others use the processor."""
    idle = 0
    while not done():
        poll()
        idle += 1
        if idle > PATIENCE:
            os.sched_yield()


@contextmanager
def meanwhile() -> Iterator[None]:
    """Keep everything under way moving while the MPI library blocks in the ``with`` block."""
    if not under_way or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        yield
        return
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(_PAUSE):
            poll()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
