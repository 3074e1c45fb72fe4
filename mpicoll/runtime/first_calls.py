"""The calls of a communicator before its messages have a way of their own.

They are the MPI library's, of which it takes two: a communicator that is made for a call or two is
not worth more.  What one communicator has learned of such calls serves all others of as many ranks
in this process.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from mpi4py import MPI

from mpicoll import hooks, tuning
from mpicoll.base import caller
from mpicoll.engine import progress, transport
from mpicoll.runtime import handles
from mpicoll.runtime.family import Family
from mpicoll.runtime.fast_path import key_of
from mpicoll.schedule.methods import METHODS, Method
from mpicoll.tuning import NATIVE

#: Calls that name no algorithm and go to the MPI library, where a communicator comes from another.
FEW = 2
#: Classes of errors that a rank finds before it takes part in a call.
_IN_ARGUMENTS = frozenset(
    {MPI.ERR_BUFFER, MPI.ERR_COUNT, MPI.ERR_TYPE, MPI.ERR_OP, MPI.ERR_ROOT, MPI.ERR_ARG}
)
_NUMBERED = {method.fast: method for method in METHODS.values() if method.fast is not None}


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

    __slots__ = ("_closed", "_known", "_served", "family", "hints", "left")

    def __init__(self, family: Family, hints: tuning.Table | None = None, left: int = FEW) -> None:
        self.family, self.hints, self.left = family, hints, left
        self._closed, self._known = False, None
        self._served: dict[int | str, int] | None = None

    # --- in place of a FastPath of the engine's; the last argument is the algorithm ---

    def serve(self, comm: MPI.Intracomm, method: int, *arguments: Any) -> bool:
        """Make a call that is known; False if it has to go the slow path."""
        known = self._path(comm, arguments[-1])
        return known is not None and self._make(known.serve, comm, method, arguments)

    def serve_vectors(self, comm: MPI.Intracomm, method: str, *arguments: Any) -> bool:
        """The same for the calls whose blocks may differ."""
        known = self._path(comm, arguments[-1])
        return known is not None and self._make(known.serve_vectors, comm, method, arguments)

    def _path(self, comm: MPI.Intracomm, algorithm: str | None) -> Any:
        """What knows calls; None if they may not go here."""
        if self._closed or not comm or (self.left <= 0 and algorithm is None):
            return None
        # Another object on the same handle may have made more of it.
        found = handles.find(comm)
        if found is not None and found.fast_path is not self:
            return None
        if self._known is None:
            self._known = _known(comm.Get_rank(), comm.Get_size())
        return self._known

    def _make(
        self,
        serve: Callable[..., bool],
        comm: MPI.Intracomm,
        method: int | str,
        arguments: tuple[Any, ...],
    ) -> bool:
        try:
            served = serve(comm, method, *arguments)
        except MPI.Exception as error:
            self.count(error)
            raise
        if served:
            self.left -= 1
            if self._served is None:
                self._served = {method: 1}
            else:
                self._served[method] = self._served.get(method, 0) + 1
        return served

    # --- in place of FastCalls ---

    @property
    def path(self) -> FirstCalls:
        """What makes known calls again."""
        return self

    def count(self, error: MPI.Exception | None = None) -> None:
        """The MPI library has served a blocking call, or has failed in it."""
        if error is None or error.Get_error_class() not in _IN_ARGUMENTS:
            self.left -= 1

    def pass_on(
        self,
        method: Method,
        arguments: tuple[Any, ...],
        choice: tuning.Choice,
        function: Callable[..., Any],
    ) -> None:
        """Let calls of the same arguments, buffers apart, be made by a function of the library."""
        op = arguments[2]
        if self._known is not None and (op is None or op.is_predefined):
            known = tuning.named(choice), (method.collective, NATIVE), function, method.arguments
            self._known.pass_on(key_of(method), arguments, *known)

    def calls(self) -> dict[tuple[str, str], int]:
        """Number of calls that were known, by (collective, algorithm)."""
        counts: Counter[tuple[str, str]] = Counter()
        for method, count in (self._served or {}).items():
            known = METHODS[method] if isinstance(method, str) else _NUMBERED[method]
            counts[known.collective, NATIVE] += count
        return counts

    def forget(self) -> None:
        """Nothing: what a call needs to be known is the same on all communicators."""

    def close(self) -> None:
        """Let every call go the slow path from now on."""
        self._closed = True


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
        lambda *failure: None,
    )
