"""The table of what benchmarks/api_cost.py has recorded in benchmarks/results/api_cost.jsonl.

For each launch a line that says where it ran, then a line for each method, spelling and size.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from tables import list_table

from mpicoll.base.sizes import format_size

RECORDS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "api_cost.jsonl"


def pages() -> dict[str, str]:
    """What docs/measurements.rst includes."""
    if not RECORDS.exists():
        return {"call_costs.inc": "Not recorded yet."}
    found: dict[tuple[int, str, str], dict[int, list[float]]] = {}
    launches, sizes = [], set()
    for line in map(json.loads, RECORDS.read_text(encoding="utf-8").splitlines()):
        if "method" not in line:
            launches.append(line)
            continue
        key = line["ranks"], line["method"], line["spelling"]
        found.setdefault(key, {}).setdefault(line["bytes"], []).append(line["ratio"])
        sizes.add(line["bytes"])
    head = ["ranks", "method", "buffers", *map(format_size, sorted(sizes))]
    rows = [
        [str(ranks), method, spelling]
        + [f"{median(ratios[size]):.2f}" if size in ratios else "" for size in sorted(sizes)]
        for (ranks, method, spelling), ratios in sorted(found.items())
    ]
    lines = [
        f"Ratio of the shortest times, mpicoll / mpi4py, by bytes of the buffer: "
        f"medians of {len(launches)} launches.",
        "",
    ]
    return {"call_costs.inc": "\n".join(lines + list_table(head, rows))}
