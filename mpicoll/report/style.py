"""How a choice is drawn, in every plot alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mpicoll.tuning import NATIVE


class Line(NamedTuple):
    """Colour, dash and mark: in plotly's words, in the legend's, and in matplotlib's."""

    color: str
    dash: str
    symbol: str
    sign: str
    marker: str


# Okabe and Ito's colours, which the colour-blind can tell apart (their yellow darkened: it is drawn
# on white); marks and dashes differ too, so that a print in grey can be read.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9")
_DASHES = ("8 0", "8 3", "2 2", "7 2 2 2", "12 3", "12 2 2 2 2 2", "4 2")
_MARKS = (
    ("circle", "●", "o"),
    ("square", "■", "s"),
    ("diamond", "◆", "D"),
    ("triangle-up", "▲", "^"),
    ("x", "✖", "X"),
    ("star", "★", "*"),
    ("triangle-down", "▼", "v"),
)
_NATIVE = Line("#222222", "8 0", "circle-open", "○", "o")


def lines(choices: Iterable[str]) -> dict[str, Line]:
    """A line for each choice, no two alike among the first 42."""
    found, number = {}, 0
    for choice in dict.fromkeys(choices):
        if choice.split(" ")[0] == NATIVE:
            found[choice] = _NATIVE
            continue
        color, dash = COLORS[number % len(COLORS)], _DASHES[number % len(_DASHES)]
        found[choice] = Line(color, dash, *_MARKS[number % len(_MARKS)])
        number += 1
    return found
