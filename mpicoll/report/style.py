"""How a choice is drawn, in every plot alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mpicoll.tuning import NATIVE


class Line(NamedTuple):
    """Colour and mark: in plotly's words, in the legend's, and in matplotlib's."""

    color: str
    symbol: str
    sign: str
    marker: str


# Okabe and Ito's colours, which the colour-blind can tell apart (their yellow darkened: it is drawn
# on white); marks differ too, so that a print in grey can be read.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9")
_MARKS = (
    ("circle", "●", "o"),
    ("square", "■", "s"),
    ("diamond", "◆", "D"),
    ("triangle-up", "▲", "^"),
    ("x", "✖", "X"),
    ("star", "★", "*"),
    ("triangle-down", "▼", "v"),
)
_NATIVE = Line("#222222", "circle-open", "○", "o")


def lines(choices: Iterable[str]) -> dict[str, Line]:
    """A line for each choice, no two alike among the first 42."""
    found, number = {}, 0
    for choice in dict.fromkeys(choices):
        if choice.split(" ")[0] == NATIVE:
            found[choice] = _NATIVE
            continue
        found[choice] = Line(COLORS[number % len(COLORS)], *_MARKS[number % len(_MARKS)])
        number += 1
    return found
