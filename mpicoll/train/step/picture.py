"""Pictures of a schedule: as text for the terminal, as a Gantt chart, and as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpicoll.base.files import replacing
from mpicoll.train.step.catalogue import Schedule
from mpicoll.train.step.core import Event
from mpicoll.train.step.tasks import SENDS, Task
from mpicoll.train.step.timing import SLOTS, Timing, simulate

#: Kind: what it is, and its colour.
KINDS = {
    "F": ("forward", "#6baed6"),
    "B": ("backward", "#fdae6b"),
    "I": ("gradient of the input", "#fdd0a2"),
    "W": ("gradient of the weights", "#a1d99b"),
    "R": ("forward again", "#c6dbef"),
}


def text(schedule: Schedule, width: int = 80) -> str:
    """When each rank does what: a line a rank, a column a slot of time.

    ``F3`` is the forward pass for microbatch 3; where a rank has several chunks, ``F3.1`` is that
    of its second.  Lines longer than ``width`` are cut, and go on below.

    Raises:
        DeadlockError: the programs wait for each other.
    """
    timing = simulate(schedule, SLOTS)
    cell = 1 + max(len(_label(schedule, e.task)) for e in _events(timing))
    heads = [f"rank {rank}" for rank in range(schedule.stages)]
    margin = len(heads[-1]) + 2
    per_line = max(1, (width - margin) // cell)
    lines = [_line(schedule, timing, rank, cell) for rank in range(schedule.stages)]
    parts = []
    for first in range(0, timing.makespan, per_line):
        cut = slice(first * cell, (first + per_line) * cell)
        rows = (
            f"{head:{margin}}{line[cut]}".rstrip() for head, line in zip(heads, lines, strict=True)
        )
        parts.append("\n".join((f"{'slot':{margin}}{first}", *rows)))
    return "\n\n".join(parts)


def _events(timing: Timing) -> list[Event]:
    """What takes time, of all ranks."""
    return [event for events in timing.ranks for event in events if event.end > event.begin]


def _label(schedule: Schedule, task: Task) -> str:
    chunks = schedule.chunks_of(schedule.place(task.chunk))
    turn = f".{chunks.index(task.chunk)}" if len(chunks) > 1 else ""
    return f"{task.kind}{task.microbatch}{turn}"


def _line(schedule: Schedule, timing: Timing, rank: int, cell: int) -> str:
    slots = ["." + " " * (cell - 1)] * timing.makespan
    for event in timing.ranks[rank]:
        length = event.end - event.begin
        whole = _label(schedule, event.task).ljust(length * cell - 1, "-") + " "
        for slot in range(length):
            slots[event.begin + slot] = whole[slot * cell : (slot + 1) * cell]
    return "".join(slots)


def svg(path: str | Path, schedule: Schedule) -> None:
    """Write a Gantt chart: time to the right, a line a rank, a bar a task.

    The ending of ``path`` chooses the format (svg, pdf; png without one).  Needs matplotlib.

    Raises:
        DeadlockError: the programs wait for each other.
        ImportError: matplotlib is missing.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    timing = simulate(schedule, SLOTS)
    size = min(2 + 0.28 * timing.makespan, 60), min(1.3 + 0.4 * schedule.stages, 60)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    events = _events(timing)
    for event in events:
        length = event.end - event.begin
        turn = schedule.chunks_of(event.rank).index(event.task.chunk)
        axes.broken_barh(
            [(event.begin, length)],
            (event.rank - 0.42, 0.84),
            facecolor=KINDS[event.task.kind][1],
            edgecolor="white",
            hatch="/" * 3 * turn,
        )
        middle = event.begin + length / 2
        axes.text(
            middle, event.rank, str(event.task.microbatch), fontsize=7, ha="center", va="center"
        )
    axes.set_xlim(0, timing.makespan)
    axes.set_ylim(schedule.stages - 0.5, -0.5)
    axes.set_yticks(range(schedule.stages), [f"rank {rank}" for rank in range(schedule.stages)])
    axes.set_xlabel("slot")
    axes.set_title(schedule.words)
    axes.spines[["top", "right", "left"]].set_visible(False)
    used = {event.task.kind for event in events}
    legend = [
        Patch(color=color, label=name) for kind, (name, color) in KINDS.items() if kind in used
    ]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), fontsize=8)
    with replacing(path) as draft:
        figure.savefig(draft, format=draft.suffix[1:] or "png")


def plain(schedule: Schedule) -> dict[str, Any]:
    """The programs of all ranks as plain values, for JSON."""
    return {
        **schedule.facts,
        "chunks": [list(schedule.chunks_of(rank)) for rank in range(schedule.stages)],
        "ranks": [[_task(schedule, task) for task in program] for program in schedule.programs],
    }


def _task(schedule: Schedule, task: Task) -> dict[str, Any]:
    named: dict[str, Any] = {"task": task.kind}
    if task.is_message:
        sends = task.kind in SENDS
        named["edge"] = task.chunk
        named["peer"] = schedule.place(task.destination if sends else task.source)
    else:
        named["chunk"] = task.chunk
        if schedule.order.updates:
            named["version"] = task.version
    return {**named, "microbatch": task.microbatch}
