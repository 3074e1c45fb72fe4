"""A part of docs/planner.rst: planned and measured steps, from the lines of benchmarks/plans.py."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from tables import list_table
from training_figures import lines

Lines = list[dict[str, Any]]
#: Where lines were measured that do not say it.
NODE = "one node"


def pages() -> dict[str, str]:
    """Text by name of the file."""
    return {"plans_measured.inc": "\n".join(_page())}


def lines_of(place: str) -> Lines:
    """The lines of a place."""
    return [line for line in lines("plans") if line.get("place", NODE) == place]


def _page() -> list[str]:
    found: list[str] = []
    for place in dict.fromkeys(line.get("place", NODE) for line in lines("plans")):
        own = lines_of(place)
        titles = ["plan", "planned [s]", "measured [s]", "error [%]"]
        found += [f"On {place}:", "", *list_table(titles, _rows(own)), judged(own), ""]
    return found


def _rows(found: Lines) -> list[list[str]]:
    rows = []
    for plan in dict.fromkeys(line["plan"] for line in found):
        own = [line for line in found if line["plan"] == plan]
        measured = median(line["seconds"] for line in own)
        planned = own[0]["planned"]
        error = f"{100 * (planned / measured - 1):+.1f}"
        rows.append([plan, f"{planned:.3f}", f"{measured:.3f}", error])
    return rows


def judged(found: Lines) -> str:
    """How far predictions are off, and how far the plan with the shortest one is from the best."""
    rows = _rows(found)
    launches = sorted({line["launch"] for line in found})
    errors = sorted(abs(float(row[-1])) for row in rows)
    best = min(rows, key=lambda row: float(row[2]))
    pick = min(rows, key=lambda row: float(row[1]))
    loss = float(pick[2]) / float(best[2]) - 1
    chosen = f"It takes {100 * loss:.1f} % longer than the best one measured, ``{best[0]}``."
    if pick == best:
        chosen = "It is the best one measured."
    return (
        f"Errors are {median(errors):.1f} % in the median, and at most "
        f"{errors[math.ceil(0.9 * len(errors)) - 1]:.1f} % for nine of ten. By launch the median "
        f"is {'; '.join(_launch(found, launch) for launch in launches)}. The plan with the "
        f"shortest planned step is ``{pick[0]}``. {chosen}"
    )


def _launch(found: Lines, launch: int) -> str:
    """The median error of a launch, and what the machine had to do."""
    own = [line for line in found if line["launch"] == launch]
    error = median(abs(line["error"]) for line in own)
    load = median(line["load"] for line in own)
    return f"{100 * error:.1f} % at a load of {load:.0f}"
