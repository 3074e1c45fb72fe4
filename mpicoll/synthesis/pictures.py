"""Pictures of a schedule on a machine: how busy its ports and links are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpicoll.simulate.machine import Machine
from mpicoll.synthesis.bound import Bound
from mpicoll.synthesis.edges import Edges

#: Links that a picture shows, the busiest.
_MOST = 40


def loads(path: Path, bound: Bound, machine: Machine, of: Sequence[float]) -> None:
    """Draw the load of each port and link, as a part of what the bound lets the busiest carry.

    Args:
        path: .svg, .pdf or .png.
        bound: of the collective.
        machine: with a network.
        of: the loads of a forest, as multiples of the bound.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: it does not write this kind of file.
    """
    from matplotlib.figure import Figure

    names = Edges.of(machine).names
    rows = sorted(zip(of, names, strict=True), key=lambda row: (-row[0], row[1]))[:_MOST][::-1]
    figure = Figure(figsize=(7, 1 + 0.22 * len(rows)), layout="constrained")
    axes: Any = figure.subplots()
    colours = ["#b3503c" if name in bound.busiest else "#4c78a8" for _, name in rows]
    axes.barh([name for _, name in rows], [load for load, _ in rows], color=colours)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("busy time, relative to the bound")
    axes.tick_params(labelsize=7)
    figure.savefig(path)
