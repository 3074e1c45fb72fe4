"""Results on disk: JSON lines, appended one finished point at a time.

A file holds any number of runs. Each run begins with a line ``{"record": "run", ...}`` that says
where and how it was made; each point is a line ``{"record": "point", "run": ..., ...}``. A line is
on the disk before the next point starts. A sweep that goes on with another one is a run of its own,
which names that one. :mod:`mpicoll.base.json_lines` has what else holds for such files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mpicoll.base import json_lines
from mpicoll.base.json_lines import Appender, Attempt, Record, stamp
from mpicoll.base.locks import Lock
from mpicoll.bench.stats import Summary, summarise
from mpicoll.schedule.methods import VARIANTS
from mpicoll.schedule.parameters import Value, in_words

FORMAT = 1


@dataclass(frozen=True)
class Point:
    """One algorithm at one size on one communicator, with every repetition.

    Attributes:
        run: Name of the run that the point belongs to.
        collective, algorithm, parameters: What was measured.
        size: Bytes of the whole vector.
        count: Elements of the whole vector.
        type: NumPy name of the element type; ``none`` for a barrier.
        redop: Name of the operator; ``none`` where nothing is reduced.
        root: Root rank; -1 where there is none.
        ranks: Ranks of the communicator.
        batch: Back-to-back calls in one repetition; the times are those of one call.
        times: Seconds of each repetition: the maximum over ranks.
        slowest: The rank that was the maximum, for each repetition.
        first: Seconds of the very first call, which also prepares it.
        wrong: Wrong elements over all ranks, None if they were not checked.
        problem: Where the first wrong element is, what it should be and what it was.
        stop: Why it ended: ``interval``, ``time`` or ``iterations``.
        cache: ``warm``: the same buffers are used again in each repetition; ``cold``: others each
            time, from a pool larger than the last-level cache.
        oversubscribed: Whether some host had more ranks than cores.
        launch: Number of the launch that the user gave; medians of launches are compared.
        start: How ranks began together: after a ``barrier``, or at a time on synchronised clocks
            (``window``).
        late: Repetitions that some rank began too late, not among the times but made again.
        in_place: Whether input and output were the same memory.
        skew: How far block lengths of the v-variants lie apart: they go from 1 - skew to 1 + skew
            times their mean.
        device: Where the buffers were: ``cpu``, or ``gpu``; then times are between events on the
            stream of the calls.
    """

    run: str
    collective: str
    algorithm: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    ranks: int
    batch: int
    times: tuple[float, ...]
    slowest: tuple[int, ...]
    first: float
    wrong: int | None
    problem: str | None
    stop: str
    oversubscribed: bool
    parameters: dict[str, Value] = field(default_factory=dict)
    cache: str = "warm"
    launch: int = 0
    start: str = "barrier"
    late: int = 0
    in_place: bool = False
    skew: float = 0.0
    device: str = "cpu"

    @property
    def base(self) -> str:
        """The collective with equal blocks, as the catalogue knows it; gather for gatherv."""
        known = VARIANTS.get(self.collective)
        return self.collective if known is None else known.collective

    @property
    def choice(self) -> str:
        """Algorithm and parameters."""
        return f"{self.algorithm} {in_words(self.parameters)}".rstrip()

    @property
    def measured(self) -> tuple[Any, ...]:
        """What was measured, and how: all but what came of it. A run has one point of each."""
        return tuple(
            tuple(sorted(value.items())) if isinstance(value, dict) else value
            for name, value in vars(self).items()
            if name not in _OUTCOMES
        )

    @property
    def summary(self) -> Summary:
        """Median, interval and tail of the times, in seconds."""
        return summarise(self.times)

    def as_dict(self) -> dict[str, Any]:
        """The line of the file: the fields, and the summary for readers that only want that."""
        summary = self.summary
        return {
            "record": "point",
            **asdict(self),
            "time": summary.median,
            "ci_lo": summary.low,
            "ci_hi": summary.high,
            "p95": summary.p95,
            "p99": summary.p99,
            "n": summary.n,
        }

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> Point:
        """The point of a line; the summary is made again from the repetitions.

        Raises:
            KeyError, TypeError, ValueError: if the line is no point.
        """
        known = {
            f.name: line[f.name] for f in fields(cls) if f.name in line or f.name not in _ADDED
        }
        known["times"] = tuple(float(t) for t in known["times"])
        known["slowest"] = tuple(int(r) for r in known["slowest"])
        known["parameters"] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in known["parameters"].items()
        }
        if not known["times"]:
            raise ValueError("the point has no repetition")
        return cls(**known)


# What a point says of the result.
_OUTCOMES = frozenset(
    ("batch", "times", "slowest", "first", "wrong", "problem", "stop", "late", "oversubscribed")
)
# Fields that files of earlier versions lack.
_ADDED = ("launch", "start", "late", "in_place", "skew", "device")


@dataclass
class Run:
    """The points of one launch and the facts of where and how they were measured."""

    name: str
    facts: dict[str, Any]
    points: list[Point] = field(default_factory=list)


class Writer:
    """Appends runs and points to a file, each safe on disk when the call returns.

    Args:
        path: The file; it is created if need be and never shortened.
        patience: Seconds to wait for another writer to end; ranks of a killed job may live on for
            a moment.

    Raises:
        OSError: if the file cannot be opened or, later, written, or another writer does not end.
    """

    def __init__(self, path: Path | str, patience: float = 10.0) -> None:
        self._lock = Lock(path, patience)
        try:
            self._file = Appender(path, durable=True)
        except OSError:
            self._lock.release()
            raise

    def run(self, name: str, facts: dict[str, Any]) -> None:
        """Append the line that opens a run."""
        self._file.append(Attempt(name), {"record": "run", "format": FORMAT, **facts})

    def point(self, point: Point) -> None:
        """Append a finished point."""
        self._file.append(Attempt(point.run), point.as_dict())

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        self._file.close()
        self._lock.release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read(path: Path | str) -> list[Run]:
    """Read all runs of a file, in the order written.

    A line that cannot be read, such as the torn last line of a run that was killed, is dropped
    with a warning that names it; several that have the same fault are told of together.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it holds no point at all, or is of a later version.
    """
    runs = scan(path)
    if not any(run.points for run in runs):
        raise ValueError(f"{path} holds no measured point; give a file that `mpicoll bench` wrote")
    return runs


def scan(path: Path | str) -> list[Run]:
    """Read all runs of a file as `read` does, perhaps none.

    A point that a run has twice, as where files with the same run were joined, counts once: the
    last one.
    """
    runs: dict[str, Run] = {}
    points: dict[str, dict[tuple[Any, ...], Point]] = {}
    formats: list[int] = []

    def take(line: Record) -> None:
        name, _ = stamp(line)
        if line["record"] == "run":
            formats.append(int(line.get("format", FORMAT)))
            facts = {k: v for k, v in line.items() if k not in ("record", "run", "attempt")}
            runs.setdefault(name, Run(name, facts)).facts = facts
        elif line["record"] == "point":
            point = Point.from_dict(line)
            runs.setdefault(name, Run(name, {}))
            points.setdefault(name, {})[point.measured] = point
        else:
            raise ValueError(f"unknown record {line['record']!r}")

    json_lines.read(path, take)
    if max(formats, default=FORMAT) > FORMAT:
        raise ValueError(
            f"{path} has a run of format {max(formats)}, and this version reads up to {FORMAT}; "
            "read it with the version of mpicoll that wrote it"
        )
    for name, measured in points.items():
        runs[name].points = list(measured.values())
    return list(runs.values())
