"""Pages on measurements: tables and plots of what benchmarks/vs_native.py has recorded.

``benchmarks/results/*.jsonl``: for each launch a line that says where it ran, then a line for each
collective and size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tables import list_table

from mpicoll.base import json_lines
from mpicoll.base.sizes import format_size

RECORDS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"

#: Points are disturbed where the copy from another core took this many times as long as at best:
#: what was measured lies below that, or far above.
FAR = 3.0
#: Or where others had more than this share of the processors.
OTHERS = 0.1

Points = list[dict[str, Any]]
#: Launches of one kind, in the order in which they were made: what ran, and its points.
Launches = dict[str, Points]


def records() -> list[Path]:
    """The files of launches and points, MPI libraries first; other experiments lie beside them."""
    paths = sorted(RECORDS.glob("*.jsonl"), key=lambda path: ("gloo" in path.stem, path.stem))
    return [path for path in paths if all(load(path))]


def load(path: Path) -> tuple[list[dict[str, Any]], Points]:
    """The launches and the points of a file."""
    lines: list[dict[str, Any]] = []
    json_lines.read(path, lines.append)
    return [x for x in lines if "started" in x], [x for x in lines if "launch" in x]


def title(run: Mapping[str, Any], points: Points) -> str:
    """What mpicoll was held against in a launch, and the ranks."""
    library = " ".join(run["mpi"].split(",")[0].replace("Version:", "").split())
    other = points[0]["other"]
    held = library if other == "native" else f"{other}; mpicoll on {library}"
    return f"{held}, {run['ranks']} ranks"


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


def best(points: Points) -> float:
    """Microseconds of the copy from the other core, where it was fastest."""
    return min(p["handover_us"] for p in points)


def is_disturbed(point: Mapping[str, Any], near: float) -> bool:
    """Whether the cores were far apart, or busy with something else.

    What the system does for messages through the loopback device counts as others' work.
    """
    busy = point["others"] > OTHERS and point["other"] == "native"
    return bool(point["handover_us"] > FAR * near or busy)


def mean(points: Points) -> float:
    """Geometric mean of the ratios; a size that the library serves counts as 1."""
    logs = [0.0 if p["choice"] == "native" else math.log(p["ratio"]) for p in points]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _row(name: str, launches: Launches, near: float) -> list[str]:
    every = [p for points in launches.values() for p in points]
    quiet = [p for p in every if not is_disturbed(p, near)]
    found = [mean([p for p in points if p in quiet]) for points in launches.values()]
    means = "  ".join("-" if math.isnan(value) else f"{value:.2f}" for value in found)
    worst = max(quiet, key=lambda p: p["ratio"], default=None)
    largest = f"{worst['ratio']:.2f} at {format_size(worst['size'])}" if worst else "none"
    return [name, means, largest, f"{len(every) - len(quiet)} of {len(every)}"]


def pages() -> dict[str, str]:
    """What docs/measurements.rst includes."""
    lines: list[str] = []
    for path in records():
        runs, points = load(path)
        name = title(runs[0], points)
        near = best(points)
        lines += [
            name,
            "-" * len(name),
            "",
            f"{runs[0]['processor']}, {runs[0]['cpus']} cores, {len(runs)} launches.  At "
            f"best, copying 256 KiB that another core has just written took {near:.1f} us.  A "
            f"point is disturbed if this copy took more than {FAR:g} times as long, or if "
            f"other work had more than {100 * OTHERS:g} % of the cores.",
            "",
            *list_table(
                [
                    "call",
                    "geometric mean of each launch",
                    "largest ratio",
                    "disturbed points",
                ],
                [_row(name, launches, near) for name, launches in by_series(points).items()],
            ),
            f".. figure:: generated/{path.stem}.svg",
            "   :alt: ratio by size, one panel a collective",
            "",
        ]
    return {"measured.inc": "\n".join(lines)}


def draw(folder: Path) -> list[str]:
    """Plot every file of records; the names of the plots."""
    from matplotlib.figure import Figure

    names = []
    for path in records():
        points = load(path)[1]
        series, near = by_series(points), best(points)
        shown = {name: launches for name, launches in series.items() if len(_sizes(launches)) > 1}
        lowest = min(0.05, *(0.8 * point["ratio"] for point in points))
        rows = -(-len(shown) // 3)
        figure = Figure(figsize=(9, 2.2 * rows), layout="constrained")
        panels = figure.subplots(rows, 3, sharey=True, squeeze=False)
        for panel, (name, launches) in zip(panels.flat, shown.items(), strict=False):
            for launch in launches.values():
                panel.plot([p["size"] for p in launch], [p["ratio"] for p in launch], "-", lw=0.6)
                for disturbed, marker in ((False, "."), (True, "x")):
                    some = [p for p in launch if is_disturbed(p, near) == disturbed]
                    x, y = [p["size"] for p in some], [p["ratio"] for p in some]
                    panel.plot(x, y, marker, color="black", ms=3)
            panel.axhline(1, color="gray", lw=0.6)
            panel.set(title=name, xscale="log", yscale="log", ylim=(lowest, 5))
        for panel in list(panels.flat)[len(shown) :]:
            panel.remove()
        figure.supxlabel("bytes")
        figure.supylabel("time of mpicoll / time of the library")
        names.append(f"{path.stem}.svg")
        figure.savefig(folder / names[-1], metadata={"Date": None})
    return names


def _sizes(launches: Launches) -> set[int]:
    return {p["size"] for points in launches.values() for p in points}
