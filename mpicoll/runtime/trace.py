"""What a program's collectives did, step by step, in files: ``MPICOLL_TRACE=FILE``.

Rank r of the job writes ``FILE.r``: one JSON object a line, complete after every line, so that
nothing is lost where a program hangs or is ended.  The first line tells the number of ranks.  Every
other line is a step:

* ``comm`` (a name of the communicator, the same on all its ranks), ``call`` (number of the call
  on it), ``rank`` (in it), ``collective``, ``algorithm``;
* ``step``: ``send``, ``recv``, ``copy`` or ``fold``, with ``peer`` (of a message), ``bytes``,
  ``channel`` and ``phase`` (a part of a round); or, last, ``call``, with the ``bytes`` of the whole
  vector and, if it failed, ``error``;
* ``start`` and ``end``, seconds since the epoch by the node's clock: posted and found complete.

The MPI library's own collectives have no other step than ``call``.  Where they are not blocking
it has ``"complete": false``: its end is that of the call that has started them, because the library
alone knows when they end.  Each start of a persistent operation is a call.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mpicoll.base.consensus import Problem, attempt
from mpicoll.base.wording import plural

if TYPE_CHECKING:
    from mpi4py import MPI

#: Numbers of the communicators whose rank 0 is this process.
_NAMES = itertools.count()
_FILES: dict[str, IO[str]] = {}
_LOCK = threading.Lock()


def tracer(private: MPI.Intracomm, path: str) -> Tracer:
    """The trace of a communicator, under a name that its rank 0 gives it.  Collective.

    Raises:
        ValueError: on all ranks, if one cannot write its file.
    """
    from mpi4py import MPI  # traces are read without it

    world = MPI.COMM_WORLD
    place = world.Get_rank(), world.Get_size()
    name = private.bcast(f"{place[0]}.{next(_NAMES)}")
    made = attempt(private, lambda: Tracer(path, place, name, private.Get_rank()), OSError)
    if isinstance(made, Problem):
        raise ValueError(f"MPICOLL_TRACE={path!r}: {made.text}; name files that can be written")
    return made


class Tracer:
    """Writes the steps of one communicator.

    Args:
        path: the files' common name.
        place: rank in the job, and its number of ranks.
        comm: the communicator's name.
        rank: this rank in it.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str, place: tuple[int, int], comm: str, rank: int) -> None:
        if path not in _FILES:
            name = f"{path}.{place[0]}"
            _FILES[path] = open(name, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
            _write(_FILES[path], {"ranks": place[1]})
        self._file = _FILES[path]
        self._comm, self._rank = comm, rank
        self._calls = 0

    def call(self, collective: str, algorithm: str) -> CallTrace:
        """The next call on this communicator begins."""
        self._calls += 1
        known = {
            "comm": self._comm,
            "call": self._calls,
            "rank": self._rank,
            "collective": collective,
            "algorithm": algorithm,
        }
        return CallTrace(self._file, known)


class CallTrace:
    """Writes the steps of one call."""

    def __init__(self, file: IO[str], known: dict[str, Any]) -> None:
        self._file, self._known = file, known
        self._start = time.time()

    def step(
        self, kind: str, peer: int | None, nbytes: int, channel: int, phase: int, start: float
    ) -> None:
        """A step ends now."""
        about: dict[str, Any] = {} if peer is None else {"peer": peer}
        about |= {"bytes": nbytes, "channel": channel, "phase": phase}
        _write(
            self._file, {**self._known, "step": kind, **about, "start": start, "end": time.time()}
        )

    def end(self, nbytes: int, error: BaseException | None = None, complete: bool = True) -> None:
        """The call ends now; or it has been started, and nobody will tell when it ends."""
        about: dict[str, Any] = {"step": "call", "bytes": nbytes}
        if not complete:
            about["complete"] = False
        if error is not None:
            about["error"] = f"{type(error).__name__}: {error}"
        _write(self._file, {**self._known, **about, "start": self._start, "end": time.time()})


def _write(file: IO[str], record: dict[str, Any]) -> None:
    with _LOCK:  # threads share a file
        file.write(json.dumps(record) + "\n")


def read(path: str | Path) -> list[dict[str, Any]]:
    """The steps in the files of all ranks, or in one of these files, in order of their start.

    A last line that is incomplete is left out.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is no trace.
    """
    if Path(path).is_file():
        return sorted(_records(Path(path))[1], key=lambda record: record["start"])
    ranks, found = _records(Path(f"{path}.0"))
    for rank in range(1, ranks):
        found += _records(Path(f"{path}.{rank}"))[1]
    return sorted(found, key=lambda record: record["start"])


def _records(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Number of ranks of the job, and one rank's steps."""
    complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
    try:
        head, *steps = [json.loads(line) for line in complete.splitlines()]
        return int(head["ranks"]), [step for step in steps if step["start"] <= step["end"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no trace: MPICOLL_TRACE=FILE makes FILE.0, ...") from None


def lines(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The steps as text, call by call; times in microseconds from the call's first step on."""
    calls: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in records:
        calls.setdefault((record["comm"], record["call"]), []).append(record)
    for (comm, number), steps in calls.items():
        begin = min(step["start"] for step in steps)
        first = next((step for step in steps if step["step"] == "call"), steps[0])
        size = f", {plural(first['bytes'], 'byte')}" if first["step"] == "call" else ", not ended"
        yield f"{first['collective']} {first['algorithm']}{size} (call {number} on {comm})"
        for step in steps:
            yield "  " + _line(step, begin)


def _line(step: dict[str, Any], begin: float) -> str:
    start, took = 1e6 * (step["start"] - begin), 1e6 * (step["end"] - step["start"])
    text = f"{start:10.1f} +{took:8.1f}  rank {step['rank']:<4} {step['step']:<4}"
    if step["step"] == "call":
        text += "" if step.get("complete", True) else "  started"
        return text + (f"  {step['error']}" if "error" in step else "")
    peer = f"{step['peer']:>5}" if "peer" in step else "     "
    return (
        f"{text} {peer} {step['bytes']:>10} bytes  channel {step['channel']} phase {step['phase']}"
    )
