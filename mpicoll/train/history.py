"""Reads a run from its metrics, for reports and for one trace of all ranks."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpicoll.base import json_lines
from mpicoll.base.json_lines import Record
from mpicoll.train.records import upgraded

#: What spans of a step begin with that are of messages.
_SENT = ("bucket", "gather", "reduce")


@dataclass
class History:
    """The run that began last, from a folder of metrics.

    Attributes:
        run: Its name.
        folder: The name of the folder.
        attempt: Number of its last attempt.
        config: The run's configuration, as the last attempt has it.
        ranks: Number of ranks, of that one too.
        predicted: Seconds of communication a step, by the fitted model, or None.
        epochs: Epochs, as `Epoch` has them, in order.
        steps: For each rank its steps, as `Step` has them, in order.
        clocks: For each rank (local, ahead) of each comparison of clocks of the last attempt.
        served: For each data server what it did in all attempts: batches, samples, seconds, and
            seconds of them in which it prepared.
        shards: For each shard of a parameter server its trace, as `Event` and `Change` have it.
    """

    run: str = ""
    attempt: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    ranks: int = 0
    predicted: float | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    clocks: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    served: dict[int, Counter[str]] = field(default_factory=dict)
    folder: str = ""
    shards: dict[int, list[Record]] = field(default_factory=dict)


#: For each event what tells its records from others of the run and rank.
_KEYS: dict[str, tuple[str, ...]] = {
    "run": ("attempt",),
    "step": ("number",),
    "epoch": ("number",),
    "clock": ("attempt", "local"),
    "served": ("attempt",),
}


def read(folder: Path) -> History:
    """Read the metrics of a run; where a folder has several, of the last, with a warning.

    What an attempt repeats counts once.  A line that is torn, or no line of metrics, is left out
    with a warning.

    Raises:
        OSError: A file cannot be read.
        ValueError: There is no run.
    """
    records: list[Record] = []
    paths = [*folder.glob("rank-*.jsonl"), *folder.glob("data-*.jsonl")]
    for path in sorted(paths, key=lambda path: int(path.stem[5:])):
        json_lines.read(path, partial(_take, records, int(path.stem[5:])))
    runs = [record for record in records if record["event"] == "run"]
    if not runs:
        raise ValueError(f"{folder} has no run: rank-0.jsonl has no line of the event run")
    names = [*dict.fromkeys(record["run"] for record in runs)]
    if len(names) > 1:
        others = ", ".join(name or "one without a name" for name in names[:-1])
        warnings.warn(
            f"{folder} has metrics of {len(names)} runs: this is {names[-1]}, the last; before it "
            f"there were {others}",
            stacklevel=2,
        )
    found = _history([record for record in records if record["run"] == names[-1]])
    found.folder = folder.resolve().name
    for number, path in sorted((int(p.stem[6:]), p) for p in folder.glob("shard-*.jsonl")):
        trace = found.shards.setdefault(number, [])
        json_lines.read(path, partial(_take_event, trace, found.run))
    return found


def _take_event(trace: list[Record], run: str, line: Record) -> None:
    """Keep what a shard has written in a run."""
    if json_lines.stamp(line).run == run:
        trace.append(line)


def _take(records: list[Record], rank: int, line: Record) -> None:
    """Keep a record, with the rank and with the run and the attempt that it is of."""
    record = {**line, **json_lines.stamp(line)._asdict(), "rank": rank}
    if record["event"] == "epoch":
        record = upgraded(record)
    for name in _KEYS[record["event"]]:
        record[name]
    records.append(record)


def _history(records: list[Record]) -> History:
    """What the records of one run say."""

    def key(record: Record) -> tuple[Any, ...]:
        event = record["event"]
        return (event, record["rank"], *(record[name] for name in _KEYS[event]))

    records = json_lines.latest(records, key)
    attempts = sorted((r for r in records if r["event"] == "run"), key=lambda r: int(r["attempt"]))
    last = attempts[-1]
    found = History(last["run"], last["attempt"], last["config"], int(last["ranks"]))
    found.predicted = last.get("predicted")
    for record in sorted(records, key=lambda r: r.get("number", 0)):
        event, rank = record["event"], record["rank"]
        if _is_repeated(record, attempts):
            continue
        if event == "epoch":
            found.epochs.append(record)
        elif event == "step":
            found.steps.setdefault(rank, []).append(record)
        elif event == "clock" and record["attempt"] == found.attempt:
            found.clocks.setdefault(rank, []).append((record["local"], record["ahead"]))
        elif event == "served":
            did = {name: record[name] for name in ("batches", "samples", "preparing", "seconds")}
            found.served.setdefault(rank, Counter()).update(did)
    found.steps = dict(sorted(found.steps.items()))
    return found


def _is_repeated(record: Record, attempts: list[Record]) -> bool:
    """Whether a later attempt begins before a step or an epoch, perhaps on other ranks."""
    later = [begun for begun in attempts if begun["attempt"] > record["attempt"]]
    if record["event"] == "step":
        return any(record["number"] > begun.get("step", math.inf) for begun in later)
    if record["event"] == "epoch":
        return any(record["number"] >= begun.get("epoch", math.inf) for begun in later)
    return False


#: What a step is made of: each second of it is in one of these.
PARTS_OF_A_STEP = ("loading", "compute", "exposed", "waiting", "servers", "update", "other")


def parts(found: History) -> dict[int, dict[str, float]]:
    """Mean seconds a step of each rank, by :data:`PARTS_OF_A_STEP`, which add up to ``seconds``.

    ``other`` is the rest until the next step begins: callbacks, metrics, checkpoints.  ``hidden``
    is communication during ``compute``, which is in no part of its own.
    """
    return {rank: _mean(in_parts(steps)) for rank, steps in found.steps.items()}


def in_parts(steps: list[Record]) -> list[dict[str, float]]:
    """The same for each of a rank's steps."""
    return [_parts(*both) for both in zip(steps, [*steps[1:], None], strict=True)]


def mean_of_ranks(found: History) -> dict[str, float]:
    """The same of all ranks' steps together."""
    return _mean([row for steps in found.steps.values() for row in in_parts(steps)])


def elapsed(found: History) -> dict[int, float]:
    """Seconds that the steps of the first rank had taken, by the number of the step."""
    steps = next(iter(found.steps.values()), [])
    sums = accumulate(row["seconds"] for row in in_parts(steps))
    return {step["number"]: seconds for step, seconds in zip(steps, sums, strict=True)}


def _parts(step: Record, following: Record | None) -> dict[str, float]:
    spans: Counter[str] = Counter()
    end = 0.0
    for name, first, last in step["spans"]:
        spans[name] += last - first
        end = max(end, last)
    served = "pull" in spans  # by a parameter server: what its worker awaits, servers grant
    found = {name: step[name] for name in ("loading", "compute", "exposed")}
    found["exposed"] += spans["share"]
    found["waiting"] = 0.0 if served else step["waiting"]
    found["servers"] = step["waiting"] if served else 0.0
    # A worker that has shards, too, serves them between two layers of its own.
    found["update"] = step["hidden"] if served else spans["update"] - spans["share"]
    made = sum(found.values())
    found["other"] = max(0.0, (_until(step, following) or end) - made)
    return {**found, "hidden": 0.0 if served else step["hidden"], "seconds": made + found["other"]}


def _until(step: Record, following: Record | None) -> float | None:
    """Seconds from the beginning of a step until that of the next one in its epoch."""
    if following is None or not step.get("began"):
        return None
    same = all(step[name] == following[name] for name in ("attempt", "epoch"))
    return float(following["began"] - step["began"]) if same else None


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


class Granted(NamedTuple):
    """What a shard of a parameter server did.

    Attributes:
        pushes: Gradients that came.
        pulls: Parameters that it gave to workers that asked.
        sends: Parameters that it sent unasked.
        ahead: The most steps that a worker it gave parameters to was ahead of the slowest one.
        bound: The least and the largest bound S on that; infinite where there was none.
    """

    pushes: int
    pulls: int
    sends: int
    ahead: int
    bound: tuple[float, float]


def granted(trace: list[Record]) -> Granted:
    """What a shard's trace says of it."""
    counted: Counter[str] = Counter(event["kind"] for event in trace)
    workers = {event["worker"] for event in trace if "worker" in event}
    clocks = dict.fromkeys(workers, 0)
    ahead, bounds = 0, [0.0]
    for event in trace:
        if event["kind"] == "change":
            continue
        worker, clock = event["worker"], event["clock"]
        if event["kind"] == "push":
            clocks[worker] = clock + 1
        elif event["kind"] == "leave":  # it makes no more steps of the epoch
            clocks.pop(worker, None)
            if not clocks:
                clocks = dict.fromkeys(workers, int(clock))
        else:
            clocks[worker] = max(clock, clocks.get(worker, clock))
            ahead = max(ahead, clock - min(clocks.values()))
            bound = event["bound"]
            bounds.append(math.inf if bound is None else bound)
    limits = min(bounds[1:], default=0.0), max(bounds[1:], default=0.0)
    return Granted(counted["push"], counted["pull"], counted["send"], ahead, limits)


def chrome(found: History) -> dict[str, Any]:
    """All ranks in the format of Chrome's and Perfetto's trace viewers.

    A rank is a process; its steps are in one row, and each bucket, or layer that is gathered or
    reduced, in one of its own.
    Times are those of rank 0's clock: others are corrected by what the comparisons of clocks say,
    and between two of them along a straight line. Microseconds after the first step began. Steps
    are those of the last attempt: clocks of others were other clocks.
    """
    events: list[dict[str, Any]] = []
    rows: dict[str, int] = {}
    for rank, steps in found.steps.items():
        events.append(
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        )
        for step in steps:
            if step["attempt"] != found.attempt:
                continue
            began = _on_first_clock(found, rank, step.get("began") or 0.0)
            if not began:
                continue
            about = {"step": step["number"], "epoch": step["epoch"]}
            for name, start, end in step["spans"]:
                kind, _, which = name.partition(" ")
                row = int(which) if kind == "bucket" else len(rows)
                row = 1 + rows.setdefault(name, row) if kind in _SENT else 0
                events.append(
                    {
                        "ph": "X",
                        "name": name,
                        "cat": "communication" if row else "step",
                        "pid": rank,
                        "tid": row,
                        "ts": 1e6 * (began + start),
                        "dur": 1e6 * (end - start),
                        "args": about,
                    }
                )
    first = min((event["ts"] for event in events if event["ph"] == "X"), default=0.0)
    for event in events:
        if event["ph"] == "X":
            event["ts"] = round(event["ts"] - first, 3)
            event["dur"] = round(event["dur"], 3)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _on_first_clock(found: History, rank: int, moment: float) -> float:
    """A moment of a rank's clock, on the clock of rank 0."""
    readings = found.clocks.get(rank)
    if not readings or not moment:
        return moment
    local, ahead = zip(*sorted(readings), strict=True)
    return moment - float(np.interp(moment, local, ahead))
