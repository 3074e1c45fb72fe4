"""The table of what benchmarks/profile_overhead.py has recorded.

For each launch a line that says where it ran, then a line for each method and size.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from tables import list_table

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
RECORDS = FOLDER / "profile_overhead.jsonl"


def pages() -> dict[str, str]:
    """What docs/profile.rst includes."""
    if not RECORDS.exists():
        return {"profile_costs.inc": "Not recorded yet."}
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    launches = []
    for line in map(json.loads, RECORDS.read_text(encoding="utf-8").splitlines()):
        if "method" not in line:
            launches.append(line)
            continue
        key = line["method"], line["bytes"]
        found.setdefault(key, []).append((line["plain"], line["recorded"]))
    rows = []
    for (method, nbytes), pairs in found.items():
        plain = median(first for first, _ in pairs)
        added = median(second - first for first, second in pairs)
        rows.append([method, f"{nbytes:,}", f"{plain:.2f}", f"{added:+.2f}"])
    where = launches[0]
    lines = [f"Shortest times, medians over {len(launches)} launches, on {where['processor']}.", ""]
    head = ["method", "bytes", "mpi4py, one rank [us]", "added by recording [us]"]
    return {"profile_costs.inc": "\n".join(lines + list_table(head, rows))}
