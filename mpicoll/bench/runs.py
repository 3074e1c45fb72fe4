"""Runs of several files together: of one machine only, and none counted twice.

A launch differs from the next one on the same machine, and several are needed to say how much. But
times of different machines, or through different MPI libraries, are answers to different
questions; putting them together must be wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mpicoll.bench import records
from mpicoll.bench.records import Run

_NUMBER, _CONTAINER = re.compile(r"\d+"), re.compile(r"[0-9a-f]{12}")


def load(paths: Iterable[Path | str], *, mix: bool = False) -> list[Run]:
    """Read the runs of some files, those that have points, in the order given.

    Args:
        paths: Files that ``mpicoll bench`` wrote.
        mix: Whether runs of different machines or MPI libraries may come together.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file holds no point, or some of a machine that it does not tell, if two
            hold the same run, or if runs are of different machines; the message says in what they
            differ.
    """
    found: dict[str, tuple[Path | str, Run]] = {}
    for path in paths:
        for run in records.read(path):
            if run.name in found:
                raise ValueError(
                    f"run {run.name} is in {found[run.name][0]} and in {path}; name each once"
                )
            if run.points and not (run.facts or mix):
                raise ValueError(
                    f"{path} has points of run {run.name}, and not the line before them that says "
                    "where they were measured; give the whole file, or --mix to use them"
                )
            if run.points:
                found[run.name] = path, run
    if not found:
        raise ValueError("no file is given; give files that `mpicoll bench` wrote")
    if not mix:
        _refuse_mixture(list(found.values()))
    return [run for _, run in found.values()]


def machine(facts: Mapping[str, Any]) -> dict[str, str]:
    """What must be equal for times to be comparable, as far as the facts of a run tell.

    A cluster gives other nodes to each launch, and more or fewer of them; so of the names of hosts
    it is what those of one cluster have in common, see :func:`_kind`.
    """
    mine = {
        "MPI library": str(facts.get("mpi", "")).partition(",")[0],
        "processor": str(facts.get("processor", "")),
        "cores of a host": str(facts.get("cpus", "")),
        "hosts": ", ".join(sorted({_kind(name) for name in facts.get("hosts", {})})),
        "cluster": str(facts.get("slurm", {}).get("SLURM_CLUSTER_NAME", "")),
    }
    return {name: value for name, value in mine.items() if value}


def nodes_of(facts: Mapping[str, Any], ranks: int) -> tuple[int, ...]:
    """The node of each of the first ranks of a launch; all on one where the facts do not tell."""
    nodes = {
        rank: number
        for number, host in enumerate(facts.get("hosts", {}).values())
        for rank in host["ranks"]
    }
    return tuple(nodes.get(rank, 0) for rank in range(ranks))


def _kind(host: str) -> str:
    """The name of a host without what tells it from its neighbours: its numbers, ``node#.site``.

    Containers that nobody has named are called by twelve hexadecimal digits, each by others.
    """
    return "#" if _CONTAINER.fullmatch(host) else _NUMBER.sub("#", host)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """In what the machines of two runs differ, in words; a fact that only one has is no matter."""
    mine, theirs = machine(first), machine(second)
    return [
        f"{name} {mine[name]!r} and {theirs[name]!r}"
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]


def _refuse_mixture(found: list[tuple[Path | str, Run]]) -> None:
    first_path, first = found[0]
    for path, run in found[1:]:
        differing = differences(first.facts, run.facts)
        if differing:
            raise ValueError(
                f"{first_path} (run {first.name}) and {path} (run {run.name}) are of different "
                f"machines: {'; '.join(differing)}; give them apart, or --mix to put them together"
            )
