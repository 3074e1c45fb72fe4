"""Pictures of a schedule: as text for the terminal, as a space-time diagram for papers.

Time counts steps: one message a step through each port of a rank (see
:mod:`mpicoll.simulate.clock`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpicoll.base.files import replacing
from mpicoll.base.wording import intervals, plural
from mpicoll.registry import Algorithm
from mpicoll.schedule.memory import Cell
from mpicoll.schedule.parameters import Parameter, in_words
from mpicoll.schedule.steps import WORK
from mpicoll.simulate.clock import Transfer, trace

__all__ = ["svg", "text"]

#: Inches of a step and of a rank in a picture.
_STEP, _RANK = 1.1, 0.6
#: How far along its arrow a label may stand, in the order in which places are tried, and the
#: distance of labels that is enough, in their own widths or heights.
_SHARES = (0.35, 0.25, 0.45, 0.2, 0.55, 0.65, 0.15, 0.75)
_ENOUGH = 1.0


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
    figure = Figure(
        figsize=(min(2 + _STEP * end, 60), min(1 + _RANK * size, 60)), layout="constrained"
    )
    axes = figure.add_subplot()
    for rank in range(size):
        axes.plot([0, end], [rank, rank], color="0.8", linewidth=1, zorder=0)
    names = [label(transfer.cells, segments) for transfer in transfers]
    for transfer, name, place in zip(transfers, names, _places(transfers, names), strict=True):
        _arrow(axes, transfer, name, place)
    axes.set_yticks(range(size), [f"rank {rank}" for rank in range(size)])
    axes.set_ylim(size - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_title(f"{algorithm.collective} {algorithm.name}, P = {size}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    with replacing(path) as draft:
        figure.savefig(draft, format=draft.suffix[1:] or "png")


def _arrow(axes: object, transfer: Transfer, name: str, place: tuple[float, float]) -> None:
    color = "tab:red" if transfer.reduces else "tab:blue"
    axes.annotate(  # type: ignore[attr-defined]
        "",
        (transfer.end, transfer.receiver),
        (transfer.start, transfer.sender),
        arrowprops={"arrowstyle": "->", "color": color, "shrinkA": 0, "shrinkB": 2},
    )
    # On a white ground and above all arrows, so that none strikes the label through.
    ground = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    axes.text(  # type: ignore[attr-defined]
        *place, name, color=color, fontsize=8, ha="center", va="center", bbox=ground, zorder=5
    )


def _places(transfers: Sequence[Transfer], names: Sequence[str]) -> list[tuple[float, float]]:
    """Where the label of each arrow stands: on the arrow, and off other labels where it can."""
    places: list[tuple[float, float]] = []
    taken: dict[int, list[tuple[float, float, int]]] = defaultdict(list)  # by step
    for transfer, name in zip(transfers, names, strict=True):
        best, most = (0.0, 0.0), -1.0
        for share in _SHARES:
            x = transfer.start + share * (transfer.end - transfer.start)
            y = transfer.sender + share * (transfer.receiver - transfer.sender)
            near = (label for step in (-1, 0, 1) for label in taken[int(x) + step])
            room = min((_room(x, y, len(name), *label) for label in near), default=_ENOUGH)
            if room > most:
                best, most = (x, y), room
            if most >= _ENOUGH:
                break
        places.append(best)
        taken[int(best[0])].append((*best, len(name)))
    return places


def _room(x: float, y: float, letters: int, other_x: float, other_y: float, others: int) -> float:
    """The distance of two labels, in widths or heights of a label; from 1 on they do not touch."""
    width = (0.08 * (letters + others) / 2 + 0.1) / _STEP
    return max(abs(x - other_x) / width, abs(y - other_y) * _RANK / 0.2)
