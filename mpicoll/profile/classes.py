"""Communicators that record: mpi4py's, of a class of their own, and mpicoll's.

`Classes.install` puts them in the place of those that ``mpi4py.MPI`` offers, before a program runs.
What they make (``Dup``, ``Split``, ``Create_cart``, ...) records too.  Calls of C code, and on an
``MPI.Intracomm(comm)`` that a program makes itself, go past them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.profile import requests
from mpicoll.profile.calls import COLLECTIVES, MESSAGES, PICKLED, Counting, Recorded, payload
from mpicoll.profile.recorder import Channel, Recorder, Row, clock
from mpicoll.profile.requests import Pending

#: Methods that make a communicator.
_MAKERS = (
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Sub"),
    *("Create_intercomm", "Merge", "Shrink"),
)
_PLAIN = (MPI.Intracomm, MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm, MPI.Intercomm)
_REQUESTS = (MPI.Request, MPI.Prequest)

Function = Callable[..., Any]


def _depth() -> int:
    """Frames between a caller and a function here that asks for it: compiled, it has none."""
    return int(sys._getframe().f_code.co_name == "_depth")


_DEPTH = _depth()


class Patches:
    """Attributes that are put in the place of others, until `undo`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or a class."""
        if name in vars(owner):
            self._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(functools.partial(delattr, owner, name))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Set all as it was."""
        while self._undo:
            self._undo.pop()()


class Classes:
    """The recording classes of a process.

    Args:
        recorder: What they tell.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self.patches = recorder, Patches()
        self._made: dict[type, Any] = {plain: self._communicator(plain) for plain in _PLAIN}

    def install(self, world: MPI.Intracomm) -> None:
        """Let ``mpi4py.MPI`` offer communicators and requests that record.

        Args:
            world: What the program has for MPI.COMM_WORLD.
        """
        self._instrument_mpicoll()
        put = self.patches.put
        put(MPI, "COMM_WORLD", self.recorded(world, "COMM_WORLD"))
        put(MPI, "COMM_SELF", self.recorded(MPI.COMM_SELF, "COMM_SELF"))
        put(MPI, "Request", requests.Request)
        put(MPI, "Prequest", requests.Prequest)

    def _instrument_mpicoll(self) -> None:
        """Let mpicoll's own communicators record, and say which algorithm has run."""
        from mpicoll.comm import Intercomm, Intracomm
        from mpicoll.comm.intracomm import Cartcomm, Distgraphcomm, Graphcomm
        from mpicoll.requests import device, library, own

        self._instrument(Intracomm, algorithms=True)
        self._instrument(Intercomm, algorithms=False)
        for cls in (Cartcomm, Graphcomm, Distgraphcomm):
            self._instrument(cls, algorithms=True, names=("neighbor", "Neighbor", "Ineighbor"))
        for kind in (
            *(own.Request, own.FastRequest, own.Prequest),
            *(device.Staged, device.StagedPrequest, device.Enqueued, device.EnqueuedPrequest),
            *(library.OwnedRequest, library.OwnedPrequest, library.CountedPrequest),
            *(library.FastPrequest, library.LibraryRequest, library.LibraryPrequest),
            library.PersistentFallback,
        ):
            for name, function in requests.instrumented(kind):
                self.patches.put(kind, name, function)

    def recorded(self, comm: Any, kind: str) -> Any:
        """A communicator as one that records; what is none, or null, stays what it is."""
        if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL:
            return comm
        made: Any = self._made[type(comm)](comm) if type(comm) in self._made else comm
        if hasattr(made, "_profile"):
            made._profile = self._recorder.channel(made, kind)
        return made

    def _communicator(self, plain: type) -> type:
        made = type(plain.__name__, (plain,), {"__module__": plain.__module__})
        self._instrument(made, algorithms=False)
        return made

    def _instrument(self, cls: Any, algorithms: bool, names: str | tuple[str, ...] = "") -> None:
        """Let the methods of a class of communicators record.

        Args:
            cls: The class, in Python.
            algorithms: Whether it can say what has run (``stats``).
            names: What the names of the collectives begin with that it has of its own.
        """
        put = functools.partial(self.patches.put, cls)
        put("_profile", None)
        for name, method in COLLECTIVES.items():
            if name.startswith(names) and hasattr(cls, name):
                put(name, self._collective(method, getattr(cls, name), algorithms))
        if names:
            return
        for name, buffer in MESSAGES.items():
            put(name, self._message(getattr(cls, name), buffer))
        for name in _MAKERS:
            if hasattr(cls, name):
                put(name, self._maker(name, getattr(cls, name)))
        for name in ("Idup", "Idup_with_info"):
            put(name, self._starting_maker(getattr(cls, name)))

    # --- communicators ---

    def _maker(self, name: str, function: Function) -> Function:
        @functools.wraps(function)
        def make(*arguments: Any, **named: Any) -> Any:
            return self.recorded(function(*arguments, **named), name)

        return make

    def _starting_maker(self, function: Function) -> Function:
        @functools.wraps(function)
        def make(*arguments: Any, **named: Any) -> Any:
            comm, request = function(*arguments, **named)
            # It must not be asked for its ranks yet; its first call does.
            made = self._made[type(comm)](comm) if type(comm) in self._made else comm
            return made, request

        return make

    # --- calls ---

    def _collective(self, method: Recorded, function: Function, algorithms: bool) -> Function:
        """A method that records."""
        starts = method.name.endswith("_init") or method.name[0] == "I"
        if algorithms or starts or method.nbytes is None:
            return self._any(method, function, algorithms)
        return self._blocking(method, function, method.nbytes)

    def _blocking(self, method: Recorded, function: Function, nbytes_of: Counting) -> Function:
        """A method of mpi4py's that blocks and takes arrays: with as little as can be, for it is
        called most often."""
        recorder, frame_of, tell = self._recorder, sys._getframe, clock
        name, equal, place, array = method.name, method.equal, method.root, method.array
        ndarray = np.ndarray

        @functools.wraps(function)
        def call(comm: Any, *arguments: Any, **named: Any) -> Any:
            frame: FrameType = frame_of(_DEPTH)
            channel = comm._profile or self._channel(comm)
            if len(arguments) > array and type(message := arguments[array]) is ndarray:
                nbytes = message.nbytes
            else:
                nbytes = nbytes_of(arguments, named, channel.size)
            root = -1
            if place >= 0:
                root = arguments[place] if len(arguments) > place else named.get("root", 0)
            key = name, id(frame.f_code), frame.f_lasti, nbytes if equal else -1, root
            row = channel.rows.get(key)
            if row is None:
                row = recorder.found(channel, method, frame, (arguments, named), key)
            channel.count = (number := channel.count) + 1
            begin = tell()
            try:
                # An empty dictionary costs.
                return function(comm, *arguments, **named) if named else function(comm, *arguments)
            finally:
                end = tell()
                row.calls += 1
                row.seconds += end - begin
                if not equal:
                    row.nbytes += nbytes
                if not number & channel.mask:
                    channel.keep((number, row.number, begin, begin, end))

        return call

    def _any(self, method: Recorded, function: Function, algorithms: bool) -> Function:
        """Any method; those of mpicoll's tell by which algorithm they have run."""
        recorder, frame_of, tell = self._recorder, sys._getframe, clock
        name, equal, place, nbytes_of = method.name, method.equal, method.root, method.nbytes
        persistent = name.endswith("_init")
        starts = persistent or name[0] == "I"

        @functools.wraps(function)
        def call(comm: Any, *arguments: Any, **named: Any) -> Any:
            frame: FrameType = frame_of(_DEPTH)
            channel = comm._profile or self._channel(comm)
            nbytes = 0 if nbytes_of is None else nbytes_of(arguments, named, channel.size)
            root = -1
            if place >= 0:
                root = arguments[place] if len(arguments) > place else named.get("root", 0)
            asked = named.get("algorithm") if named else None
            key = name, id(frame.f_code), frame.f_lasti, nbytes if equal else -1, root, asked
            row = channel.rows.get(key)
            if row is None:
                row = recorder.found(channel, method, frame, (arguments, named), key)
            number, pickled = channel.count, recorder.pickled
            kept = not (number & channel.mask or persistent)
            if not persistent:
                channel.count = number + 1
            look = algorithms and not row.calls & (row.calls - 1)
            before = _ran(comm) if look else None
            begin = tell()
            try:
                result = function(comm, *arguments, **named)
            finally:
                end = tell()
                if look:
                    row = _by_algorithm(recorder, channel.rows, row, before, _ran(comm))
                if nbytes_of is None:
                    nbytes = recorder.pickled - pickled
                row.seconds += end - begin
                if not persistent:
                    row.calls += 1
                    row.nbytes += 0 if equal else nbytes
                if kept and not starts:
                    channel.keep((number, row.number, begin, begin, end))
            if not starts:
                return result
            pending = Pending(row, channel, 0 if equal else nbytes)
            if not persistent:
                pending.started(number, begin, kept)
            return requests.recording(result, pending)

        return call

    def _channel(self, comm: Any) -> Channel:
        """What the calls of a communicator go to of which nothing is known yet."""
        comm._profile = channel = self._recorder.channel(comm, type(comm).__name__)
        return channel

    def _message(self, function: Function, buffer: str) -> Function:
        recorder, row = self._recorder, self._recorder.messages

        @functools.wraps(function)
        def call(comm: Any, *arguments: Any, **named: Any) -> Any:
            pickled = recorder.pickled
            begin = clock()
            try:
                result = function(comm, *arguments, **named)
            finally:
                row.seconds += clock() - begin
                row.calls += 1
                if buffer == PICKLED:
                    row.nbytes += recorder.pickled - pickled
                elif buffer:
                    row.nbytes += payload(arguments[0] if arguments else named.get(buffer))
            if isinstance(result, _REQUESTS):
                return requests.recording(result, Pending(row, None))
            return result

        return call


def _ran(comm: Any) -> dict[tuple[str, str], int]:
    """How often each algorithm has run on a communicator of mpicoll's, by its own count."""
    try:
        return dict(comm.stats().calls)
    except (ValueError, RuntimeError):
        return {}  # nothing has run yet, or it has failed


def _by_algorithm(
    recorder: Recorder,
    rows: dict[Any, Row],
    row: Row,
    before: dict[tuple[str, str], int] | None,
    after: dict[tuple[str, str], int],
) -> Row:
    """The row of a call by the algorithm that has run, from counts before and after it."""
    ran = {name for name, count in after.items() if count != (before or {}).get(name, 0)}
    algorithm = ran.pop()[1] if len(ran) == 1 else row.algorithm
    if algorithm == row.algorithm:
        return row
    if not row.calls:
        row.algorithm = algorithm
        return row
    other = recorder.other(row, algorithm)
    for key in [key for key, known in rows.items() if known is row]:
        rows[key] = other
    return other
