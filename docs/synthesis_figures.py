"""The pictures and the session of docs/synthesis.rst: a schedule for a machine of six ranks."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Circle

from mpicoll.cli import main
from mpicoll.files import machine_files
from mpicoll.synthesis import pictures
from mpicoll.synthesis.bound import bound
from mpicoll.synthesis.edges import Edges
from mpicoll.synthesis.pack import Forest, Taste, pack

MACHINE = Path(__file__).resolve().parent / "six_ranks.toml"
NAMES = ("synthesis_cut.svg", "synthesis_trees.svg", "synthesis_load.svg")
_COLOURS = ("#4c78a8", "#e08214", "#4d9221")


def session() -> dict[str, str]:
    """What the command prints, by the name of the page's part."""
    words = ["synthesize", "allreduce", "--machine", str(MACHINE), "-s", "64K-64M"]
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        status = main([*words, "--evaluations", "120", "--trees", "6"])
    assert status == 0
    lines = ["$ mpicoll synthesize allreduce --machine six_ranks.toml -s 64K-64M --trees 6"]
    lines += told.getvalue().splitlines()
    text = "\n".join(f"   {line}".rstrip() for line in lines)
    return {"synthesis.inc": f".. code-block:: none\n\n{text}\n"}


@cache
def _forest() -> tuple[Any, Any, Forest]:
    machine = machine_files.read(MACHINE)
    least = bound("allreduce", machine)
    return machine, least, pack("allreduce", Edges.of(machine), least, Taste(6, 8, 0.5))


def draw(folder: Path) -> tuple[str, ...]:
    """Draw the cut, some trees, and the load; the names of the pictures."""
    machine, least, forest = _forest()
    places = _places(machine.nodes)
    figure = Figure(figsize=(4, 3.4), layout="constrained")
    axes: Any = figure.subplots()
    _ranks(axes, places, machine.nodes)
    inside = set(least.cut)
    for rank, (x, y) in enumerate(places):
        if rank in inside:
            axes.add_patch(Circle((x, y), 0.2, fill=False, ls="--", color="#b3503c"))
    axes.set_title("the tightest cut: dashed against the others", fontsize=9)
    figure.savefig(folder / NAMES[0])
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    several: Any = figure.subplots(1, 3)
    shown = {part.root: part for strand in forest.strands for part in strand}
    parts = [*shown.values(), *(part for strand in forest.strands for part in strand)][:3]
    for axes, part, colour in zip(several, parts, _COLOURS, strict=True):
        _ranks(axes, places, machine.nodes)
        for rank, parent in enumerate(part.up or ()):
            if rank != parent:
                axes.annotate(
                    "",
                    places[parent],
                    places[rank],
                    arrowprops={"arrowstyle": "-|>", "color": colour, "shrinkA": 9, "shrinkB": 9},
                )
        axes.set_title(f"a tree up to rank {part.root}", fontsize=9)
    figure.savefig(folder / NAMES[1])
    pictures.loads(folder / NAMES[2], least, machine, forest.loads)
    return NAMES


def _places(hosts: tuple[int, ...]) -> list[tuple[float, float]]:
    """Ranks of a host in a column."""
    found = []
    for rank, host in enumerate(hosts):
        above = hosts[:rank].count(host)
        found.append((1.4 * host, -0.7 * above + 0.35 * hosts.count(host)))
    return found


def _ranks(axes: Any, places: list[tuple[float, float]], hosts: tuple[int, ...]) -> None:
    for rank, (x, y) in enumerate(places):
        axes.add_patch(Circle((x, y), 0.13, color="#dddddd"))
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=9)
    for host in dict.fromkeys(hosts):
        axes.text(1.4 * host, -1.5, f"host {host}", ha="center", fontsize=8)
    axes.set_xlim(-0.5, 1.4 * max(hosts) + 0.5)
    axes.set_ylim(-1.7, 1.5)
    axes.set_aspect("equal")
    axes.axis("off")
