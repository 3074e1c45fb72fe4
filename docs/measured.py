"""Pages on measurements: tables and plots of what benchmarks/vs_native.py has recorded.

``benchmarks/results/*.jsonl``: for each launch a line that says where it ran, then a line for each
collective and size.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"

Points = list[dict[str, Any]]
#: Launches of one kind, in the order in which they were made: what ran, and its points.
Launches = dict[str, Points]


def load(path: Path) -> tuple[list[dict[str, Any]], Points]:
    """The launches and the points of a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [x for x in lines if "started" in x], [x for x in lines if "launch" in x]


def title(run: Mapping[str, Any]) -> str:
    """The MPI library and the ranks of a launch."""
    library = " ".join(run["mpi"].split(",")[0].replace("Version:", "").split())
    return f"{library}, {run['ranks']} ranks"


def what(point: Mapping[str, Any]) -> str:
    """The name of a series: the collective, and how it was called."""
    kind = "" if point["type"] in ("float32", "none") else f" {point['type']}"
    return f"{point['collective']}{kind}{', persistent' if point['persistent'] else ''}"


def by_series(points: Iterable[Mapping[str, Any]]) -> dict[str, Launches]:
    """Points by series and launch."""
    found: dict[str, Launches] = defaultdict(lambda: defaultdict(list))
    for point in points:
        found[what(point)][point["launch"]].append(dict(point))
    return found


def mean(points: Points) -> float:
    """Geometric mean of the ratios; a size that the library serves counts as 1."""
    logs = [0.0 if p["choice"] == "native" else math.log(p["ratio"]) for p in points]
    return math.exp(sum(logs) / len(logs))


def _row(name: str, launches: Launches) -> list[str]:
    worst = max((p for points in launches.values() for p in points), key=lambda p: p["ratio"])
    means = "  ".join(f"{mean(points):.2f}" for points in launches.values())
    return [name, means, f"{worst['ratio']:.2f} at {worst['size']:,} bytes"]


def _table(rows: list[list[str]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (["call", "geometric mean of each launch", "largest ratio of any launch"], *rows):
        lines += [f"   {'* -' if not column else '  -'} {cell}" for column, cell in enumerate(row)]
    return [*lines, ""]


def pages() -> dict[str, str]:
    """What docs/measurements.rst includes."""
    lines: list[str] = []
    for path in sorted(RECORDS.glob("*.jsonl")):
        runs, points = load(path)
        name = title(runs[0])
        hands = ", ".join(f"{run['handover_us']:.1f}" for run in runs)
        lines += [
            name,
            "-" * len(name),
            "",
            f"{runs[0]['processor']}, {len(runs)} launches.  Copying 256 KiB that the other core "
            f"has just written took {hands} us.",
            "",
            *_table([_row(series, launches) for series, launches in by_series(points).items()]),
            f".. figure:: generated/{path.stem}.svg",
            "   :alt: ratio by size, one panel a collective",
            "",
        ]
    return {"measured.inc": "\n".join(lines)}


def draw(folder: Path) -> list[str]:
    """Plot every file of records; the names of the plots."""
    from matplotlib.figure import Figure

    names = []
    for path in sorted(RECORDS.glob("*.jsonl")):
        series = by_series(load(path)[1])
        shown = {name: launches for name, launches in series.items() if len(_sizes(launches)) > 1}
        rows = -(-len(shown) // 3)
        figure = Figure(figsize=(9, 2.2 * rows), layout="constrained")
        panels = figure.subplots(rows, 3, sharey=True, squeeze=False)
        for panel, (name, launches) in zip(panels.flat, shown.items(), strict=False):
            for points in launches.values():
                panel.plot([p["size"] for p in points], [p["ratio"] for p in points], ".-", lw=0.8)
            panel.axhline(1, color="gray", lw=0.6)
            panel.set(title=name, xscale="log", yscale="log", ylim=(0.05, 5))
        for panel in list(panels.flat)[len(shown) :]:
            panel.remove()
        figure.supxlabel("bytes")
        figure.supylabel("time of mpicoll / time of the library")
        names.append(f"{path.stem}.svg")
        figure.savefig(folder / names[-1], metadata={"Date": None})
    return names


def _sizes(launches: Launches) -> set[int]:
    return {p["size"] for points in launches.values() for p in points}
