"""Tables of what a mesh goes together with, from the declarations that configurations check."""

from __future__ import annotations

from tables import list_table

from mpicoll.train.config import OF_AXES, TOGETHER, Config
from mpicoll.train.registry import STRATEGIES

_OPTIONS = ("wire", "invariant", "deterministic", "balance", "survive")


def pages() -> dict[str, str]:
    """Text by name of the file that other pages include."""
    return {
        "mesh_strategies.inc": "\n".join(_strategies()),
        "mesh_options.inc": "\n".join(_options()),
    }


def _strategies() -> list[str]:
    """Which strategy goes with which axis and option."""
    columns = ("pipe", "tensor", *_OPTIONS)
    rows = [[f"``{name}``", "yes", *(_goes(name, c) for c in columns)] for name in STRATEGIES]
    return list_table(["strategy", "data", *(f"``{c}``" for c in columns)], rows, stub=True)


def _goes(strategy: str, column: str) -> str:
    """Whether a strategy goes with an axis or an option."""
    takes = STRATEGIES[strategy].takes
    if column == "survive" and {"survive", "pipe"} <= takes:
        try:
            Config(strategy=strategy, survive=True, mesh="pipe=2")
        except ValueError:
            return "not on a mesh"
    return "yes" if column in takes else "–"


def _options() -> list[str]:
    """Which option goes with pipe and tensor, and which is of them alone."""
    axes = ("pipe", "tensor")
    rows = []
    for name in dict.fromkeys(n for axis in axes for n in TOGETHER[axis]):
        cells = (TOGETHER[axis].get(name) for axis in axes)
        rows.append([f"``{name}``", *("yes" if c is None else _words(c) for c in cells)])
    for name, of in OF_AXES.items():
        rows.append([f"``{name}``", *("yes" if axis in of else "–" for axis in axes)])
    return list_table(["option", *(f"``{axis}``" for axis in axes)], rows, stub=True)


def _words(values: tuple[object, ...]) -> str:
    """What an option may be; "–" where it is to be left out."""
    words = [f"``{value}``" for value in values if value not in (None, False, 0, "none", "full")]
    return " or ".join(words) or "–"
