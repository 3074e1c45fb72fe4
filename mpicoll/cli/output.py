"""Printing: facts on standard output, everything else on standard error.

On a terminal tables fit its width. Where output is piped, as always under mpirun, a table is as
wide as it needs to be, so that no line is broken.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def facts(value: Any) -> None:
    """Print a value as JSON."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def text(value: str) -> None:
    """Print text as it is."""
    sys.stdout.write(value + "\n")


def remark(value: str) -> None:
    """Print a remark beside the facts."""
    sys.stderr.write(value + "\n")
    sys.stderr.flush()


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()
) -> None:
    """Print a table.

    Args:
        columns: Heads of the columns.
        rows: Cells as text, one for each column.
        right: Heads of the columns that hold numbers.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        side = "right" if column in numbers else "left"
        grid.add_column(Text(column), justify=side, no_wrap=column in numbers)  # type: ignore[arg-type]
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        wide = Console(width=10_000)
        console = Console(width=wide.measure(grid).maximum, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(grid)
    for line in capture.get().strip("\n").split("\n"):
        if line.strip():
            text(line.rstrip())


def progress() -> Progress:
    """A progress bar with the time left, on standard error; silent where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
