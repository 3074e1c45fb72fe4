"""Timelines of pipelines: what each rank did when, and what it waited for."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from mpicoll.base.files import write_atomically
from mpicoll.train.parallel.mesh import Mesh
from mpicoll.train.parallel.program import Span
from mpicoll.train.step import core
from mpicoll.train.step.catalogue import Schedule
from mpicoll.train.step.tasks import RECEIVES, SENDS, Task


class Record(NamedTuple):
    """One step of one rank, in seconds of one clock.

    Attributes:
        start, end: Of the step.
        spans: Its tasks, in order.
    """

    start: float
    end: float
    spans: list[Span]

    def shifted(self, by: float) -> Record:
        """The same on another clock."""
        spans = [Span(s.task, s.start + by, s.end + by) for s in self.spans]
        return Record(self.start + by, self.end + by, spans)


class Recorder:
    """What a rank did in its steps.

    Attributes:
        spans: Of the last step, or of the one under way.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._records: list[Record] | None = None

    @contextmanager
    def step(self) -> Iterator[list[Span]]:
        """Takes the spans of a step, and keeps them where somebody asks for them."""
        spans = self.spans = list[Span]()
        start = time.perf_counter()
        yield spans
        if self._records is not None:
            self._records.append(Record(start, time.perf_counter(), spans))

    @contextmanager
    def kept(self) -> Iterator[list[Record]]:
        """The records of the steps that are made within the statement and do not fail."""
        records: list[Record] = []
        self._records = records
        try:
            yield records
        finally:
            self._records = None


class Shares(NamedTuple):
    """The time of a step on one rank, in seconds.

    Attributes:
        step: The whole.
        computing: In tasks.
        bubble: Waiting for what had not yet been made.
        exposed: Waiting for what was under way, sending, and ending the step together.
        straggling: The part of the waiting for what had not yet been made that would not be there
            if each task took the median of those of its kind and chunk; not in `bubble`.
    """

    step: float
    computing: float
    bubble: float
    exposed: float
    straggling: float


class Wait(NamedTuple):
    """Part of a step in which a rank waits.

    Attributes:
        task: The message that is awaited; None for the end of the step.
        start, end: In seconds.
        made: Whether what is awaited was made already, and under way.
    """

    task: Task | None
    start: float
    end: float
    made: bool


class Timeline:
    """Steps of all ranks.

    Args:
        schedule: Of each replica.
        replicas: How many there are; rank = stage * replicas + replica.  Ranks that share layers
            count as replicas.

    Attributes:
        schedule, replicas: As given.
        steps: For each step, the record of each rank, on the clock of rank 0.
    """

    def __init__(self, schedule: Schedule, replicas: int) -> None:
        self.schedule, self.replicas = schedule, replicas
        self.steps: Sequence[Sequence[Record]] = ()

    def waits(self, step: int) -> list[list[Wait]]:
        """Of each rank, what it waited for."""
        records = self.steps[step]
        # When the other ends of its messages were made: those of a rank's own replica.
        made = [
            {
                span.task: span.start
                for record in records[first :: self.replicas]
                for span in record.spans
            }
            for first in range(self.replicas)
        ]
        last = max((record.spans[-1].end for record in records if record.spans), default=-math.inf)
        return [
            [*_waits(record, made[rank % self.replicas], last)]
            for rank, record in enumerate(records)
        ]

    def shares(self, step: int) -> list[Shares]:
        """Of each rank, what the time of a step went into."""
        found = []
        for record, waits, late in zip(
            self.steps[step], self.waits(step), self._straggling(step), strict=True
        ):
            computing = _seconds(s for s in record.spans if not s.task.is_message)
            sending = _seconds(s for s in record.spans if s.task.kind in SENDS)
            awaiting = _seconds(w for w in waits if not w.made)
            late = min(late, awaiting)
            exposed = sending + _seconds(w for w in waits if w.made)
            whole = record.end - record.start
            found.append(Shares(whole, computing, awaiting - late, exposed, late))
        return found

    def _straggling(self, step: int) -> list[float]:
        """Seconds that each rank idles since tasks did not take their median, without messages."""
        found = [0.0] * len(self.steps[step])
        for replica in range(self.replicas):
            ranks = range(replica, len(found), self.replicas)
            spans = [self.steps[step][rank].spans for rank in ranks]
            taken = {s.task: s.end - s.start for own in spans for s in own}
            alike: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
            for task, length in taken.items():
                alike[task.kind, task.chunk].append(length)
            typical = {task: median(alike[task.kind, task.chunk]) for task in taken}
            programs = [[span.task for span in own] for own in spans]
            idle = zip(_idle(programs, taken), _idle(programs, typical), strict=True)
            for rank, (really, typically) in zip(ranks, idle, strict=True):
                found[rank] = max(0.0, really - typically)
        return found

    def chrome(self) -> dict[str, Any]:
        """In the format of the trace viewers of Chrome and Perfetto: a process a rank."""
        begin = min((record.start for records in self.steps for record in records), default=0.0)

        def event(rank: int, name: str, kind: str, start: float, end: float) -> dict[str, Any]:
            return {
                "ph": "X",
                "name": name,
                "cat": kind,
                "pid": rank,
                "tid": 0,
                "ts": round(1e6 * (start - begin), 3),
                "dur": round(1e6 * (end - start), 3),
            }

        events: list[dict[str, Any]] = []
        for number, records in enumerate(self.steps):
            for rank, (record, waits) in enumerate(zip(records, self.waits(number), strict=True)):
                if not number:
                    stage, replica = divmod(rank, self.replicas)
                    name = f"rank {rank}: stage {stage}, replica {replica}"
                    events.append(
                        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
                    )
                for task, start, end in record.spans:
                    if task.kind not in RECEIVES:
                        kind = "sending" if task.is_message else "computing"
                        events.append(event(rank, str(task), kind, start, end))
                for wait in waits:
                    kind = "under way" if wait.made else "not yet made"
                    name = "end of the step" if wait.task is None else str(wait.task)
                    events.append(event(rank, name, kind, wait.start, wait.end))
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def write(self, path: str | Path) -> None:
        """Write `chrome` as JSON.

        Raises:
            OSError: It cannot be written.
        """
        write_atomically(path, json.dumps(self.chrome()) + "\n")


def _idle(programs: Sequence[Sequence[Task]], lengths: Mapping[Task, float]) -> list[float]:
    """Seconds that each rank does not compute, where tasks take so long and messages no time."""
    busy, whole = [0] * len(programs), 0
    for rank, task, begin, end in core.run(programs, duration=lambda t: round(1e9 * lengths[t])):
        if not task.is_message:
            busy[rank] += end - begin
            whole = max(whole, end)
    return [1e-9 * (whole - own) for own in busy]


def gathered(mesh: Mesh, own: Sequence[Record]) -> list[tuple[Record, ...]]:
    """For each step the records of all ranks, on the clock of rank 0; collective."""
    comm = mesh.world.comm
    if comm is None:
        return [(record,) for record in own]
    from mpicoll.base import clocks  # here, because it initialises MPI

    ahead = clocks.ahead(comm)
    every = comm.allgather([record.shifted(ahead) for record in own])
    return [*zip(*every, strict=True)]


def _waits(record: Record, made: Mapping[Task, float], last: float) -> Iterator[Wait]:
    """What a rank waited for.

    Args:
        record: Its step.
        made: When each task of its replica began, which its messages are of.
        last: When the last task of all ranks was done, which end the step together.
    """
    for task, start, end in record.spans:
        if task.kind in RECEIVES:
            yield from _parted(task, start, end, made[task.other_end])
    own_last = record.spans[-1].end if record.spans else record.start
    yield from _parted(None, own_last, record.end, last)


def _parted(task: Task | None, start: float, end: float, made: float) -> Iterator[Wait]:
    """A wait before and after something was made."""
    between = min(max(made, start), end)
    if start < between:
        yield Wait(task, start, between, made=False)
    if between < end:
        yield Wait(task, between, end, made=True)


def _seconds(spans: Iterator[Any]) -> float:
    return sum(span.end - span.start for span in spans)
