"""Going on with a sweep that ended early: what of it is in the file already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpicoll.bench import records
from mpicoll.bench.records import Point, Run
from mpicoll.bench.runs import differences
from mpicoll.bench.settings import Key

#: Settings that say how long a sweep may take, not what it measures; the seed is taken over.
_FREE = ("budget", "timeout", "seed")


@dataclass(frozen=True)
class Earlier:
    """What a file holds of a sweep.

    Attributes:
        names: Names of the runs that were parts of it, in the order made.
        points: Their points.
        seed: Of their order; None if there are none.
    """

    names: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    seed: int | None = None

    @property
    def done(self) -> frozenset[Key]:
        """Keys of the points."""
        return frozenset(map(key, self.points))


def key(point: Point) -> Key:
    """What tells a point from the others of its sweep."""
    return Key(point.collective, point.ranks, point.type, point.count, point.choice)


def earlier(path: Path, facts: Mapping[str, Any], seed: int | None) -> Earlier:
    """What a file holds of the sweep that is to go on: of the last one with the same launch number.

    Args:
        path: The file.
        facts: Those of the run that is to go on with it, with its settings.
        seed: The seed that the user wants, None for that of the sweep.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if that sweep has other settings, or is of another machine; the message says
            which.
    """
    settings = facts["settings"]
    runs = {
        run.name: run
        for run in records.scan(path)
        if run.facts.get("settings", {}).get("launch") == settings["launch"]
    }
    if not runs:
        return Earlier()
    last = list(runs.values())[-1]
    differing = _other_settings(last.facts["settings"], settings, seed)
    differing += differences(last.facts, facts)
    if differing:
        raise ValueError(
            f"--resume: {path} has run {last.name} with other settings: {'; '.join(differing)}; "
            "give the same, or write to another file"
        )
    parts = _parts(last, runs)
    points = tuple(point for part in parts for point in part.points)
    return Earlier(tuple(part.name for part in parts), points, last.facts["settings"]["seed"])


def _parts(last: Run, runs: Mapping[str, Run]) -> list[Run]:
    """The run and those that it went on with, first to last."""
    parts, others = [last], dict(runs)
    while (before := others.pop(parts[0].facts.get("resumes", ""), None)) is not None:
        parts.insert(0, before)
    return parts


def _other_settings(then: Mapping[str, Any], now: Mapping[str, Any], seed: int | None) -> list[str]:
    """In which settings two sweeps differ, in words."""
    then = {"device": "cpu", **then}  # earlier files do not say
    names = [name for name in now if name not in _FREE]
    found = [
        f"{name} was {_words(then.get(name))}, is {_words(now[name])}"
        for name in names
        if then.get(name) != now[name]
    ]
    if seed is not None and seed != then["seed"]:
        found.append(f"seed was {then['seed']}, is {seed}")
    return found


def _words(value: Any) -> str:
    """A setting as a user would write it."""
    if isinstance(value, dict):
        return " ".join(f"{name}={_words(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value)
