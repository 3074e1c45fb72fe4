"""The file of a search, `trials.jsonl`: all that was decided, and all that came of it.

    {"event": "search", "space": ..., "options": ...}   a process begins with it, or goes on
    {"event": "asked", "trial": 7, "values": {"lr": 0.1}, "epochs": 3, "source": [7, 1], ...}
    {"event": "epoch", "trial": 7, "number": 2, "validation": {"loss": ..., "accuracy": ...}, ...}
    {"event": "told", "trial": 7, "epochs": 3, "score": 0.91, "failed": null, ...}
    {"event": "lost", "group": 2, "trial": 7, ...}        ranks died; the job is handed out again
    {"event": "winner", "trial": 7, "epochs": 9, "test": {...}, ...}

A line is written before what it says takes effect, and none is changed. So a search that was killed
goes on from its file: jobs that were asked for and not told of are done again, and what is asked
for must be what the file says. `seconds` count from the beginning, without the time between
processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpicoll.base import json_lines
from mpicoll.base.json_lines import Appender, Attempt, Record
from mpicoll.train.search import methods
from mpicoll.train.search.methods import Job, Method
from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space

FILE = "trials.jsonl"
#: What records hold, by their event, and of which type.
_HELD: dict[str, dict[str, Any]] = {
    "search": {"space": dict, "options": dict},
    "asked": {"trial": int, "values": dict, "epochs": int, "source": (list, type(None))},
    "epoch": {"trial": int, "number": int, "validation": dict},
    "told": {
        **{"trial": int, "epochs": int, "score": (int, float, type(None))},
        **{"validation": dict, "failed": (str, type(None))},
    },
    "winner": {"trial": int, "epochs": int, "test": dict},
}
#: Options that may be others when a search goes on.
_FREE = ("out", "ranks_per_trial", "survive")


class Trials:
    """A method whose jobs and scores are written to a file; it goes on from what is there.

    Args:
        folder: Where the file is, or is made.
        space: What is searched.
        options: How.
        resume: Whether to go on from a file that is there.

    Attributes:
        method: The method.
        records: All of the file, old ones too.

    Raises:
        FileExistsError: There is a file, and `resume` is false.
        ValueError: The file is of another search, or says other jobs than the method gives.
        OSError: It cannot be read or written.
    """

    def __init__(self, folder: Path, space: Space, options: SearchOptions, resume: bool) -> None:
        path = folder / FILE
        self.records: list[Record] = read(path) if _has_begun(path) else []
        if self.records and not resume:
            raise FileExistsError(
                f"{path} exists: continue with --resume, or give another folder with --output"
            )
        if self.records:
            _require_same(path, self.records[0], space, options)
        self.method = methods.make_method(space, options)
        replay(path, self.records, self.method)
        self._pending = list(self.method.waiting.values())
        self._start = time.monotonic() - max((r["seconds"] for r in self.records), default=0.0)
        run, attempt = next(reversed(json_lines.attempts(path).items()), ("", 0))
        self._stamp = Attempt(run or json_lines.new_run(), attempt + 1)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = Appender(path)
        self._write("search", space=space.text, options=asdict(options))

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._start

    def ask(self) -> Job | None:
        """The next job, as of `Method.ask`; first those that an earlier process has left."""
        if self._pending:
            return self._pending.pop(0)
        job = self.method.ask()
        if job is not None:
            self._write("asked", **asdict(job))
        return job

    def tell(self, job: Job, score: float | None, **facts: Any) -> None:
        """A job is done.

        Args:
            job, score: As of `Method.tell`.
            facts: What else to write: `validation`, and `failed`, why it has no score.
        """
        self._write("told", trial=job.trial, epochs=job.epochs, score=score, **facts)
        self.method.tell(job, score)

    def again(self, job: Job) -> None:
        """A job that was asked for will not be told of; it is the next to be asked for."""
        self._pending.insert(0, job)

    def note(self, event: str, **facts: Any) -> None:
        """Write down what no decision depends on."""
        self._write(event, **facts)

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()

    def _write(self, event: str, **facts: Any) -> None:
        record = {"event": event, **facts, "seconds": round(self.seconds, 6)}
        self._file.append(self._stamp, record)
        self.records.append(record)


def read(path: Path) -> list[Record]:
    """The records of a file; a line that is torn is left out, with a warning.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no file of a search.
    """
    found: list[Record] = []

    def take(record: Record) -> None:
        _require_whole(record)
        found.append(record)

    json_lines.read(path, take)
    if not found or found[0]["event"] != "search":
        raise ValueError(f"{path} does not begin as the file of a search: give another folder")
    return found


def _has_begun(path: Path) -> bool:
    """Whether a file has a first line; on a full disk it may have been made without one."""
    if not path.exists():
        return False
    with open(path, "rb") as file:
        return file.readline().endswith(b"\n")


def _require_whole(record: Record) -> None:
    """Refuse a record that lacks what its event says.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of another type.
    """
    for name, kind in {"seconds": (int, float), **_HELD.get(record["event"], {})}.items():
        value = record[name]
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}")
    source = record.get("source")
    if source is not None and [type(number) for number in source] != [int, int]:
        raise TypeError(f"source is {source!r}")


def machine(records: list[Record]) -> tuple[Space, SearchOptions]:
    """The space and the options of a file.

    Raises:
        ValueError: They are none that this mpicoll knows.
    """
    try:
        return Space.of(records[0]["space"]), SearchOptions(**records[0]["options"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its first line lacks what a search is: {error!r}") from None


def replay(path: Path, records: Iterable[Mapping[str, Any]], method: Method) -> int:
    """Ask and tell a method as a file says; the number of jobs that were asked for.

    Raises:
        ValueError: It gives other jobs than the file says.
    """
    count = 0
    for record in records:
        if record["event"] == "asked":
            job, written = method.ask(), job_of(record)
            count += 1
            if job != written:
                raise ValueError(
                    f"{path}: job {count} is {written} there, and the method gives {job}: the file "
                    "was changed, or is of another version of mpicoll"
                )
        elif record["event"] == "told":
            place = record["trial"], record["epochs"]
            if place not in method.waiting:
                raise ValueError(
                    f"{path}: trial {place[0]} is told of after {place[1]} epochs, and was not "
                    "asked for: the file was changed"
                )
            method.tell(method.waiting[place], record["score"])
    return count


def job_of(record: Mapping[str, Any]) -> Job:
    """The job that a record of `asked` says."""
    source = record["source"]
    values = dict(record["values"])
    return Job(record["trial"], values, record["epochs"], source and (source[0], source[1]))


def told(records: Iterable[Record]) -> Iterator[Record]:
    """The records of jobs that have a score, each with the values of its trial."""
    values: dict[tuple[int, int], Any] = {}
    for record in records:
        if record["event"] == "asked":
            values[record["trial"], record["epochs"]] = record["values"]
        if record["event"] == "told" and record["score"] is not None:
            yield {**record, "values": values[record["trial"], record["epochs"]]}


def best(records: Iterable[Record]) -> Record | None:
    """The record of the job with the highest score, the first of several."""
    return max(told(records), key=lambda record: record["score"], default=None)


def failures(records: Iterable[Record]) -> list[Record]:
    """The records of jobs that have failed."""
    return [record for record in records if record["event"] == "told" and record["failed"]]


def epochs_spent(records: Iterable[Record]) -> int:
    """Epochs trained, of all trials together."""
    return sum(record["event"] == "epoch" for record in records)


def _require_same(path: Path, first: Record, space: Space, options: SearchOptions) -> None:
    """Refuse to go on with another search.

    Raises:
        ValueError: Names what differs.
    """
    there = {"space": first.get("space"), **dict(first.get("options", {}))}
    here = {"space": space.text, **asdict(options)}
    for name, value in here.items():
        if name not in _FREE and there.get(name) != value:
            raise ValueError(
                f"{path}: {name} is {there.get(name)} there and {value} now: give what the file "
                "has, or another folder"
            )
