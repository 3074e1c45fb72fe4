"""Tables in reStructuredText, for the pages that are written at the start of a build."""

from __future__ import annotations

from collections.abc import Sequence


def list_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, stub: bool = False
) -> list[str]:
    """The lines of a table; with ``stub`` its first column is a head too."""
    lines = [".. list-table::", "   :header-rows: 1", *["   :stub-columns: 1"] * stub, ""]
    for row in (head, *rows):
        marks = ["* -", *["  -"] * (len(row) - 1)]
        lines += [f"   {mark} {cell}".rstrip() for mark, cell in zip(marks, row, strict=True)]
    return [*lines, ""]
