"""A run read again from its metrics: what a report shows, and one trace of all ranks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class History:
    """What the files of a folder of metrics say.

    Attributes:
        config: The run's configuration.
        ranks: Number of ranks.
        predicted: Seconds of communication a step, by the fitted model, or None.
        epochs: Epochs, as `Epoch` has them, in order.
        steps: For each rank its steps, as `Step` has them.
        clocks: For each rank (local, ahead) of each comparison of clocks.
        served: For each data server what it did in all: batches, samples, seconds, and seconds of
            them in which it prepared.
    """

    config: dict[str, Any] = field(default_factory=dict)
    ranks: int = 0
    predicted: float | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    clocks: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    served: dict[int, Counter[str]] = field(default_factory=dict)


def read(folder: Path) -> History:
    """Read the metrics of a run; of one that went on, of its last launch what differs.

    A last line that is incomplete is left out.

    Raises:
        OSError: A file cannot be read.
        ValueError: A line is no JSON object of the kind.
    """
    found = History()
    paths = [*folder.glob("rank-*.jsonl"), *folder.glob("data-*.jsonl")]
    for path in sorted(paths, key=lambda path: int(path.stem[5:])):
        rank = int(path.stem[5:])
        for number, line in enumerate(path.read_text().splitlines(keepends=True), 1):
            if not line.endswith("\n"):
                continue
            try:
                _add(found, rank, json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is no line of metrics: {error}") from None
    if not found.ranks:
        raise ValueError(f"{folder} has no run: rank-0.jsonl has no line of the event run")
    return found


def _add(found: History, rank: int, line: dict[str, Any]) -> None:
    event = line.pop("event")
    if event == "run":
        found.config, found.ranks = line["config"], int(line["ranks"])
        found.predicted = line.get("predicted")
        # A run that goes on has other clocks.
        found.clocks.clear()
    elif event == "epoch":
        found.epochs.append(line)
    elif event == "step":
        found.steps.setdefault(rank, []).append(line)
    elif event == "clock":
        found.clocks.setdefault(rank, []).append((line["local"], line["ahead"]))
    elif event == "served":
        found.served.setdefault(rank, Counter()).update(line)


def phases(found: History) -> dict[int, dict[str, float]]:
    """Mean seconds a step of each rank, by what it did."""
    names = ("loading", "compute", "hidden", "exposed", "waiting")
    return {
        rank: {name: float(np.mean([step[name] for step in steps])) for name in names}
        for rank, steps in found.steps.items()
    }


def chrome(found: History) -> dict[str, Any]:
    """All ranks in the format of Chrome's and Perfetto's trace viewers.

    A rank is a process; its steps are in one row, and each bucket under way in one of its own.
    Times are those of rank 0's clock: others are corrected by what the comparisons of clocks say,
    and between two of them along a straight line. Microseconds after the first step began.
    """
    events: list[dict[str, Any]] = []
    for rank, steps in found.steps.items():
        events.append(
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        )
        for step in steps:
            began = _on_first_clock(found, rank, step.get("began") or 0.0)
            if not began:
                continue
            about = {"step": step["number"], "epoch": step["epoch"]}
            for name, start, end in step["spans"]:
                bucket = name.startswith("bucket ")
                events.append(
                    {
                        "ph": "X",
                        "name": name,
                        "cat": "communication" if bucket else "step",
                        "pid": rank,
                        "tid": 1 + int(name.split()[1]) if bucket else 0,
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
