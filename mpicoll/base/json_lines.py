"""Files of JSON lines: records are appended, and read again whatever has ended their writer.

One rule for all of them:

* A process that is killed leaves its last line torn, at most.  Who appends next ends that line; who
  reads drops it with a warning.
* Every record says which ``run`` it is of, and which ``attempt`` of that run has written it.  A run
  that has ended early and goes on is the same run, in its next attempt.
* What a later attempt repeats replaces the earlier (`latest`).
"""

from __future__ import annotations

import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from mpicoll.base.wording import plural

Record = dict[str, Any]


class Attempt(NamedTuple):
    """Which attempt, counted from 1, of which run."""

    run: str
    attempt: int = 1


def new_run() -> str:
    """A name that no other run has: the time (UTC), and chance."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


class Appender:
    """A file that records are appended to; opening it ends a torn line.

    Args:
        path: The file; it is made if need be and never shortened.
        durable: Whether a record is on the disk when `append` returns, and survives the host; by
            default it survives the process.

    Raises:
        OSError: The file cannot be opened or, later, written.
    """

    def __init__(self, path: Path | str, durable: bool = False) -> None:
        self._file = open(path, "ab+", buffering=0)  # noqa: SIM115 - closed by close()
        self._durable = durable
        try:
            end = self._file.seek(0, os.SEEK_END)
            if end:
                self._file.seek(end - 1)
                if self._file.read(1) != b"\n":
                    self._file.write(b"\n")
        except OSError:
            self._file.close()
            raise

    def append(self, attempt: Attempt, record: Mapping[str, Any]) -> None:
        """Append a record of an attempt; numbers that are not finite become null."""
        line = {**attempt._asdict(), **record}
        try:
            text = json.dumps(line, separators=(",", ":"), allow_nan=False)
        except ValueError:
            text = json.dumps(finite(line), separators=(",", ":"))
        left = text.encode() + b"\n"
        while left:
            left = left[self._file.write(left) :]
        if self._durable:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read(path: Path | str, take: Callable[[Record], object]) -> None:
    """Give the records of a file to a function, in the order written.

    A line that is no JSON object, or that the function refuses by KeyError, TypeError or
    ValueError, is dropped with a warning that names it; lines with the same fault are told of
    together.

    Raises:
        OSError: The file cannot be read.
    """
    dropped: dict[str, list[int]] = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            fault = _fault(line, take)
            if fault:
                dropped.setdefault(fault, []).append(number)
    for fault, (first, *others) in dropped.items():
        more = f" and {plural(len(others), 'line')} after it" if others else ""
        warnings.warn(f"{path}, line {first}{more} dropped: {fault}", stacklevel=3)


def _fault(line: bytes, take: Callable[[Record], object]) -> str:
    """Give a line to the function; why that cannot be, "" where it can."""
    if not line.strip():
        return ""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "not complete JSON"
    if not isinstance(record, dict):
        return "not a JSON object"
    try:
        take(record)
    except (KeyError, TypeError, ValueError) as error:
        return repr(error)
    return ""


def attempts(path: Path | str) -> dict[str, int]:
    """The runs of a file in the order in which they began, and the last attempt of each.

    Of a file that is not there, none.

    Raises:
        OSError: The file cannot be read.
    """
    found: dict[str, int] = {}

    def take(record: Record) -> None:
        run, attempt = stamp(record)
        found[run] = max(attempt, found.get(run, 0))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # who reads what the records say is told
        if os.path.exists(path):
            read(path, take)
    return found


def stamp(record: Mapping[str, Any]) -> Attempt:
    """Which attempt has written a record; in files of earlier versions, the first of a run "".

    Raises:
        ValueError: It says something else.
    """
    run, attempt = record.get("run", ""), record.get("attempt", 1)
    if not isinstance(run, str) or not isinstance(attempt, int) or attempt < 1:
        raise ValueError(f"a record of attempt {attempt!r} of run {run!r}")
    return Attempt(run, attempt)


def latest(records: Iterable[Record], key: Callable[[Record], Hashable]) -> list[Record]:
    """Records without those that a run has written again.

    Args:
        records: In the order written.
        key: What tells a record from the others of its run.

    Returns:
        For each run and key the record of its last attempt, where the first one was.
    """
    found: dict[Hashable, Record] = {}
    for record in records:
        run, attempt = stamp(record)
        before = found.get((run, key(record)))
        if before is None or attempt >= stamp(before).attempt:
            found[run, key(record)] = record
    return list(found.values())


def finite(value: Any) -> Any:
    """JSON has no word for what is not a finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value
