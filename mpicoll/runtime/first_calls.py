"""The calls of a communicator before its messages have a way of their own.

They are the MPI library's, of which it takes ten: to let the ranks meet costs as much as a hundred
short calls gain, so that a communicator that is made for a few is not worth more.  Calls count, not
bytes: the ranks must agree without a message, and may spell their buffers in different ways.  What
one communicator has learned of such calls serves all others of as many ranks in this process.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import hooks, tuning
from mpicoll.base import caller
from mpicoll.engine import progress, transport
from mpicoll.runtime import handles
from mpicoll.runtime.family import Family
from mpicoll.runtime.fast_path import Served, pass_on
from mpicoll.schedule.methods import METHODS, STARTED
from mpicoll.tuning import NATIVE

#: Calls that name no algorithm and go to the MPI library, where a communicator comes from another.
FEW = 10
#: Classes of errors that a rank finds before it takes part in a call.
_IN_ARGUMENTS = frozenset(
    {MPI.ERR_BUFFER, MPI.ERR_COUNT, MPI.ERR_TYPE, MPI.ERR_OP, MPI.ERR_ROOT, MPI.ERR_ARG}
)
_NUMBERED = {method.number: method for method in METHODS.values()}
#: What the MPI library always makes unless an algorithm is asked for, so that it is not counted.
_ALWAYS_PASSED = METHODS["Alltoallw"].number
#: So many of those go to mpi4py's method at once.  To look whether a call is known reads all its
#: datatypes, and to learn one costs as much as a hundred calls.
UNSEEN = 32

_ARRAY = np.ndarray
_ALLTOALLW: Any = MPI.Intracomm.Alltoallw
_IN_PLACE, _NULL = MPI.IN_PLACE, MPI.DATATYPE_NULL


class FirstCalls:
    """The first calls of a communicator: all that is kept of one that has made no others.

    Args:
        family: what it has in common with those that it comes from.
        hints: what it prefers; equal on all ranks.
        left: calls that name no algorithm and may go to the MPI library.

    Attributes:
        family, hints: the same.
        left: the same, now.  Equal on all ranks: only calls count that all of them make.
    """

    def __init__(self, family: Family, hints: tuning.Table | None = None, left: int = FEW) -> None:
        self.family, self.hints, self.left = family, hints, left
        self._closed, self._known, self._unseen = False, None, UNSEEN
        self._served: dict[int, int] | None = None

    # --- in place of a FastPath of the engine's ---

    def serve(
        self,
        comm: MPI.Intracomm,
        method: int,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | None,
        root: int,
        counts: Any,
        algorithm: str | None,
    ) -> bool:
        """Make a blocking call that is known; False if it has to go the slow path."""
        passes = algorithm is None and self._always_passes(method)
        if algorithm is None and not passes and self.left <= 0:
            return False
        if not self._is_open(comm):
            return False
        if passes and self._unseen > 0 and self._pass_unseen(comm, sendbuf, recvbuf):
            return True
        known = self._path(comm)
        if known is None:
            return False
        try:
            served: bool = known.serve(comm, method, sendbuf, recvbuf, op, root, counts, algorithm)
        except MPI.Exception as error:
            self.count(method, error)
            raise
        if served:
            self.count(method)
            self._has_served(method)
        return served

    def _pass_unseen(self, comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any) -> bool:
        """Make a call by mpi4py's method, which costs less than to look whether it is known.

        Whether this is done is up to each rank: it takes part in the same collective.
        """
        if hooks.installed or caller.parent or not _are_plain(sendbuf, recvbuf):
            return False
        try:
            if progress.under_way:
                with progress.meanwhile():
                    _ALLTOALLW(comm, sendbuf, recvbuf)
            else:
                _ALLTOALLW(comm, sendbuf, recvbuf)
        except (TypeError, ValueError, LookupError, BufferError):
            return False  # the slow path says what is wrong
        self._unseen -= 1
        return True

    def may_pass(self, method: int) -> bool:
        """Whether a blocking call that names no algorithm goes to the MPI library."""
        return self.left > 0 or self._always_passes(method)

    def _always_passes(self, method: int) -> bool:
        return method == _ALWAYS_PASSED and self.family.is_plain and not self.hints

    def start(self, comm: MPI.Intracomm, method: int, *arguments: Any) -> Any:
        """Start a call that is known; None if it has to go the slow path."""
        if arguments[-1] is None and not (self.family.is_plain and not self.hints):
            return None  # what is asked for and cannot serve is counted there
        known = self._path(comm) if self._is_open(comm) else None
        request = None if known is None else known.start(comm, method, *arguments)
        if request is not None:
            self._has_served(method)
        return request

    def _is_open(self, comm: MPI.Intracomm) -> bool:
        """Whether calls may go here."""
        if self._closed or not comm:
            return False
        # Another object on the same handle may have made more of it.
        found = handles.find(comm)
        return found is None or found.fast_path is self

    def _path(self, comm: MPI.Intracomm) -> Any:
        """What knows calls; None without the engine."""
        if self._known is None:
            self._known = _known(comm.Get_rank(), comm.Get_size())
        return self._known

    def _has_served(self, method: int) -> None:
        if self._served is None:
            self._served = {}
        self._served[method] = self._served.get(method, 0) + 1

    # --- in place of FastCalls ---

    @property
    def path(self) -> FirstCalls:
        """What makes known calls again."""
        return self

    def count(self, method: int, error: MPI.Exception | None = None) -> None:
        """The MPI library has served a blocking call, or has failed in it."""
        if error is not None and error.Get_error_class() in _IN_ARGUMENTS:
            return
        if not self._always_passes(method):
            self.left -= 1

    def pass_on(self, served: Served) -> None:
        """Let calls of the same arguments, buffers apart, be made by a function of the library."""
        if self._known is not None and served.is_repeatable():
            pass_on(self._known, served)

    def calls(self) -> dict[tuple[str, str], int]:
        """Number of calls that were known, by (collective, algorithm)."""
        counts: Counter[tuple[str, str]] = Counter()
        if self._unseen < UNSEEN:
            counts[_NUMBERED[_ALWAYS_PASSED].collective, NATIVE] = UNSEEN - self._unseen
        for method, count in (self._served or {}).items():
            counts[_NUMBERED[method % STARTED].collective, NATIVE] += count
        return counts

    def forget(self) -> None:
        """Nothing: what a call needs to be known is the same on all communicators."""

    def close(self) -> None:
        """Let every call go the slow path from now on."""
        self._closed = True


def _are_plain(sendbuf: Any, recvbuf: Any) -> bool:
    """Whether messages of Alltoallw mean to mpi4py what they mean here, in memory of the host."""
    if sendbuf is _IN_PLACE:
        return _is_plain(recvbuf)
    if not (_is_plain(sendbuf) and _is_plain(recvbuf)):
        return False
    sent, received = sendbuf[0], recvbuf[0]
    if sent is not received and sent.base is None and received.base is None:
        return True  # each has memory of its own
    return not np.may_share_memory(sent, received)


def _is_plain(message: Any) -> bool:
    kind = type(message)
    if not ((kind is list or kind is tuple) and message and type(message[0]) is _ARRAY):
        return False
    kind = type(message[-1])
    # Not all MPI libraries take the null datatype.
    return (kind is list or kind is tuple) and _NULL not in message[-1]


@cache
def _known(rank: int, size: int) -> Any:
    """What knows the calls of all communicators in which this process has a rank."""
    if transport.engine_problem() or MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        return None
    return transport.FastPath(
        MPI.COMM_SELF,
        os.sched_yield,
        progress.poll,
        progress.under_way,
        hooks.installed,
        caller.parent,
        lambda error, *kept: error,
    )
