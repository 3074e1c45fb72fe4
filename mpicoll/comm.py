"""The communicator: mpi4py's, with collectives whose algorithm can be chosen.

``Intracomm(c)`` is collective over ``c`` and keeps its handle, so that point-to-point messages
still meet those of ``c``.  Messages of the collectives travel on a private communicator, made once
for each handle (see :mod:`mpicoll.state`): two objects on one handle share it, and freeing the
handle frees it.  ``Dup, Dup_with_info, Clone, Split, Split_type, Create, Create_group,
Create_from_group`` and ``Shrink`` return this class, ready for use.  What ``Idup`` and
``Idup_with_info`` return is made ready by its first collective call, as are copies and unpickled
objects.  ``Ishrink``, topologies (``Create_cart``, ...) and intercommunicators stay mpi4py's.

A call goes one way: parse the buffers, check, choose the algorithm, plan, run.  Checks use this
rank's arguments alone.  A mistake that all ranks make raises on all of them; one that a single rank
makes raises there, while the others wait for it.  So let an uncaught exception end the job: start
scripts by ``python -m mpi4py script.py``, or run their main part within :func:`abort_on_exception`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from mpi4py import MPI

from mpicoll import algorithms, collectives, tuning
from mpicoll.buffers import Unsupported
from mpicoll.call import asked_for, parse, place_of
from mpicoll.collectives import Collective
from mpicoll.state import State, attach, find
from mpicoll.tuning import NATIVE

__all__ = ["FallbackWarning", "Intracomm", "Stats", "abort_on_exception", "end_job"]

#: Seconds between an error's message and the end of the job: a launcher that is told to end it may
#: drop what it has not yet read from its processes.
GRACE = 0.3

_C = TypeVar("_C", bound="Intracomm")

#: Fallbacks that this process has warned of.
_WARNED: set[str] = set()


class FallbackWarning(RuntimeWarning):
    """The MPI library's own collective ran because mpicoll cannot serve the call."""


@dataclass(frozen=True)
class Stats:
    """What ran on a communicator, on this rank.

    Attributes:
        calls: number of calls by (collective, algorithm).
        fallbacks: those of them that the MPI library served only because mpicoll could not, by
            (collective, reason).
    """

    calls: dict[tuple[str, str], int]
    fallbacks: dict[tuple[str, str], int]


@contextmanager
def abort_on_exception() -> Iterator[None]:
    """Let an exception end the whole job, instead of leaving the other ranks waiting for this one.

    Prints the traceback with the rank before it and calls ``MPI_Abort``.  ``SystemExit`` with a
    status other than 0 ends the job with that status.  With one rank it does nothing.  To be used
    as ``with abort_on_exception(): main()``, or as a decorator.
    """
    try:
        yield
    except BaseException as error:
        status = _exit_status(error)
        if status == 0 or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
            raise
        rank = f"[rank {MPI.COMM_WORLD.Get_rank()}] "
        if isinstance(error, SystemExit):
            text = f"exit with status {error.code}"
        else:
            text = "".join(traceback.format_exception(error)).rstrip()
        sys.stderr.write("".join(f"{rank}{line}\n" for line in text.splitlines()))
        end_job(status)


def end_job(status: int) -> NoReturn:
    """End all ranks at once, with an exit status; what was written before is seen."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(GRACE)
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)  # MPICH's MPI_Abort may return before the launcher ends this process


def _exit_status(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


class Intracomm(MPI.Intracomm):
    """An intracommunicator whose collectives run by an algorithm of one's choice.

    Args:
        comm: an intracommunicator.  Collective over it: all its ranks build theirs.

    Raises:
        TypeError: not an intracommunicator.
        ValueError: the null communicator; or the environment of rank 0 has a setting
            (``MPICOLL_ALLREDUCE=ring``, ``MPICOLL_FALLBACK=warn``) that is not understood.

    The collectives take what mpi4py's take, and by keyword ``algorithm=`` (one of
    ``mpicoll list``, or ``"native"``: the MPI library's own) and that algorithm's parameters.  All
    ranks must pass the same.  Without ``algorithm`` the environment of rank 0 decides, else a
    table, by the number of bytes.  What mpicoll cannot serve (derived datatypes, ``MPI.BOTTOM``)
    goes to the MPI library's own collective, under the policy ``MPICOLL_FALLBACK``: ``error``,
    ``warn`` (once, the default) or ``silent``; with ``algorithm`` given it is an error.

    They raise TypeError, ValueError and BufferError for arguments that do not fit (see
    :mod:`mpicoll.buffers`), and MPI.Exception, after a call of the communicator's error handler,
    for what MPI reports.  After a failure while messages were under way, every later call raises
    RuntimeError.
    """

    _state: State | None = None

    def __new__(cls: type[_C], comm: MPI.Comm | None = None) -> _C:
        if isinstance(comm, MPI.Intercomm):
            raise TypeError(
                "mpicoll.Intracomm cannot be built on an intercommunicator; use its Merge(), or "
                "mpi4py's own collectives"
            )
        if comm is not None and not isinstance(comm, MPI.Comm):
            raise TypeError(f"expected an mpi4py communicator, not {type(comm).__name__}")
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Intracomm) -> None:
        if comm is None:
            raise TypeError("expected an mpi4py communicator, not None")
        if not comm:
            raise ValueError("the communicator is MPI.COMM_NULL; pass one that has this rank in it")
        self._state = attach(self)

    # --- communicators ---

    def Dup(self: _C, info: MPI.Info | None = None) -> _C:
        """Duplicate the communicator."""
        return self._adopt(super().Dup(info))

    def Dup_with_info(self: _C, info: MPI.Info) -> _C:
        """Duplicate the communicator with hints."""
        return self._adopt(super().Dup_with_info(info))

    def Clone(self: _C) -> _C:
        """Clone the communicator."""
        return self._adopt(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        """Split the communicator by color and key."""
        return self._child(super().Split(color, key))

    def Split_type(
        self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> Intracomm:
        """Split the communicator by split type."""
        return self._child(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Intracomm:
        """Create a communicator of a group."""
        return self._child(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Intracomm:
        """Create a communicator of a group; collective over the group alone."""
        return self._child(super().Create_group(group, tag))

    @classmethod
    def Create_from_group(
        cls,
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> Intracomm:
        """Create a communicator of a group, of a session for example."""
        return Intracomm(super().Create_from_group(group, stringtag, info, errhandler))

    def Shrink(self) -> Intracomm:
        """Create a communicator without the processes that have failed."""
        return self._child(super().Shrink())

    def _adopt(self, comm: _C) -> _C:
        """Set up an object of this class that mpi4py has made."""
        comm._state = attach(comm, self._state.settings if self._state is not None else None)
        return comm

    def _child(self, comm: MPI.Comm) -> Intracomm:
        """An object of mpi4py's as one of this class, set up if this rank is in it."""
        child = Intracomm.__new__(Intracomm, comm)
        return self._adopt(child) if child else child

    def _ready(self) -> State:
        """What belongs to the handle; collective where the handle is used for the first time."""
        if self._state is None:
            self._state = attach(self)
        self._state.check()
        return self._state

    # --- collectives ---

    def Barrier(self, *, algorithm: str | None = None, **parameters: int) -> None:
        """Wait until all ranks have entered."""
        self._collective("barrier", None, None, algorithm=algorithm, parameters=parameters)

    def Bcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, **parameters: int
    ) -> None:
        """Copy the root's buffer to all ranks."""
        self._collective("bcast", None, buf, root=root, algorithm=algorithm, parameters=parameters)

    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: int,
    ) -> None:
        """Reduce over all ranks, to the root."""
        self._collective(
            "reduce", sendbuf, recvbuf, op=op, root=root, algorithm=algorithm, parameters=parameters
        )

    def Allreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: int,
    ) -> None:
        """Reduce over all ranks, to all of them."""
        self._collective(
            "allreduce", sendbuf, recvbuf, op=op, algorithm=algorithm, parameters=parameters
        )

    def Reduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: int,
    ) -> None:
        """Reduce over all ranks; rank i gets block i of the result, all blocks equally long."""
        self._collective(
            "reduce_scatter", sendbuf, recvbuf, op=op, algorithm=algorithm, parameters=parameters
        )

    def Allgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: int
    ) -> None:
        """Collect a block of every rank, on all of them."""
        self._collective("allgather", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters)

    def Gather(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: int,
    ) -> None:
        """Collect a block of every rank, at the root."""
        self._collective(
            "gather", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

    def Scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: int,
    ) -> None:
        """Give every rank its block of the root's buffer."""
        self._collective(
            "scatter", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

    # --- what ran and would run ---

    def stats(self) -> Stats:
        """What ran on this rank: this communicator's collectives by algorithm, and fallbacks."""
        state = self._local()
        return Stats(dict(state.calls), dict(state.fallbacks))

    def explain(self, collective: str, nbytes: int = 0) -> str:
        """Which algorithm a call without ``algorithm=`` would run, and why.

        Args:
            collective: name as in ``mpicoll list``.
            nbytes: bytes of the whole vector (of all blocks, for all-gather, reduce-scatter, ...).

        Raises:
            ValueError: unknown collective, or a negative number of bytes.
        """
        state = self._local()
        collectives.collective(collective)
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes} must not be negative")
        choice = tuning.choose(collective, state.size, nbytes, state.settings.table)
        parameters = "".join(f" {name}={value}" for name, value in choice.parameters)
        known = ", ".join((*algorithms.names(collective), NATIVE))
        return (
            f"{collective} of {nbytes} bytes on {state.size} ranks: {choice.algorithm}{parameters} "
            f"({choice.source}); known are {known}"
        )

    def _local(self) -> State:
        """What belongs to the handle, without setting it up (which is collective)."""
        state = self._state or find(self)
        if state is None:
            raise ValueError("no collective has been called on this communicator yet")
        self._state = state
        state.check()
        return state

    # --- one way for all ---

    def _collective(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        *,
        op: Any = None,
        root: Any = 0,
        algorithm: str | None,
        parameters: Mapping[str, int],
    ) -> None:
        """Parse, check, choose, plan, run."""
        state = self._ready()
        definition = collectives.collective(name)
        asked = asked_for(definition, algorithm, parameters)
        place = place_of(definition, state.rank, state.size, root)
        try:
            call = parse(definition, place, sendbuf, recvbuf, op)
        except Unsupported as reason:
            if asked is None:
                self._fall_back(definition, f"{reason}, so {NATIVE} serves")
            elif asked.algorithm != NATIVE:
                raise Unsupported(
                    f"{definition.method} by algorithm={algorithm!r}: {reason}; pass a contiguous "
                    f"array of a predefined datatype, or algorithm={NATIVE!r}"
                ) from None
            self._native(definition, sendbuf, recvbuf, op, place.root)
            return
        if asked is None:
            choice, refused = call.choose(state.settings.table)
            if refused:
                self._fall_back(definition, refused)
        else:
            choice = asked
            obstacle = call.obstacle(choice.algorithm)
            if obstacle:
                raise TypeError(f"{definition.method} by algorithm={algorithm!r}: {obstacle}")
        if choice.algorithm == NATIVE:
            self._native(definition, *call.messages(), op, place.root)
            return
        try:
            state.run(call.shape(choice), *call.memory(), call.reduction)
        except MPI.Exception as error:
            self.Call_errhandler(error.Get_error_code())
            raise
        state.calls[name, choice.algorithm] += 1

    def _native(
        self, definition: Collective, sendbuf: Any, recvbuf: Any, op: Any, root: int
    ) -> None:
        """The MPI library's own collective."""
        arguments: tuple[Any, ...] = (sendbuf, recvbuf)
        if definition.name in ("barrier", "bcast"):
            arguments = (recvbuf,) if definition.name == "bcast" else ()
        arguments += (op,) if definition.reduces else ()
        arguments += (root,) if definition.rooted else ()
        getattr(MPI.Intracomm, definition.method)(self, *arguments)
        self._ready().calls[definition.name, NATIVE] += 1

    def _fall_back(self, definition: Collective, reason: str) -> None:
        """Count, and report as the policy says, that what was asked for cannot serve."""
        state = self._ready()
        message = f"{definition.method}: {reason}"
        if state.settings.policy == "error":
            raise Unsupported(f"{message}, which MPICOLL_FALLBACK=error forbids")
        state.fallbacks[definition.name, reason] += 1
        if state.settings.policy == "warn" and state.rank == 0 and message not in _WARNED:
            _WARNED.add(message)
            # The frames between: this one, _collective, the collective's own method.
            warnings.warn(
                f"{message} (said once; MPICOLL_FALLBACK=silent or error changes that)",
                FallbackWarning,
                stacklevel=4,
            )
