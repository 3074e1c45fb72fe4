"""Operations under way that nobody may be waiting for, and how they move on.

A non-blocking collective by an algorithm of mpicoll's own makes progress only while this process
is inside a call of mpicoll.  So every such call, whatever it is for, moves all of them on:
those that wait (:func:`until`, and the runner's own loop) poll, and those that block in the MPI
library let a thread poll :func:`meanwhile`.  Below ``MPI.THREAD_MULTIPLE`` that thread is not
allowed, and what is under way rests until the library's call returns.

With ``MPICOLL_PROGRESS=thread`` on rank 0 a thread polls all the time (:func:`start`), whatever the
program does.  It sleeps while nothing is under way.  User-defined operators and hooks may then be
called in that thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from mpi4py import MPI

#: Polls without success before the processor is offered to others.
PATIENCE = 50
#: Seconds between two polls of a thread.
_PAUSE = 1e-4


class Operation(Protocol):
    """What can be under way.

    Attributes:
        owner: whose it is.
    """

    @property
    def owner(self) -> object: ...

    def advance(self) -> None:
        """Make what progress is possible without waiting; :func:`remove` itself once it is over.

        Keeps its own failures for who waits for it.  Never called twice at the same time.
        """


#: Oldest first.
under_way: dict[Operation, None] = {}
#: Held by who polls: not to be entered twice, be it by another thread or by a user's operator.
#: Who holds it keeps every operation where it is.
lock = threading.Lock()


def add(operation: Operation) -> None:
    """Move an operation on in every poll until it is over; it is kept alive so long."""
    under_way[operation] = None
    for poller in [*pollers]:
        poller.wake()


def remove(operation: Operation) -> None:
    """The operation is over.

    To be called before anybody can see that it is: who waits may start it again at once.
    """
    under_way.pop(operation, None)


def poll() -> None:
    """Move everything on that is under way."""
    if not under_way or not lock.acquire(blocking=False):
        return
    try:
        for operation in [*under_way]:
            operation.advance()
    finally:
        lock.release()


def until(done: Callable[[], object], pause: Callable[[], object] = os.sched_yield) -> None:
    """Poll until ``done()``; lets signals in.

    Args:
        done: whether to return.
        pause: called while nothing moves.  It lets others use the processor, and may raise.
    """
    idle = 0
    while not done():
        poll()
        idle += 1
        if idle > PATIENCE:
            pause()


class _Poller:
    """A thread that polls; it sleeps while nothing is under way."""

    def __init__(self) -> None:
        self._work, self._end = threading.Event(), False
        pollers.append(self)
        self._thread = threading.Thread(target=self._run, name="mpicoll progress", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something is under way."""
        self._work.set()

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        self._end = True
        self._work.set()
        self._thread.join()
        pollers.remove(self)

    def _run(self) -> None:
        while not self._end:
            if not under_way:
                self._work.clear()
                if not under_way and not self._end:
                    self._work.wait()
                continue
            # Operations keep their failures: they are raised where somebody waits.
            with contextlib.suppress(BaseException):
                poll()
            time.sleep(_PAUSE)


#: The threads that poll.
pollers: list[_Poller] = []
#: The one that :func:`start` has made.
_thread: _Poller | None = None


def start() -> None:
    """Let a thread of this process poll from now on, until MPI is finalised.  Once is enough.

    Needs ``MPI.THREAD_MULTIPLE``.
    """
    global _thread
    if _thread is None:
        _thread = _Poller()


def stop() -> None:
    """End the thread, if there is one."""
    global _thread
    if _thread is not None:
        _thread.stop()
        _thread = None


def is_running() -> bool:
    """Whether the thread is there."""
    return _thread is not None


def meanwhile() -> contextlib.AbstractContextManager[None]:
    """Keep everything under way moving while the MPI library blocks in the ``with`` block."""
    if not under_way or is_running() or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return _NOTHING
    return _polling()


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _polling() -> Iterator[None]:
    poller = _Poller()
    try:
        yield
    finally:
        poller.stop()


def _in_child() -> None:
    """A forked child has no thread but its own; what was under way is its parent's."""
    global lock, _thread
    lock, _thread = threading.Lock(), None
    pollers.clear()


# Before the interpreter ends threads wherever they are, and before MPI is finalised.
atexit.register(stop)
os.register_at_fork(after_in_child=_in_child)
