"""What it costs to check the steps of a plan while it is built.

    python benchmarks/plan_checks.py

Builds plans of several algorithms with the check of each step's peer and without it, by turns, and
prints the median share of the time that the check takes.
"""

from __future__ import annotations

import time
from statistics import median
from unittest import mock

from mpicoll import algorithms, tuning
from mpicoll.engine import planning
from mpicoll.engine.plan import Shape
from mpicoll.schedule import layout

CASES = (
    ("allreduce", "ring", {}),
    ("allreduce", "double_binary_tree", {"segments": 32}),
    ("allreduce", "recursive_doubling", {}),
    ("bcast", "chain", {"segments": 64}),
    ("alltoall", "linear", {}),
)
RANKS, ROUNDS, CALLS = 64, 40, 5


def shape(collective: str, algorithm: str, parameters: dict[str, int]) -> Shape:
    """A call of 64 Ki elements of four bytes."""
    complete = tuning.check(collective, algorithm, parameters)
    cut = layout.even(1 << 16, algorithms.find(collective, algorithm).blocks(RANKS))
    return Shape(collective, algorithm, complete, 1, RANKS, 0, False, 4, 4, cut, cut)


def seconds(built: Shape) -> float:
    """Time of a plan."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        planning.build(built)
    return (time.perf_counter() - begin) / CALLS


def main() -> None:
    unchecked = mock.patch.object(planning._Builder, "_check_peer", lambda self, step: None)
    print(f"{'plan on ' + str(RANKS) + ' ranks':40} {'build [us]':>11} {'check [%]':>10}")
    for collective, algorithm, parameters in CASES:
        built = shape(collective, algorithm, parameters)
        whole, shares = [], []
        for _ in range(ROUNDS):
            with_check = seconds(built)
            with unchecked:
                without = seconds(built)
            whole.append(with_check)
            shares.append(1 - without / with_check)
        words = " ".join([collective, algorithm, *(f"{k}={v}" for k, v in parameters.items())])
        print(f"{words:40} {median(whole) * 1e6:11.1f} {100 * median(shares):10.1f}")


if __name__ == "__main__":
    main()
