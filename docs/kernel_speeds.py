"""The tables of what benchmarks/kernels.py has recorded in benchmarks/results/kernels.jsonl.

For each run a line that says when and where it was, then a line for each operator, type and size.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from tables import list_table

from mpicoll.base import json_lines

RECORDS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "kernels.jsonl"

Lines = list[dict[str, Any]]
#: Ratios of each run by operator, dtype and size in bytes.
Ratios = dict[tuple[str, str, int], list[float]]


def load() -> tuple[Lines, Ratios]:
    """The runs, and what they found."""
    lines: Lines = []
    json_lines.read(RECORDS, lines.append)
    found: Ratios = {}
    for line in lines:
        if "op" in line:
            found.setdefault((line["op"], line["dtype"], line["bytes"]), []).append(line["ratio"])
    return [line for line in lines if "started" in line], found


def _cell(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f})" if ratios else ""


def _table(found: Ratios, size: int) -> list[str]:
    ops = list(dict.fromkeys(op for op, _, _ in found))
    dtypes = list(dict.fromkeys(dtype for _, dtype, _ in found))
    rows = [[dtype, *(_cell(found.get((op, dtype, size), [])) for op in ops)] for dtype in dtypes]
    half = -(-len(ops) // 2)  # a table of all would be wider than a page
    parts = (slice(0, half), slice(half, None))
    return [
        line
        for part in parts
        for line in list_table(
            ["", *ops[part]], [[row[0], *row[1:][part]] for row in rows], stub=True
        )
    ]


def pages() -> dict[str, str]:
    """What docs/measurements.rst includes."""
    runs, found = load()
    last = runs[-1]
    lines = [
        f"{last['processor']}, kernels of level {last['level']}, NumPy {last['numpy']}, "
        f"{last['started'][:10]}: medians of {len(runs)} runs, the lowest in brackets.",
        "",
    ]
    for size in sorted({size for _, _, size in found}):
        lines += [f"Arrays of {size >> 10:,} KiB:", "", *_table(found, size)]
    return {"kernels.inc": "\n".join(lines)}
