"""Printing: facts on standard output, everything else on standard error.

On a terminal long texts in tables are broken to fit its width. Where output goes elsewhere a table
is as wide as it needs to be; so it is under a launcher, which puts pipes, or terminals of a width
of its own, between the ranks and the user.
"""

from __future__ import annotations

import codecs
import io
import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mpicoll.base.launcher import launch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


#: Signs in ASCII, where a terminal lacks them; letters lose their accents.
_SIGNS = {
    **dict.fromkeys("–—−─━", "-"),
    **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("•·●", "*"),
    **dict.fromkeys("“”", '"'),
    **dict.fromkeys("‘’", "'"),
    **{"×": "x", "∓": "-+", "…": "...", "µ": "u", "μ": "u", "°": " deg"},
}


def in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """What is printed for the first sign that an encoding lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    after = error.start + 1
    if "\udc80" <= sign <= "\udcff":  # a byte of a file's name that is no text
        return bytes([ord(sign) - 0xDC00]), after
    letters = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return _SIGNS.get(sign) or letters or "?", after


def spare_signs() -> None:
    """Let standard output and standard error print all texts, whatever their encoding."""
    codecs.register_error("mpicoll", in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="mpicoll")


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
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    fold: str | None = None,
) -> None:
    """Print a table.

    Args:
        columns: Heads of the columns.
        rows: Cells as text, one for each column.
        right: Heads of the columns that hold numbers.
        fold: Head of the column whose text is broken into lines where the terminal is too narrow;
            without one the terminal breaks the lines.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        side = "right" if column in numbers else "left"
        grid.add_column(Text(column), justify=side, no_wrap=column != fold)  # type: ignore[arg-type]
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    width = Console(width=10_000).measure(grid).maximum
    console = Console(highlight=False)
    if not _interactive(console):
        console = Console(width=width, highlight=False, color_system=None)
    elif fold is None:
        console.width = max(width, console.width)
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
        disable=not _interactive(console),
    )


def _interactive(console: Console) -> bool:
    return console.is_terminal and launch().name == "none"
