"""A part of docs/planner.rst: planned and measured steps, from the lines of benchmarks/plans.py."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from tables import list_table
from training_figures import lines


def pages() -> dict[str, str]:
    """Text by name of the file."""
    return {"plans_measured.inc": "\n".join(_page(lines("plans")))}


def _page(found: list[dict[str, Any]]) -> list[str]:
    launches = sorted({line["launch"] for line in found})
    plans = list(dict.fromkeys(line["plan"] for line in found))
    rows = []
    for plan in plans:
        own = [line for line in found if line["plan"] == plan]
        measured = median(line["seconds"] for line in own)
        planned = own[0]["planned"]
        error = f"{100 * (planned / measured - 1):+.1f}"
        rows.append([plan, f"{planned:.3f}", f"{measured:.3f}", error])
    errors = sorted(abs(float(row[-1])) for row in rows)
    best = min(rows, key=lambda row: float(row[2]))
    pick = min(rows, key=lambda row: float(row[1]))
    loss = float(pick[2]) / float(best[2]) - 1
    words = (
        f"Errors are {median(errors):.1f} % in the median, and at most "
        f"{errors[math.ceil(0.9 * len(errors)) - 1]:.1f} % for nine of ten. By launch the median "
        f"is {'; '.join(_launch(found, launch) for launch in launches)}. The plan with the "
        f"shortest planned step, ``{pick[0]}``, takes {100 * loss:.1f} % longer than the best one "
        f"measured, ``{best[0]}``."
    )
    return [*list_table(["plan", "planned [s]", "measured [s]", "error [%]"], rows), words, ""]


def _launch(found: list[dict[str, Any]], launch: int) -> str:
    """The median error of a launch, and what the machine had to do."""
    own = [line for line in found if line["launch"] == launch]
    error = median(abs(line["error"]) for line in own)
    load = median(line["load"] for line in own)
    return f"{100 * error:.1f} % at a load of {load:.0f}"
