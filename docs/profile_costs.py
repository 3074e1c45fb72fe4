"""Tables of what benchmarks/profile_overhead.py and benchmarks/programs.py have recorded.

For each launch, and for each program, a line that says where it ran; then a line for each method
and size, and for each pair of runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from tables import list_table

from mpicoll.bench.stats import summarise

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
RECORDS = FOLDER / "profile_overhead.jsonl"
PROGRAMS = FOLDER / "programs.jsonl"


def pages() -> dict[str, str]:
    """What docs/profile.rst includes."""
    return {
        "profile_costs.inc": _costs() if RECORDS.exists() else "Not recorded yet.",
        "profile_programs.inc": _programs() if PROGRAMS.exists() else "Not recorded yet.",
    }


def _programs() -> str:
    """A row for each program that was measured before and after a change."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for line in map(json.loads, PROGRAMS.read_text(encoding="utf-8").splitlines()):
        if "program" in line:
            program = line["program"], line["processor"]
        else:
            found.setdefault(program, []).append((line["before"], line["after"]))
    rows = []
    for (name, processor), pairs in found.items():
        ratios = summarise([after / before for before, after in pairs])
        seconds = [f"{median(times):.1f}" for times in zip(*pairs, strict=True)]
        interval = f"{ratios.low:.3f} to {ratios.high:.3f}"
        rows.append([name, processor, str(len(pairs)), *seconds, f"{ratios.median:.3f}", interval])
    head = ["program", "processor", "pairs", "before [s]", "after [s]", "ratio", "95 % interval"]
    return "\n".join(list_table(head, rows))


def _costs() -> str:
    """A row for each method and size."""
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
    return "\n".join(lines + list_table(head, rows))
