"""The picture of docs/simulation.rst: steps of a ring and of a double binary tree by rank count.

``python docs/growth.py`` writes docs/growth.svg, in about a minute; it is kept, so that a build of
the documentation need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mpicoll import algorithms
from mpicoll.report import papers
from mpicoll.simulate import simulate
from mpicoll.simulate.machine import STEPS

PICTURE = Path(__file__).resolve().parent / "growth.svg"
NAMES = ("ring", "double_binary_tree")


def steps(name: str, sizes: Iterable[int]) -> dict[int, int]:
    """Steps of an all-reduce, one message after the other through each port, by rank count."""
    entry = algorithms.find("allreduce", name)
    return {size: simulate(entry, size, 0, STEPS).makespan for size in sizes}


def main() -> None:
    """Write the picture."""
    sizes = [1 << k for k in range(1, 17)]
    series = {name: steps(name, sizes) for name in NAMES}
    for name, found in series.items():
        print(name, found)
    papers.by_ranks(PICTURE, series, "all-reduce, one port a rank", "steps")


if __name__ == "__main__":
    main()
