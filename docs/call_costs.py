"""The table of what benchmarks/api_cost.py has recorded in benchmarks/results/api_cost.jsonl.

For each launch a line that says where it ran, then a line for each method, spelling and size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, TypeAlias

from tables import list_table

from mpicoll.base.sizes import format_size

RECORDS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "api_cost.jsonl"


#: Library, ranks, processor.
Machine: TypeAlias = tuple[str, int, str]
#: Method, spelling, bytes.
Row: TypeAlias = tuple[str, str, int]
#: A row of the table is slower where it is so in this relation and by more than these microseconds.
SLOWER, MICROSECONDS = 1.05, 0.15
NON_BLOCKING = ("Iallreduce", "Ibcast", "Iallgather", "Ialltoall")


def pages() -> dict[str, str]:
    """What docs/measurements.rst includes."""
    if not RECORDS.exists():
        return {"call_costs.inc": "Not recorded yet."}
    found: dict[Machine, dict[Row, list[dict[str, Any]]]] = {}
    machine: Machine = "", 0, ""
    for line in map(json.loads, RECORDS.read_text(encoding="utf-8").splitlines()):
        if "method" in line:
            row = line["method"], line["spelling"], line["bytes"]
            found.setdefault(machine, {}).setdefault(row, []).append(line)
        else:
            machine = library(line["mpi"]), line["ranks"], line["processor"]
    head = ["library", "ranks", "processor", "launches", "rows", "mean", "non-blocking", "slower"]
    rows = [
        [*map(str, machine), str(max(map(len, found[machine].values()))), *summary(found[machine])]
        for machine in sorted(found)
    ]
    first = max(found, key=lambda machine: (machine[0], -machine[1]))
    lines = [
        "Ratio of the shortest times, mpicoll / mpi4py: medians of the launches, and their",
        f"geometric means.  A row is slower above {SLOWER} if that is more than {MICROSECONDS} µs.",
        "",
        *list_table(head, rows),
        "",
        f"By bytes of the buffer, with {first[0]} on {first[1]} ranks:",
        "",
        *by_bytes(found[first]),
    ]
    return {"call_costs.inc": "\n".join(lines)}


def library(version: str) -> str:
    """The short name and the number of an MPI library: Open MPI 5.0.11."""
    name = "Open MPI" if version.startswith("Open MPI") else "MPICH"
    number = re.search(r"\d+\.\d+\.\d+", version)
    return f"{name} {number[0]}" if number else name


def ratio(lines: list[dict[str, Any]], name: str = "ratio") -> float:
    """The median over launches."""
    return median(line[name] for line in lines)


def summary(rows: dict[Row, list[dict[str, Any]]]) -> list[str]:
    """Number of rows, geometric means, and which rows are slower."""
    slower = Counter(
        row[0]
        for row, lines in rows.items()
        if min(ratio(lines), ratio(lines, "median_ratio")) > SLOWER
        and median(line["ours"] - line["native"] for line in lines) > MICROSECONDS
    )
    started = [ratio(lines) for row, lines in rows.items() if row[0] in NON_BLOCKING]
    return [
        str(len(rows)),
        f"{geometric_mean(map(ratio, rows.values())):.2f}",
        f"{geometric_mean(started):.2f}",
        ", ".join(f"{name} ({count})" for name, count in slower.most_common()) or "none",
    ]


def by_bytes(rows: dict[Row, list[dict[str, Any]]]) -> list[str]:
    """A line for each method and spelling, a column for each size."""
    sizes = sorted({size for *_, size in rows})
    kinds = sorted({(method, spelling) for method, spelling, _ in rows})
    lines = [
        [method, spelling]
        + [
            f"{ratio(rows[method, spelling, size]):.2f}" if (method, spelling, size) in rows else ""
            for size in sizes
        ]
        for method, spelling in kinds
    ]
    return list_table(["method", "buffers", *map(format_size, sizes)], lines)
