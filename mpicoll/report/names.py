"""Names of choices, sizes and collectives, as all of a report has them."""

from __future__ import annotations

from mpicoll import tuning
from mpicoll.schedule.collectives import COLLECTIVES, collective
from mpicoll.tuning import Choice


def short(collective: str, words: str) -> str:
    """A choice in words, without its parameters where all are the algorithm's own defaults."""
    try:
        choice = tuning.parse(collective, words, "")
        complete = tuning.check(collective, choice.algorithm, dict(choice.parameters))
        default = tuning.check(collective, choice.algorithm, {})
    except ValueError:  # what an earlier or a later version had
        return words
    return choice.algorithm if complete == default else Choice(choice.algorithm, complete).words


def about(size: float) -> str:
    """A size with three digits, in binary units."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g}{unit}"
    return f"{size:.3g}"


def position(name: str) -> int:
    """The place of a collective in the catalogue."""
    return [*COLLECTIVES].index(collective(name).name)
