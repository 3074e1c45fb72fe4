"""The communicator: mpi4py's, with collectives whose algorithm can be chosen.

``Intracomm(c)`` is collective over ``c`` and keeps its handle, so that point-to-point messages still
meet those of ``c``.  Messages of the collectives travel on a private communicator, made once for
each handle and kept there as an MPI attribute: two objects on one handle share it, and freeing the
handle frees it.  ``Dup, Dup_with_info, Clone, Split, Split_type, Create, Create_group,
Create_from_group`` and ``Shrink`` return this class, ready for use.  ``Idup, Idup_with_info``, copies
and unpickled objects get their private communicator in their first collective call.  ``Ishrink``,
topologies (``Create_cart``, ...) and intercommunicators stay mpi4py's classes.

A call goes one way: parse the buffers, check, choose the algorithm, plan, run.  Checks use this
rank's arguments alone.  A mistake that all ranks make raises on all of them; one that a single rank
makes raises there, while the others wait for it.  So let an uncaught exception end the job: start
scripts by ``python -m mpi4py script.py``, or run their main part within :func:`abort_on_exception`.
"""

from __future__ import annotations

import operator
import os
import sys
import traceback
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from mpicoll import algorithms, buffers, collectives, layout, ops, plan, runner, tuning
from mpicoll.buffers import Buffer, Unsupported
from mpicoll.collectives import Collective, Place
from mpicoll.registry import COMMUTATIVE
from mpicoll.tuning import NATIVE, Choice

__all__ = ["FallbackWarning", "Intracomm", "Stats", "abort_on_exception"]

#: What to do with a call that mpicoll cannot serve: raise, warn once, or just count it.
POLICIES = ("error", "warn", "silent")
#: Plans kept for each communicator.
PLANS = 256

#: MPI's operators by handle.
_OPERATORS = {
    getattr(MPI, name.upper()).handle: name
    for name in (
        "sum prod max min land lor lxor band bor bxor maxloc minloc".split()
    )
}

_C = TypeVar("_C", bound="Intracomm")


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
        sys.stdout.flush()
        sys.stderr.write("".join(f"{rank}{line}\n" for line in text.splitlines()))
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(status)


def _exit_status(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


# --- what belongs to a handle ----------------------------------------------------------------


class _Settings(NamedTuple):
    """What rank 0 read from its environment; the same on all ranks."""

    table: tuning.Table
    policy: str


class _Shared:
    """What mpicoll keeps for one communicator handle.

    Attributes:
        private: carries the collectives' messages.
        settings: equal on all ranks.
        calls, fallbacks: see :class:`Stats`.
        failure: the first error that left messages behind.
        closed: the handle was freed.
    """

    def __init__(self, private: MPI.Intracomm, settings: _Settings) -> None:
        self.private = private
        self.settings = settings
        self.size, self.rank = private.Get_size(), private.Get_rank()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self.failure: BaseException | None = None
        self.closed = False
        self._plans: OrderedDict[plan.Shape, plan.Plan] = OrderedDict()
        _OPEN[self] = None

    def check(self) -> None:
        """Raise if the communicator cannot be used any more."""
        if self.closed:
            raise ValueError("this communicator has been freed; build Intracomm on another one")
        if self.failure is not None:
            raise RuntimeError(
                f"this communicator cannot be used any more, because a collective on it failed: "
                f"{type(self.failure).__name__}: {self.failure}; build Intracomm on another one"
            ) from self.failure

    def run(
        self,
        shape: plan.Shape,
        send: np.ndarray | None,
        recv: np.ndarray | None,
        reduction: ops.Reduction | None,
    ) -> None:
        """Run a plan of this shape.

        While it runs, the plan is not in the cache, so that nobody else can start it.
        """
        planned = self._plans.pop(shape, None) or plan.build(shape)
        try:
            runner.run(planned, self.private, send, recv, reduction)
        except BaseException as error:
            # Messages may be under way that no later call must receive.
            self.failure = error
            raise
        self._plans[shape] = planned
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)

    def close(self) -> None:
        """Free everything, unless messages may still be under way."""
        if self.closed:
            return
        self.closed = True
        _OPEN.pop(self, None)
        self._plans.clear()
        if self.failure is None:
            self.private.Free()


#: All that is not closed, oldest first.
_OPEN: dict[_Shared, None] = {}


def _freed(comm: MPI.Comm, keyval: int, shared: _Shared) -> None:
    shared.close()


def _finalizing(comm: MPI.Comm, keyval: int, value: object) -> None:
    for shared in reversed([*_OPEN]):
        shared.close()


@cache
def _keyval() -> int:
    """The attribute that carries :class:`_Shared`.

    MPI_Finalize deletes the attributes of COMM_SELF first, while everything can still be freed.
    """
    MPI.COMM_SELF.Set_attr(MPI.Intracomm.Create_keyval(delete_fn=_finalizing), _OPEN)
    return MPI.Intracomm.Create_keyval(delete_fn=_freed)


def _attach(comm: MPI.Intracomm, settings: _Settings | None = None) -> _Shared:
    """What belongs to the communicator's handle, made now if it is not there yet (collective)."""
    shared: _Shared | None = comm.Get_attr(_keyval())
    if shared is None:
        # Unlike MPI_Comm_dup this copies no attributes, hints or topology of the user's.
        private = MPI.Intracomm(MPI.Intracomm.Split(comm, 0, comm.Get_rank()))
        private.Set_errhandler(MPI.ERRORS_RETURN)
        try:
            shared = _Shared(private, settings or _read_settings(private))
        except BaseException:
            private.Free()
            raise
        comm.Set_attr(_keyval(), shared)
    return shared


def _read_settings(private: MPI.Intracomm) -> _Settings:
    """Read the environment of rank 0.  Raises the same ValueError on all ranks."""
    found: _Settings | str = ""
    if private.Get_rank() == 0:
        try:
            found = _settings_from(os.environ)
        except ValueError as error:
            found = str(error)
    found = private.bcast(found)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _settings_from(environment: Mapping[str, str]) -> _Settings:
    policy = environment.get("MPICOLL_FALLBACK", "warn")
    if policy not in POLICIES:
        raise ValueError(f"MPICOLL_FALLBACK={policy!r} must be one of {', '.join(POLICIES)}")
    return _Settings(tuning.from_environment(environment), policy)


# --- operators -------------------------------------------------------------------------------


def _reduction(op: Any, buffer: Buffer) -> ops.Reduction:
    """The reduction that an MPI operator is on a buffer's elements."""
    if not isinstance(op, MPI.Op):
        raise TypeError(f"op must be an MPI operator such as MPI.SUM, not {type(op).__name__}")
    if op.is_predefined:
        if op.handle not in _OPERATORS:
            known = ", ".join(f"MPI.{name.upper()}" for name in _OPERATORS.values())
            raise ValueError(f"op=MPI.{op.__reduce__()} does not reduce: choose one of {known}")
        if buffer.dtype is None:
            raise Unsupported(f"reduces {buffer.name}, which NumPy has no dtype for")
        return ops.reduction(_OPERATORS[op.handle], buffer.dtype)
    datatype = buffer.datatype
    if datatype is None:
        raise TypeError(
            f"user-defined operators get MPI datatypes, and {buffer.name} has none in this "
            "library; convert the array"
        )

    def function(invec: np.ndarray, inoutvec: np.ndarray) -> None:
        op.Reduce_local([invec, invec.size, datatype], [inoutvec, inoutvec.size, datatype])

    dtype = buffer.dtype if buffer.dtype is not None else np.dtype(f"V{buffer.itemsize}")
    return ops.user(function, dtype, op.Is_commutative())


# --- the communicator ------------------------------------------------------------------------


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

    _state: _Shared | None = None

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
        self._state = _attach(self)

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
        comm._state = _attach(comm, self._state and self._state.settings)
        return comm

    def _child(self, comm: MPI.Comm) -> Intracomm:
        """An object of mpi4py's as one of this class, set up if this rank is in it."""
        child = Intracomm.__new__(Intracomm, comm)
        return self._adopt(child) if child else child

    def _shared(self) -> _Shared:
        """What belongs to the handle; collective where the handle is used for the first time."""
        if self._state is None:
            self._state = _attach(self)
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
        self._collective(
            "bcast", None, buf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        self._collective(
            "allgather", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters
        )

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
        shared = self._local()
        return Stats(dict(shared.calls), dict(shared.fallbacks))

    def explain(self, collective: str, nbytes: int = 0) -> str:
        """Which algorithm a call without ``algorithm=`` would run, and why.

        Args:
            collective: name as in ``mpicoll list``.
            nbytes: bytes of the whole vector (of all blocks, for all-gather, reduce-scatter, ...).

        Raises:
            ValueError: unknown collective, or a negative number of bytes.
        """
        shared = self._local()
        collectives.collective(collective)
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes} must not be negative")
        choice = tuning.choose(collective, shared.size, nbytes, shared.settings.table)
        parameters = "".join(f" {name}={value}" for name, value in choice.parameters)
        known = ", ".join((*algorithms.names(collective), NATIVE))
        return (
            f"{collective} of {nbytes} bytes on {shared.size} ranks: {choice.algorithm}{parameters} "
            f"({choice.source}); known are {known}"
        )

    def _local(self) -> _Shared:
        """What belongs to the handle, without setting it up (which is collective)."""
        shared = self._state or self.Get_attr(_keyval())
        if shared is None:
            raise ValueError("no collective has been called on this communicator yet")
        self._state = shared
        shared.check()
        return shared

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
        shared = self._shared()
        definition = collectives.collective(name)
        forced = _forced(definition, algorithm, parameters)
        nblocks = shared.size if definition.block_per_rank else 1
        place = Place(shared.rank, shared.size, _root(root, shared.size), nblocks)
        try:
            call = _call(definition, place, sendbuf, recvbuf, op)
        except Unsupported as reason:
            if forced is None:
                self._fall_back(definition, f"{reason}, so {NATIVE} serves")
            elif forced.algorithm != NATIVE:
                raise Unsupported(
                    f"{definition.method} by algorithm={forced.algorithm!r}: {reason}; pass a "
                    f"contiguous array of a predefined datatype, or algorithm={NATIVE!r}"
                ) from None
            self._native(definition, sendbuf, recvbuf, op, place.root)
            return
        if forced is None:
            choice, refused = _choose(call, shared.settings.table)
            if refused:
                self._fall_back(definition, refused)
        else:
            choice = forced
            obstacle = _obstacle(call, choice.algorithm)
            if obstacle:
                raise TypeError(f"{definition.method} by algorithm={algorithm!r}: {obstacle}")
        if choice.algorithm == NATIVE:
            self._native(definition, *_messages(call), op, place.root)
            return
        try:
            shared.run(
                _shape(call, choice), _memory(call.send), _memory(call.recv), call.reduction
            )
        except MPI.Exception as error:
            self.Call_errhandler(error.Get_error_code())
            raise
        shared.calls[name, choice.algorithm] += 1

    def _native(
        self, definition: Collective, sendbuf: Any, recvbuf: Any, op: Any, root: int
    ) -> None:
        """The MPI library's own collective."""
        arguments = {"barrier": (), "bcast": (recvbuf,)}.get(definition.name, (sendbuf, recvbuf))
        arguments += (op,) if definition.reduces else ()
        arguments += (root,) if definition.rooted else ()
        getattr(MPI.Intracomm, definition.method)(self, *arguments)
        self._shared().calls[definition.name, NATIVE] += 1

    def _fall_back(self, definition: Collective, reason: str) -> None:
        """Count, and report as the policy says, that what was asked for cannot serve."""
        shared = self._shared()
        message = f"{definition.method}: {reason}"
        if shared.settings.policy == "error":
            raise Unsupported(f"{message}, which MPICOLL_FALLBACK=error forbids")
        shared.fallbacks[definition.name, reason] += 1
        if shared.settings.policy == "warn" and shared.rank == 0 and message not in _WARNED:
            _WARNED.add(message)
            # The frames between: this one, _collective, the collective's own method.
            warnings.warn(
                f"{message} (said once; MPICOLL_FALLBACK=silent or error changes that)",
                FallbackWarning,
                stacklevel=4,
            )


#: Fallbacks that this process has warned of.
_WARNED: set[str] = set()


@dataclass(frozen=True)
class _Call:
    """One rank's call, parsed and checked."""

    definition: Collective
    place: Place
    send: Buffer | None
    recv: Buffer | None
    in_place: bool
    reduction: ops.Reduction | None

    @property
    def buffer(self) -> Buffer | None:
        """A buffer that tells type and count; None for a barrier."""
        return self.send if self.send is not None else self.recv

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector; equal on all ranks."""
        return self.buffer.block_bytes * self.place.nblocks if self.buffer is not None else 0


def _call(definition: Collective, place: Place, sendbuf: Any, recvbuf: Any, op: Any) -> _Call:
    """Parse and check the arguments of a collective.  Raises as :func:`mpicoll.buffers.operands`."""
    found = buffers.operands(definition, place, sendbuf, recvbuf)
    call = _Call(definition, place, found.send, found.recv, found.in_place, None)
    if definition.reduces and call.buffer is not None:
        return replace(call, reduction=_reduction(op, call.buffer))
    return call


def _root(root: Any, size: int) -> int:
    try:
        number = operator.index(root)
    except TypeError:
        raise TypeError(f"root={root!r} must be an integer") from None
    if not 0 <= number < size:
        raise ValueError(f"root={number} must be a rank of the communicator, 0 to {size - 1}")
    return number


def _forced(
    definition: Collective, algorithm: str | None, parameters: Mapping[str, int]
) -> Choice | None:
    """The algorithm that the caller names, with all its parameters."""
    if algorithm is None:
        if parameters:
            raise TypeError(
                f"{definition.method}: {next(iter(parameters))}= is a parameter of an algorithm; "
                f"name it too by algorithm="
            )
        return None
    if not isinstance(algorithm, str):
        raise TypeError(f"{definition.method}: algorithm={algorithm!r} must be a name")
    return Choice(algorithm, tuning.check(definition.name, algorithm, parameters), "argument")


def _obstacle(call: _Call, algorithm: str) -> str:
    """Why an algorithm cannot serve a call, "" if it can."""
    reduction, buffer = call.reduction, call.buffer
    if reduction is None or buffer is None:
        return ""
    if algorithm == NATIVE:
        missing = buffer.datatype is None
        return f"this MPI library has no datatype for {buffer.name}" if missing else ""
    needs = algorithms.find(call.definition.name, algorithm).needs
    if COMMUTATIVE in needs and not reduction.commutative:
        return f"{algorithm} needs a commutative operator, and this one is not"
    return ""


def _choose(call: _Call, table: tuning.Table) -> tuple[Choice, str]:
    """The algorithm of a call that names none, and why it is not the one the environment names."""
    facts = call.definition.name, call.place.size, call.nbytes, table
    wanted = tuning.choose(*facts)
    choice = tuning.choose(*facts, serves=lambda algorithm: not _obstacle(call, algorithm))
    refused = ""
    if choice != wanted and wanted.source != tuning.BUILTIN_SOURCE:
        obstacle = _obstacle(call, wanted.algorithm)
        refused = f"{wanted.source}: {obstacle}, so {choice.algorithm} serves"
    return choice, refused


def _messages(call: _Call) -> tuple[Any, Any]:
    """Send and receive buffer as mpi4py wants them."""
    reduces = call.definition.reduces
    send = None if call.send is None else call.send.message(reduces)
    recv = None if call.recv is None else call.recv.message(reduces)
    if not call.in_place or call.definition.name == "bcast":
        return send, recv
    return (send, MPI.IN_PLACE) if call.definition.name == "scatter" else (MPI.IN_PLACE, recv)


def _memory(buffer: Buffer | None) -> buffers.Bytes | None:
    return None if buffer is None else buffer.memory


def _shape(call: _Call, choice: Choice) -> plan.Shape:
    """What to plan.  Reductions are cut in elements, data movement in bytes."""
    buffer, place, reduction = call.buffer, call.place, call.reduction
    length, itemsize, wide = 0, 1, 1
    if buffer is not None and reduction is not None:
        length, itemsize, wide = buffer.count, buffer.itemsize, reduction.wide.itemsize
    elif buffer is not None:
        length = buffer.block_bytes
    blocks = algorithms.find(call.definition.name, choice.algorithm).blocks(place.size)
    cut = _even(length * place.nblocks, blocks)
    return plan.Shape(
        collective=call.definition.name,
        algorithm=choice.algorithm,
        parameters=choice.parameters,
        rank=place.rank,
        size=place.size,
        root=place.root,
        in_place=call.in_place,
        itemsize=itemsize,
        wide=wide,
        input=cut,
        output=cut,
    )


_even = lru_cache(layout.even)
