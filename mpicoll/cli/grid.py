"""A table as lines that fit a width, in which no number and no name is ever cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len

_GAP = "  "
_RULE = "─"
#: The least that a column of text is narrowed to.
_TEXT = 20


class Grid(NamedTuple):
    """A table that was laid out.

    Attributes:
        lines: of text, without blanks at their ends.
        left_out: heads of the columns that had no room.
    """

    lines: list[str]
    left_out: list[str]


def laid_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Collection[str] = (),
    fold: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Grid:
    """Lay a table out in at most ``width`` characters.

    Where it is too wide, heads and the texts of some columns are broken at blanks; then columns are
    left out; at last each row becomes a block with a line for each of its cells.

    Args:
        columns: heads of the columns.
        rows: cells as text, one for each column.
        width: characters of a line.
        right: heads of the columns that hold numbers.
        fold: heads of the columns whose texts may be broken; the first get what room is left.
        drop: heads of the columns that may be left out, the first to go first.
    """
    natural = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    if _total(natural) <= width:
        return Grid(_lines(columns, rows, natural, right), [])
    waiting = [head for head in drop if head in columns]
    for gone in range(len(waiting) + 1):
        shown = [place for place, head in enumerate(columns) if head not in waiting[:gone]]
        heads = [columns[place] for place in shown]
        cells = [[row[place] for place in shown] for row in rows]
        widths = _narrowed(heads, cells, width, fold)
        if _total(widths) <= width:
            return Grid(_lines(heads, cells, widths, right), waiting[:gone])
    return Grid(_stacked(columns, rows, width), [])


def _narrowed(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, fold: Sequence[str]
) -> list[int]:
    """The least width of each column, and for those with texts what room there is."""
    found, wished = [], {}
    for place, (head, *cells) in enumerate(zip(heads, *rows, strict=True)):
        least = max(_longest_word([head]), *map(cell_len, cells), 0)
        if head in fold:
            wished[head] = place, least
            least = max(_longest_word([head, *cells]), min(least, _TEXT))
        found.append(least)
    for head in fold:
        if head in wished:
            place, natural = wished[head]
            room = width - _total(found)
            found[place] += max(0, min(room, natural - found[place]))
    return found


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _longest_word(texts: Sequence[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, of which some characters take two; words are whole."""
    if cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _lines(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Collection[str],
) -> list[str]:
    numbers = [head in right for head in heads]

    def line(cells: Sequence[str]) -> str:
        return _GAP.join(map(_padded, cells, widths, numbers)).rstrip()

    tall = [_wrapped(head, width) for head, width in zip(heads, widths, strict=True)]
    height = max(map(len, tall))
    lines = [line(row) for row in zip(*([""] * (height - len(t)) + t for t in tall), strict=True)]
    lines.append(_RULE * _total(widths))
    for row in rows:
        cells = map(_wrapped, row, widths)
        lines += map(line, zip_longest(*cells, fillvalue=""))
    return lines


def _padded(text: str, width: int, number: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if number else text + blanks


def _stacked(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A block for each row: its first cell, and below it the others with their heads."""
    most = max(map(cell_len, columns[1:]), default=0)
    lines: list[str] = []
    for first, *others in rows:
        lines.append(first)
        for head, cell in zip(columns[1:], others, strict=True):
            if cell:
                begin = f"  {_padded(head, most, False)}  "
                text = _wrapped(cell, max(width - len(begin), _longest_word([cell])))
                lines.append(begin + text[0])
                lines += [" " * len(begin) + more for more in text[1:]]
    return lines
