"""The files of all ranks of a profile, put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mpicoll.base import json_lines
from mpicoll.base.json_lines import Record
from mpicoll.profile.calls import COLLECTIVES
from mpicoll.profile.waiting import SHARED, Clock, Visit, waits, weight
from mpicoll.profile.writer import name_of

#: What a communicator that MPI has made is called here.
_NAMES = {"COMM_WORLD": "world", "COMM_SELF": "self"}


class Part(NamedTuple):
    """A rank's part in a line.

    Attributes:
        calls, nbytes: Of them.
        seconds: In them.
        waiting: Seconds of these until others had arrived; None where that cannot be told.
    """

    calls: int
    nbytes: int
    seconds: float
    waiting: float | None


@dataclass
class Line:
    """Calls from one place of the program, on communicators that are made alike.

    Attributes:
        method, collective: What is called.
        file, line, function: Where.
        communicator, ranks: What it is called on, and how many ranks that has.
        size: Bytes of the whole vector; -1 where ranks or calls differ.
        root, op, type: Of its calls: -1 or "" without one.
        algorithm: That ran; ``native``: the MPI library's own.
        inter: Whether it is an intercommunicator.
        parts: By the rank in MPI.COMM_WORLD.
        matched: Calls that were found on all ranks, from which waiting is told.
        total: Seconds of the run, of all ranks together.
    """

    method: str
    collective: str
    file: str
    line: int
    function: str
    communicator: str
    ranks: int
    size: int
    root: int
    op: str
    type: str
    algorithm: str
    inter: bool
    parts: dict[int, Part] = field(default_factory=dict)
    matched: int = 0
    total: float = 0.0

    @property
    def where(self) -> str:
        """File, without folders, and line."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def calls(self) -> int:
        """Of the rank that calls most often."""
        return max((part.calls for part in self.parts.values()), default=0)

    @property
    def nbytes(self) -> float:
        """Bytes of a call: of the whole vector, or what a rank gives on average."""
        calls = sum(part.calls for part in self.parts.values())
        return sum(part.nbytes for part in self.parts.values()) / calls if calls else 0.0

    @property
    def seconds(self) -> float:
        """In the calls, of all ranks together."""
        return sum(part.seconds for part in self.parts.values())

    @property
    def waiting(self) -> float | None:
        """Seconds of these until others had arrived; None where that cannot be told."""
        known = [part.waiting for part in self.parts.values() if part.waiting is not None]
        return sum(known) if known else None

    @property
    def transfer(self) -> float:
        """The other seconds."""
        return self.seconds - (self.waiting or 0.0)

    @property
    def share(self) -> float:
        """Of the time of all ranks."""
        return self.seconds / self.total if self.total else 0.0


@dataclass
class Profile:
    """What a run spent in its collectives.

    Attributes:
        name: Of the run.
        facts: Of rank 0, see :mod:`mpicoll.profile.writer`.
        ranks: That it had.
        seconds: Of each rank whose file is there.
        ended: Those that have come to their end.
        lines: The most time first.
        messages: Of all point-to-point calls of each rank.
        unseen: Libraries that may have called MPI by themselves.
        recorded: Calls that were recorded, of all ranks.
        cost: Seconds that recording one takes.
    """

    name: str
    facts: dict[str, Any]
    ranks: int
    seconds: dict[int, float]
    ended: frozenset[int]
    lines: list[Line]
    messages: dict[int, Part]
    unseen: list[str]
    recorded: int
    cost: float

    @property
    def total(self) -> float:
        """Seconds of all ranks together."""
        return sum(self.seconds.values())

    @property
    def overhead(self) -> float:
        """Share of the run that recording has taken."""
        return self.recorded * self.cost / self.total if self.total else 0.0


#: What records must have.
_NEEDED = {
    "rank": ("rank", "ranks", "host", "command", "start", "clock", "cost"),
    "communicator": ("number", "kind", "ranks", "alike", "rank", "inter", "matched"),
    "row": ("number", "method", "algorithm", "calls", "seconds", "nbytes"),
    "calls": ("communicator", "times"),
    "now": ("seconds",),
    "end": ("seconds", "clock", "unseen"),
}


class _Rank:
    """The records of one rank."""

    def __init__(self, path: Path) -> None:
        self.facts: Record = {}
        self.last: Record | None = None
        self.seconds = 0.0
        self.communicators: dict[int, Record] = {}
        self.rows: dict[int, Record] = {}
        self.times: dict[int, list[list[int]]] = defaultdict(list)
        json_lines.read(path, self._take)
        if not self.facts:
            raise ValueError(f"{path} does not begin as the file of a profile does")

    def _take(self, record: Record) -> None:
        kind = record["record"]
        missing = [name for name in _NEEDED[kind] if name not in record]
        if missing:
            raise ValueError(f"a record {kind!r} without {missing[0]}")
        match kind:
            case "rank":
                self.facts = record
            case "communicator":
                self.communicators[record["number"]] = record
            case "row":
                self.rows[record["number"]] = record
            case "calls":
                times = [[*map(int, each)] for each in record["times"]]
                self.times[record["communicator"]] += times
            case _:
                self.seconds = max(self.seconds, float(record["seconds"]))
                self.last = record if kind == "end" else None

    def clock(self, host: str) -> Clock:
        """Its clock; that of rank 0 is on a host."""
        if self.facts["host"] == host:
            return SHARED
        readings = [self.facts["clock"], *([self.last["clock"]] if self.last else [])]
        return Clock([(float(local), float(ahead)) for local, ahead in readings])


def read(folder: Path) -> Profile:
    """A profile from its folder.

    Lines that are torn are left out with a warning.

    Raises:
        OSError: A file cannot be read.
        ValueError: There is no profile in the folder.
    """
    if not (folder / name_of(0)).is_file():
        raise ValueError(
            f"{folder} has no {name_of(0)}; name the folder that `python -m mpicoll.profile` made"
        )
    first = _Rank(folder / name_of(0))
    found = {0: first}
    for rank in range(1, first.facts["ranks"]):
        if (folder / name_of(rank)).is_file():
            found[rank] = _Rank(folder / name_of(rank))
    waited = _waited(found)
    lines = _lines(found, waited)
    seconds = {rank: each.seconds for rank, each in found.items()}
    for line in lines:
        line.total = sum(seconds.values())
    return Profile(
        name=first.facts["run"],
        facts=first.facts,
        ranks=first.facts["ranks"],
        seconds=seconds,
        ended=frozenset(rank for rank, each in found.items() if each.last),
        lines=sorted(lines, key=lambda line: -line.seconds),
        messages={rank: _messages(each) for rank, each in found.items()},
        unseen=sorted(
            {name for each in found.values() if each.last for name in each.last["unseen"]}
        ),
        recorded=sum(row["calls"] for each in found.values() for row in each.rows.values()),
        cost=sum(each.facts["cost"] for each in found.values()) / len(found),
    )


def _messages(rank: _Rank) -> Part:
    rows = [row for row in rank.rows.values() if row["method"] not in COLLECTIVES]
    calls, nbytes = sum(row["calls"] for row in rows), sum(row["nbytes"] for row in rows)
    return Part(calls, nbytes, sum(row["seconds"] for row in rows), None)


#: By rank and its row: nanoseconds waited for others, all nanoseconds, and calls.
_Waited = dict[tuple[int, int], list[float]]


def _waited(ranks: dict[int, _Rank]) -> _Waited:
    """How long calls that are known of all their ranks waited."""
    found: _Waited = defaultdict(lambda: [0.0, 0.0, 0])
    host = ranks[0].facts["host"]
    calls: dict[Any, dict[int, tuple[int, Visit]]] = defaultdict(dict)
    for rank, each in ranks.items():
        clock, start = each.clock(host), each.facts["start"]
        for number, communicator in each.communicators.items():
            if not communicator["matched"]:
                continue
            where = communicator["ranks"], communicator["alike"]
            for call, row, *moments in each.times[number]:
                visit = Visit(row, *(clock.common(start + moment) for moment in moments))
                calls[where, call][communicator["rank"]] = rank, visit
    sizes: dict[str, int] = {}
    for ((members, _), call), visits in calls.items():
        size = sizes.setdefault(members, _count(members))
        if len(visits) != size or max(visits) >= size:
            continue
        rank, visit = visits[0]
        about = ranks[rank].rows.get(visit.row)
        if about is None:
            continue
        by_rank = {place: visit for place, (_, visit) in visits.items()}
        waited = waits(about["collective"], about["root"], by_rank)
        for place, (rank, visit) in visits.items():
            sums = found[rank, visit.row]
            sums[0] += weight(call) * waited[place]
            sums[1] += weight(call) * (visit.end - visit.wait)
            sums[2] += 1
    return found


def _count(members: str) -> int:
    """How many ranks "0-2,5" are."""
    ends = (part.split("-") for part in members.split(",") if part)
    return sum(int(each[-1]) - int(each[0]) + 1 for each in ends)


def _lines(ranks: dict[int, _Rank], waited: _Waited) -> list[Line]:
    lines: dict[Any, Line] = {}
    for rank, each in ranks.items():
        for number, row in each.rows.items():
            if row["method"] not in COLLECTIVES:
                continue
            about = each.communicators.get(row["communicator"])
            size = 1 if about is None else _count(about["ranks"])
            kind = "" if about is None else about["kind"]
            name = _NAMES.get(kind, f"{kind} of {size}")
            what = {key: row[key] for key in ("method", "collective", "file", "line", "function")}
            key = (*what.values(), name, row["size"], row["algorithm"])
            line = lines.get(key)
            if line is None:
                shape = {key: row[key] for key in ("size", "root", "op", "type", "algorithm")}
                shape["inter"] = about is not None and about["inter"]
                line = lines[key] = Line(**what, communicator=name, ranks=size, **shape)
            _add(line, rank, row, waited.get((rank, number)))
    return list(lines.values())


def _add(line: Line, rank: int, row: Record, sums: Iterable[float] | None) -> None:
    """Add a rank's row to a line."""
    waiting = None
    if sums is not None:
        waited, whole, count = sums
        waiting = row["seconds"] * waited / whole if whole else 0.0
        line.matched = max(line.matched, int(count))
    part = line.parts.get(rank, Part(0, 0, 0.0, None))
    both = [value for value in (part.waiting, waiting) if value is not None]
    line.parts[rank] = Part(
        part.calls + row["calls"],
        part.nbytes + row["nbytes"],
        part.seconds + row["seconds"],
        sum(both) if both else None,
    )
