"""Pictures of a schedule: as text for the terminal, as a space-time diagram for papers.

Time counts steps: one message a step through each port of a rank (see
:mod:`mpicoll.simulate.clock`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mpicoll.base.files import replacing
from mpicoll.base.wording import intervals, plural
from mpicoll.registry import Algorithm
from mpicoll.schedule.memory import Cell
from mpicoll.schedule.parameters import Parameter, in_words
from mpicoll.schedule.steps import WORK
from mpicoll.simulate.clock import Transfer, trace

__all__ = ["svg", "text"]


def label(cells: tuple[Cell, ...], segments: int) -> str:
    """Blocks of a message: ``3``, ``0-2,5``; input ``i3``, scratch ``s3``; ``.s`` for segment s."""
    if not cells:
        return "."
    names = []
    for space in dict.fromkeys(cell.space for cell in cells):
        prefix = "" if space == WORK else space[0].replace("g", "i")
        names.append(prefix + intervals([c.block for c in cells if c.space == space]))
    return " ".join(names) + (f".{cells[0].segment}" if segments > 1 else "")


def text(
    algorithm: Algorithm,
    size: int,
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
) -> str:
    """The schedule as a table: a line a step, a column a rank.

    ``[3]>1`` sends block 3 to rank 1; ``[2]<3`` receives block 2 from rank 3; ``+[2]<3`` adds what
    it receives to block 2.

    Raises:
        ValueError: a size, root or parameter out of range.
    """
    transfers = trace(algorithm, size, root, parameters)
    complete = algorithm.complete(parameters)
    segments = algorithm.channels(0, size, root, parameters)[0].segments
    steps = sorted({t.start for t in transfers})
    rows = [["step", *(f"rank {rank}" for rank in range(size))]]
    for step in steps:
        cells: list[list[str]] = [[] for _ in range(size)]
        for t in (t for t in transfers if t.start == step):
            name = label(t.cells, segments)
            cells[t.sender].append(f"[{name}]>{t.receiver}")
            cells[t.receiver].append(f"{'+' if t.reduces else ' '}[{name}]<{t.sender}")
        # Sends first, so that columns read alike.
        rows.append([str(step + 1), *("  ".join(sorted(c, key=_sends_first)) for c in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(size + 1)]
    lines = [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    with_root = f", root {root}" if algorithm.definition.rooted else ""
    with_parameters = "".join(f", {word}" for word in in_words(complete).split())
    title = f"{algorithm.collective} {algorithm.name}, P = {size}{with_root}{with_parameters}"
    totals = (
        f"{plural(len(steps), 'step')}, {plural(len(transfers), 'message')}, "
        f"{plural(algorithm.blocks(size), 'block')}; "
        f"[b]>r: send block b to rank r, [b]<r: receive it, +[b]<r: receive and reduce"
    )
    return "\n".join([title, "", *lines, "", totals])


def _sends_first(entry: str) -> bool:
    return not entry.startswith("[")


def svg(
    path: str | Path,
    algorithm: Algorithm,
    size: int,
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
) -> None:
    """Write a space-time diagram: time to the right, a line a rank, an arrow a message.

    The ending of ``path`` chooses the format (svg, pdf; png without one).  Needs matplotlib.

    Raises:
        ValueError: a size, root or parameter out of range.
        ImportError: matplotlib is missing.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    transfers = trace(algorithm, size, root, parameters)
    segments = algorithm.channels(0, size, root, parameters)[0].segments
    end = max((t.end for t in transfers), default=1)
    figure = Figure(figsize=(min(2 + 1.1 * end, 60), min(1 + 0.6 * size, 60)), layout="constrained")
    axes = figure.add_subplot()
    for rank in range(size):
        axes.plot([0, end], [rank, rank], color="0.8", linewidth=1, zorder=0)
    for transfer in transfers:
        _arrow(axes, transfer, label(transfer.cells, segments))
    axes.set_yticks(range(size), [f"rank {rank}" for rank in range(size)])
    axes.set_ylim(size - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_title(f"{algorithm.collective} {algorithm.name}, P = {size}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    with replacing(path) as draft:
        figure.savefig(draft, format=draft.suffix[1:] or "png")


def _arrow(axes: object, transfer: Transfer, name: str) -> None:
    color = "tab:red" if transfer.reduces else "tab:blue"
    middle = (
        transfer.start + 0.35 * (transfer.end - transfer.start),
        transfer.sender + 0.35 * (transfer.receiver - transfer.sender),
    )
    axes.annotate(  # type: ignore[attr-defined]
        "",
        (transfer.end, transfer.receiver),
        (transfer.start, transfer.sender),
        arrowprops={"arrowstyle": "->", "color": color, "shrinkA": 0, "shrinkB": 2},
    )
    axes.text(*middle, name, color=color, fontsize=8, ha="center", va="center")  # type: ignore[attr-defined]
