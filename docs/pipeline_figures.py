"""Parts of docs/pipelines.rst: what is registered of each order, Gantt charts, and two sessions."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pipeline_measured
from tables import list_table

from mpicoll.cli import main
from mpicoll.train.step import Order, find, names, picture, schedule

#: Ranks and microbatches of the charts.
STAGES, MICROBATCHES = 4, 8
#: What is typed, by the name of the page's part.
SESSIONS = {
    "pipeline_show.inc": "mpicoll show pipeline 1f1b -S 4 -M 6",
    "pipeline_simulate.inc": "mpicoll simulate pipeline all -S 8 -M 32 --alpha 100us",
}


def pages() -> dict[str, str]:
    """Text by name of the file."""
    return {
        "pipeline_orders.inc": "\n".join(_table()),
        "pipeline_charts.inc": "\n".join(line for name in names() for line in _section(find(name))),
        **pipeline_measured.pages(),
        **{name: _session(words) for name, words in SESSIONS.items()},
    }


def charts() -> tuple[str, ...]:
    """Names of the charts."""
    return tuple(f"order-{name}.svg" for name in names())


def draw(folder: Path) -> tuple[str, ...]:
    """Draw a chart for each order; their names."""
    for name, chart in zip(names(), charts(), strict=True):
        picture.svg(folder / chart, schedule(name, STAGES, MICROBATCHES))
    return charts()


def _table() -> list[str]:
    rows = [
        [
            f":ref:`{name} <order-{name}>`",
            find(name).formula or "none",
            find(name).where or ("everywhere" if find(name).formula else "—"),
            _counts(find(name)),
        ]
        for name in names()
    ]
    return list_table(["order", "time of a step", "holds where", "held by ranks 0 to 3"], rows)


def _counts(order: Order) -> str:
    """Held activations of each rank, in microbatches of all its chunks, for the charts' numbers."""
    if order.held is None:
        return "not registered"
    parameters = order.complete()
    chunks = order.chunks(parameters)
    numbers = (
        f"{order.held(rank, STAGES, MICROBATCHES, **parameters) / chunks:g}"
        for rank in range(STAGES)
    )
    return ("at most " if order.held_is_bound else "") + ", ".join(numbers)


def _section(order: Order) -> list[str]:
    shown = f"mpicoll show pipeline {order.name} -S {STAGES} -M {MICROBATCHES} --svg FILE"
    parameters = ", ".join(f"``{name}={value:d}``" for name, value in order.parameters.items())
    return [
        f".. _order-{order.name}:",
        "",
        order.name,
        "~" * len(order.name),
        "",
        order.summary,
        "",
        f".. figure:: generated/order-{order.name}.svg",
        f"   :alt: Gantt chart of {order.name} with {STAGES} ranks and {MICROBATCHES} microbatches",
        "",
        f"   ``{shown}``",
        "",
        f"| **Parameters**: {parameters or 'none'}",
        f"| **Reference**: {order.reference}",
        "",
    ]


def _session(words: str) -> str:
    """What a command prints."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        status = main(words.split()[1:])
    assert status == 0
    lines = [f"$ {words}", *told.getvalue().splitlines()]
    text = "\n".join(f"   {line}".rstrip() for line in lines)
    return f".. code-block:: none\n\n{text}\n"
