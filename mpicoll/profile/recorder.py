"""What a rank keeps of its calls: a row for each place that calls, and when some of them were.

A call costs well under a microsecond more than without: a row is found by where the call comes
from and how large it is, and adds up.  When calls begin and end is kept of the first ones of a
communicator, then of every second, every fourth, and so on: by their number, which is the same on
all ranks, so that what they keep can be matched afterwards without a message.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from types import FrameType
from typing import Any, NamedTuple

from mpi4py import MPI

from mpicoll.base.wording import intervals
from mpicoll.profile.calls import Arguments, Named, Recorded, element

clock = time.perf_counter

#: Calls of a communicator whose times are kept, before only every second one is kept.
KEPT = 1 << 12
#: Rows of a rank, before sizes are rounded up to a power of two.
EXACT = 1 << 12

#: Folders whose lines are not the program's.
_INNER = tuple(
    os.path.dirname(file) + os.sep for file in (str(MPI.__file__), os.path.dirname(__file__))
)


class Site(NamedTuple):
    """Where a call is in the program."""

    file: str
    line: int
    function: str


class Row:
    """The calls of one method from one place with one size.

    Attributes:
        number: Of the row, on this rank.
        about: What is the same for all its calls, as it is written.
        calls, seconds: Of them, so far; seconds within the methods.
        nbytes: Of them, where they differ.
        algorithm: By what the calls run; "" where that cannot be told.
        code: Of the function that calls, kept so that no other one takes its place in memory.
        written: Calls when it was last written to a file.
    """

    __slots__ = (
        *("about", "algorithm", "calls", "code", "nbytes", "number", "seconds", "written"),
    )

    def __init__(self, number: int, about: dict[str, Any], algorithm: str, code: Any) -> None:
        self.number, self.about, self.algorithm, self.code = number, about, algorithm, code
        self.calls = self.nbytes = self.written = 0
        self.seconds = 0.0


#: A call whose times are kept: its number on the communicator, its row, when it began, when the
#: rank began to wait for it, and when it was over.
Times = tuple[int, int, float, float, float]


class Channel:
    """The calls on one communicator.

    Attributes:
        number: Of the communicator, on this rank.
        about: What tells it from others, on all its ranks alike.
        size: Ranks.
        rows: By place and size.
        count: Calls so far.
        mask: The number of a call whose times are kept has none of these bits.
        left: Calls whose times are kept with this mask.
        times: What has not been written yet.
        told: Whether its facts have been written.
    """

    __slots__ = ("about", "count", "left", "mask", "number", "rows", "size", "times", "told")

    def __init__(self, number: int, about: dict[str, Any], size: int) -> None:
        self.number, self.about, self.size = number, about, size
        self.rows: dict[Any, Row] = {}
        self.count, self.mask, self.left = 0, 0, KEPT
        self.times: list[Times] = []
        self.told = False

    def keep(self, times: Times) -> None:
        """Keep the times of a call."""
        self.times.append(times)
        self.left -= 1
        if not self.left:
            self.mask, self.left = 2 * self.mask + 1, KEPT


class Recorder:
    """All that a rank records.

    Attributes:
        start: When it began, by the clock of this process.
        channels: Of the communicators, in the order in which they came.
        messages: Of all point-to-point calls together.
        pickled: Bytes of objects that mpi4py has pickled or read, so far.
    """

    def __init__(self) -> None:
        self.start = clock()
        self.channels: list[Channel] = []
        self.rows: list[Row] = []
        self.messages = self._row({"method": "point-to-point"}, "", None)
        self.pickled = 0
        self._alike: Counter[tuple[int, ...]] = Counter()
        self._world = MPI.COMM_WORLD.Get_group()

    def channel(self, comm: MPI.Comm, kind: str) -> Channel:
        """What the calls on a communicator go to.  Local.

        Args:
            comm: The communicator.
            kind: What has made it, in a word.
        """
        group = comm.Get_group()
        members = tuple(group.Translate_ranks(None, self._world))
        group.Free()
        number = len(self.channels)
        known = [member for member in members if member >= 0]
        inter = comm.Is_inter()
        about = {
            "kind": kind,
            "ranks": intervals(known),
            "alike": self._alike[members],
            "rank": comm.Get_rank(),
            "inter": inter,
            "matched": len(known) == len(members) and not inter,
        }
        self._alike[members] += 1
        channel = Channel(number, about, len(members))
        self.channels.append(channel)
        return channel

    def _row(self, about: dict[str, Any], algorithm: str, code: Any) -> Row:
        row = Row(len(self.rows), about, algorithm, code)
        self.rows.append(row)
        return row

    def other(self, row: Row, algorithm: str) -> Row:
        """A row like another one, for calls that run by another algorithm."""
        return self._row(row.about, algorithm, row.code)

    def found(
        self,
        channel: Channel,
        method: Recorded,
        frame: FrameType,
        given: tuple[Arguments, Named],
        key: tuple[Any, ...],
    ) -> Row:
        """The row of a call that is not known.

        Args:
            channel, method: Of the call.
            frame: What has called.
            given: The arguments, by place and by name.
            key: Of the row: name of the method, number of the code that calls, place in it, bytes
                (-1 where calls differ), root (-1 without one), and the algorithm, if one may be
                asked for.
        """
        name, _, _, size, root, *asked = key
        frame = _users(frame)
        if size > 0 and len(self.rows) >= EXACT:
            size = 1 << (size - 1).bit_length()
        code = frame.f_code
        key = name, id(code), frame.f_lasti, size, root, *asked
        row = channel.rows.get(key)
        if row is None:
            site = Site(code.co_filename, frame.f_lineno, code.co_name)
            about = {"communicator": channel.number, "method": name, **site._asdict()}
            about |= {"collective": method.collective, "size": size, "root": int(root)}
            about |= _elements(*given)
            row = channel.rows[key] = self._row(
                about, str(next(filter(None, asked), "native")), code
            )
        return row


def _users(frame: FrameType) -> FrameType:
    """The line of the program that a call of mpi4py's or mpicoll's own is made for."""
    found: FrameType | None = frame
    while found is not None and found.f_code.co_filename.startswith(_INNER):
        found = found.f_back
    return frame if found is None else found


def _elements(arguments: Arguments, named: Named) -> dict[str, str]:
    """Operator and element type of a call; "" where it has none."""
    values = (*arguments, *named.values())
    op = next((value for value in values if isinstance(value, MPI.Op)), None)
    types = filter(None, map(element, values))
    return {"op": "" if op is None else _operator(op), "type": next(types, "")}


def _operator(op: MPI.Op) -> str:
    names = ("SUM", "PROD", "MAX", "MIN", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR")
    return next((name.lower() for name in names if op == getattr(MPI, name)), "other")
