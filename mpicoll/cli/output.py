"""Printing: facts on standard output, everything else on standard error.

Tables fit the terminal of the user, or `_PIPED` characters where output goes elsewhere. A launcher
puts pipes, or terminals of a width of its own, between the ranks and the user: the width is then
that of the launcher's terminal.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import stat
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mpicoll.base.launcher import launch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


#: Characters of a line where no terminal says how many.
_PIPED = 120

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
    fold: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Print a table that fits `width`; see `mpicoll.cli.grid.laid_out` for what gives way.

    Args:
        columns: Heads of the columns, with units as in ``time [us]``.
        rows: Cells as text, one for each column.
        right: Heads of the columns that hold numbers.
        fold: Heads of the columns whose texts may be broken into lines; the first get most room.
        drop: Heads of the columns that may be left out, the first to go first; ``--json`` must
            have what they say.
    """
    from mpicoll.cli.grid import laid_out

    most = width()
    grid = laid_out(columns, [*rows], most, right=set(right), fold=fold, drop=drop)
    for line in grid.lines:
        text(line)
    if grid.left_out:
        text(f"(left out at {most} columns: {', '.join(grid.left_out)}; --json has them)")


def width() -> int:
    """Characters of a line: ``COLUMNS``, or those of the terminal that the user looks at."""
    written = os.environ.get("COLUMNS", "")
    if written.isascii() and written.isdigit() and int(written):
        return int(written)
    with suppress(OSError, ValueError):
        if launch().name == "none":
            return os.get_terminal_size(sys.stdout.fileno()).columns or _PIPED
        return _launchers_width() or _PIPED
    return _PIPED


def _launchers_width() -> int:
    """Characters of a line of the terminal that the launcher writes to, 0 if it is none.

    Raises:
        OSError: the system does not tell.
    """
    path = f"/proc/{os.getppid()}/fd/1"
    if not stat.S_ISCHR(os.stat(path).st_mode):
        return 0
    terminal = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        return os.get_terminal_size(terminal).columns
    finally:
        os.close(terminal)


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
