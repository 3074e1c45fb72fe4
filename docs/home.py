"""The two pictures of the home page: a ring all-reduce step by step, and recorded speeds.

``python docs/home.py`` writes docs/speed.svg, which the README shows.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

import measured
from matplotlib.figure import Figure

from mpicoll import algorithms
from mpicoll.draw import label
from mpicoll.simulate.clock import Transfer, trace

RING, SPEED = "home-ring.svg", "home-speed.svg"
#: The picture of speeds that the README shows, which is kept.
PICTURE = Path(__file__).resolve().parent / "speed.svg"
RANKS = 4
#: Files of benchmarks/results, and what the plot calls them.
SERIES = {
    "mpich-2": "MPICH 5, 2 ranks",
    "openmpi-2": "Open MPI 5, 2 ranks",
    "openmpi4-04": "Open MPI 4.1, 4 ranks",
    "openmpi4-16": "Open MPI 4.1, 16 ranks",
}
_REDUCED, _COPIED = "#b3503c", "#2f6db3"


def draw(folder: Path) -> tuple[str, ...]:
    """Draw both pictures; their names."""
    _ring().savefig(folder / RING, metadata={"Date": None})
    _speed().savefig(folder / SPEED, metadata={"Date": None})
    return RING, SPEED


def _ring() -> Figure:
    """A panel for each step: the ranks on a circle, the block of each message on its arrow."""
    transfers = trace(algorithms.find("allreduce", "ring"), RANKS)
    steps = sorted({t.start for t in transfers})
    figure = Figure(figsize=(7.4, 5.0), layout="constrained")
    panels = figure.subplots(2, len(steps) // 2)
    for number, (panel, step) in enumerate(zip(panels.flat, steps, strict=True), 1):
        now = [t for t in transfers if t.start == step]
        _panel(panel, f"step {number}: {'add' if now[0].reduces else 'copy'}", now)
    return figure


def _panel(axes: Any, title: str, transfers: list[Transfer]) -> None:
    places = [
        (-math.cos(2 * math.pi * (k + 0.5) / RANKS), math.sin(2 * math.pi * (k + 0.5) / RANKS))
        for k in range(RANKS)
    ]
    for transfer in transfers:
        colour = _REDUCED if transfer.reduces else _COPIED
        (x0, y0), (x1, y1) = places[transfer.sender], places[transfer.receiver]
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 1.6, "shrinkA": 16, "shrinkB": 16}
        axes.annotate("", (x1, y1), (x0, y0), arrowprops=arrow)
        block = {"facecolor": "white", "edgecolor": colour, "boxstyle": "round,pad=0.25"}
        middle = (x0 + x1) / 2, (y0 + y1) / 2
        axes.text(*middle, label(transfer.cells, 1), ha="center", va="center", bbox=block)
    for rank, place in enumerate(places):
        circle = {"facecolor": "#e8ebf0", "edgecolor": "#7d828c", "boxstyle": "circle,pad=0.4"}
        axes.text(*place, str(rank), ha="center", va="center", weight="bold", bbox=circle)
    axes.set(title=title, xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    axes.axis("off")


def _speed() -> Figure:
    """How many times as fast as the library an all-reduce is, by size: medians over launches."""
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, title), marker in zip(SERIES.items(), "os^D", strict=True):
        gains = speed_ups(name)
        axes.plot(list(gains), list(gains.values()), marker=marker, ms=4, lw=1.4, label=title)
    axes.axhline(1, color="gray", lw=0.8)
    axes.set(xlabel="vector [bytes]", ylabel="times as fast as the MPI library")
    axes.set_xscale("log", base=2)
    ticks = {8: "8", 1 << 10: "1 KiB", 1 << 15: "32 KiB", 1 << 20: "1 MiB", 1 << 24: "16 MiB"}
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def speed_ups(name: str) -> dict[int, float]:
    """Time of the library over time of mpicoll by bytes, without what was disturbed."""
    points = measured.load(measured.RECORDS / f"{name}.jsonl")[1]
    near = measured.best(points)
    by_size: dict[int, list[float]] = {}
    for point in measured.by_series(points)["allreduce"].values():
        for p in point:
            if not measured.is_disturbed(p, near):
                by_size.setdefault(p["size"], []).append(1 / p["ratio"])
    return {size: median(found) for size, found in sorted(by_size.items())}


if __name__ == "__main__":
    _speed().savefig(PICTURE, metadata={"Date": None})
