"""What it costs to check the steps of a plan while it is built.

    python benchmarks/plan_checks.py

For plans of several algorithms: the least processor time of building one, the number of steps whose
peer is checked, the least time of these checks by themselves, and their share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
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
RANKS, ROUNDS = 64, 200


def shape(collective: str, algorithm: str, parameters: dict[str, int]) -> Shape:
    """A call of 64 Ki elements of four bytes."""
    complete = tuning.check(collective, algorithm, parameters)
    cut = layout.even(1 << 16, algorithms.find(collective, algorithm).blocks(RANKS))
    return Shape(collective, algorithm, complete, 1, RANKS, 0, False, 4, 4, cut, cut)


def least(work: Callable[[], object]) -> float:
    """The least processor time of some work."""
    found = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def checked(built: Shape) -> tuple[Any, list[Any]]:
    """A builder, and the steps that it checks."""
    steps: list[tuple[Any, Any]] = []
    check = planning._Builder._check_peer

    def keep(builder: Any, step: Any) -> None:
        steps.append((builder, step))
        check(builder, step)

    with mock.patch.object(planning._Builder, "_check_peer", keep):
        planning.build(built)
    return steps[0][0], [step for _, step in steps]


def main() -> None:
    print(
        f"{f'plan on {RANKS} ranks':40} {'build [us]':>11} {'steps':>6} {'checks [us]':>12} share"
    )
    for collective, algorithm, parameters in CASES:
        built = shape(collective, algorithm, parameters)
        builder, steps = checked(built)

        def check(builder: Any = builder, steps: list[Any] = steps) -> None:
            for step in steps:
                builder._check_peer(step)

        whole, part = least(lambda built=built: planning.build(built)), least(check)
        words = " ".join([collective, algorithm, *(f"{k}={v}" for k, v in parameters.items())])
        numbers = f"{whole * 1e6:11.1f} {len(steps):6} {part * 1e6:12.1f} {part / whole:.1%}"
        print(f"{words:40} {numbers}")


if __name__ == "__main__":
    main()
