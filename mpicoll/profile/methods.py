"""Methods that record: what each call does beside that of mpi4py's or mpicoll's that it makes.

Compiled with the types of methods.pxd, since every call of a program goes through here.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from mpi4py import MPI

from mpicoll.profile import requests
from mpicoll.profile.calls import PICKLED, Counting, Recorded, at_once, payload
from mpicoll.profile.recorder import Channel, Recorder, Row, clock
from mpicoll.profile.requests import Pending

_REQUESTS = (MPI.Request, MPI.Prequest)
_frame_of = sys._getframe

Function = Callable[..., Any]


def _depth() -> int:
    """Frames between a caller and a function here that asks for it: compiled, it has none."""
    return int(sys._getframe().f_code.co_name == "_depth")


#: The caller of a method is behind the method itself and two functions that it calls.
_DEPTH = 3 * _depth()


class Collective:
    """How the calls of a collective of a class of communicators are recorded.

    Args:
        recorder: What is told.
        method: Which collective.
        function: The method that makes the call.
        algorithms: Whether the communicators can say what has run (``stats``).

    Attributes:
        starts: Whether its calls are not over when they return.
        persistent: Whether they have not even begun.
    """

    __slots__ = (
        *("_algorithms", "_array", "_counting", "_equal", "_function", "_method", "_name"),
        *("_recorder", "_root", "persistent", "starts"),
    )

    def __init__(
        self, recorder: Recorder, method: Recorded, function: Function, algorithms: bool
    ) -> None:
        self._recorder, self._method, self._function = recorder, method, function
        self._algorithms, self._name, self._equal = algorithms, method.name, method.equal
        # Places among arguments of which the communicator is the first.
        self._array = method.array + 1
        self._root = method.root + 1 if method.root >= 0 else 0
        self._counting: Counting | None = method.nbytes
        self.persistent = method.name.endswith("_init")
        self.starts = self.persistent or method.name[0] == "I"

    def recording(self) -> Function:
        """The method that takes its place."""
        if self._algorithms or self.starts or self._counting is None:

            def call(*arguments: Any, **named: Any) -> Any:
                return self.long(arguments, named)

        else:

            def call(*arguments: Any, **named: Any) -> Any:
                return self.short(arguments, named)

        return functools.wraps(self._function)(call)

    def _nbytes(self, channel: Channel, arguments: Any, named: Any) -> int:
        """Bytes of a call's arguments."""
        if len(arguments) > self._array:
            found = at_once(arguments[self._array])
            if found >= 0:
                return found
        assert self._counting is not None
        return self._counting(arguments[1:], named, channel.size)

    def _row(self, channel: Channel, arguments: Any, named: Any, nbytes: int, asked: Any) -> Row:
        """Where a call is added up."""
        frame: FrameType = _frame_of(_DEPTH)
        root = -1
        if self._root:
            root = arguments[self._root] if len(arguments) > self._root else named.get("root", 0)
        size = nbytes if self._equal else -1
        key = self._name, id(frame.f_code), frame.f_lasti, size, root, asked
        row = channel.rows.get(key)
        if row is None:
            given = arguments[1:], named
            row = self._recorder.found(channel, self._method, frame, given, key)
        return row

    def short(self, arguments: Any, named: Any) -> Any:
        """A call of mpi4py's that blocks and takes arrays: with as little as can be, for it is the
        one that is made most often."""
        if not arguments:
            return self._function()  # which says what is missing
        channel = self._channel(arguments[0])
        nbytes = self._nbytes(channel, arguments, named)
        row = self._row(channel, arguments, named, nbytes, None)
        number = channel.count
        channel.count = number + 1
        begin = clock()
        try:
            # An empty dictionary costs.
            return self._function(*arguments, **named) if named else self._function(*arguments)
        finally:
            end = clock()
            row.calls += 1
            row.seconds += end - begin
            if not self._equal:
                row.nbytes += nbytes
            if not number & channel.mask:
                channel.keep((number, row.number, begin, begin, end))

    def long(self, arguments: Any, named: Any) -> Any:
        """Any call; those of mpicoll's tell by which algorithm they have run."""
        if not arguments:
            return self._function()  # which says what is missing
        comm, recorder = arguments[0], self._recorder
        channel = self._channel(comm)
        nbytes = 0 if self._counting is None else self._nbytes(channel, arguments, named)
        asked = named.get("algorithm") if named else None
        row = self._row(channel, arguments, named, nbytes, asked)
        number, pickled = channel.count, recorder.pickled
        kept = not (number & channel.mask or self.persistent)
        if not self.persistent:
            channel.count = number + 1
        look = self._algorithms and not row.calls & (row.calls - 1)
        before = _ran(comm) if look else None
        begin = clock()
        try:
            result = self._function(*arguments, **named) if named else self._function(*arguments)
        finally:
            end = clock()
            if look:
                row = _by_algorithm(recorder, channel.rows, row, before, _ran(comm))
            if self._counting is None:
                nbytes = recorder.pickled - pickled
            row.seconds += end - begin
            if not self.persistent:
                row.calls += 1
                row.nbytes += 0 if self._equal else nbytes
            if kept and not self.starts:
                channel.keep((number, row.number, begin, begin, end))
        if not self.starts:
            return result
        pending = Pending(row, channel, 0 if self._equal else nbytes)
        if not self.persistent:
            pending.number, pending.begin, pending.kept = number, begin, kept
        return requests.recording(result, pending)

    def _channel(self, comm: Any) -> Channel:
        """What the calls on a communicator go to."""
        channel = comm._profile
        if channel is None:  # nothing is known of it yet
            comm._profile = channel = self._recorder.channel(comm, type(comm).__name__)
        return channel


class Message:
    """How the calls of a point-to-point method are recorded.

    Args:
        recorder: What is told.
        function: The method that makes the call.
        buffer: The name of what it sends, `PICKLED`, or "".
    """

    __slots__ = ("_buffer", "_function", "_pickles", "_recorder", "_row")

    def __init__(self, recorder: Recorder, function: Function, buffer: str) -> None:
        self._recorder, self._row, self._function = recorder, recorder.messages, function
        self._buffer, self._pickles = buffer, buffer == PICKLED

    def recording(self) -> Function:
        """The method that takes its place."""

        def call(*arguments: Any, **named: Any) -> Any:
            return self.made(arguments, named)

        return functools.wraps(self._function)(call)

    def made(self, arguments: Any, named: Any) -> Any:
        """Make a call."""
        row, pickled = self._row, self._recorder.pickled
        begin = clock()
        try:
            result = self._function(*arguments, **named) if named else self._function(*arguments)
        finally:
            row.seconds += clock() - begin
            row.calls += 1
            if self._pickles:
                row.nbytes += self._recorder.pickled - pickled
            elif self._buffer:
                sent = arguments[1] if len(arguments) > 1 else named.get(self._buffer)
                row.nbytes += payload(sent)
        if isinstance(result, _REQUESTS):
            return requests.recording(result, Pending(row, None))
        return result


def count_pickled(recorder: Recorder) -> None:
    """Count from now on the bytes that mpi4py pickles and reads."""

    def dumps(value: Any, protocol: int | None = None) -> bytes:
        written = pickle.dumps(value, protocol)
        recorder.pickled += len(written)
        return written

    def loads(written: Any) -> Any:
        recorder.pickled += len(written)
        return pickle.loads(written)  # of a rank of this job

    MPI.pickle.__init__(dumps, loads)  # type: ignore[misc]


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
