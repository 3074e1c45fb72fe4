"""Who may call MPI: the process that initialised it, from its threads; and who has called."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache

from mpi4py import MPI

_LEVELS = {
    MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE",
    MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
    MPI.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED",
}

#: The process that a child was forked from; empty in a process of its own.
parent: list[int] = []


def is_forked() -> bool:
    """Whether this is a child forked after MPI was initialised, which must not call MPI."""
    return bool(parent)


def check() -> None:
    """Raise if this process or thread must not call MPI.

    Raises:
        RuntimeError: a child forked after MPI was initialised; or, below MPI_THREAD_MULTIPLE,
            another thread than the one that initialised MPI.
    """
    if parent:
        raise RuntimeError(
            f"this process was forked from process {parent[0]} after MPI was initialised, and "
            "must not call MPI; fork before, or start a new process (multiprocessing's 'spawn')"
        )
    level = _level()
    if level != MPI.THREAD_MULTIPLE and not MPI.Is_thread_main():
        raise RuntimeError(
            f"a call from another thread than the one that initialised MPI, which has "
            f"{_LEVELS[level]} alone; set mpi4py.rc.thread_level = 'multiple' before MPI is "
            "imported, or call from that thread"
        )


def stack_level() -> int:
    """The ``stacklevel`` of a warning that is given here: of the line that is the user's.

    That is the one that has called mpicoll, itself or by mpi4py's ``futures`` and ``util``.  It is
    looked for, since what is compiled has no frames.
    """
    found, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        found, frame = found + 1, frame.f_back
    return found


def warn_once(message: str, category: type[Warning], rank: int) -> None:
    """Warn the user's code, on rank 0 alone and once in this process."""
    if rank == 0 and message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, category, stacklevel=stack_level())


#: Packages whose lines are not the user's.
_OURS = ("mpicoll", "mpi4py")


#: What this process has been warned of.
_WARNED: set[str] = set()


@cache
def _level() -> int:
    return MPI.Query_thread()


def _in_child() -> None:
    parent[:] = [os.getppid()]


os.register_at_fork(after_in_child=_in_child)
