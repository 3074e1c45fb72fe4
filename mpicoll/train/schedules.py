"""The learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable

#: Learning rate of a step, counted from 1.
Schedule = Callable[[int], float]

#: Name of each schedule and the factor it gives after this share of the steps.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2,
    "steps": lambda done: 0.1 ** ((done >= 0.5) + (done >= 0.75)),
}

#: Name of each way to scale the learning rate and the factor for a number of ranks.
SCALINGS: dict[str, Callable[[int], float]] = {
    "none": lambda ranks: 1.0,
    "linear": lambda ranks: float(ranks),
    "sqrt": math.sqrt,
}


def rate(base: float, name: str, step: int, total: int, warmup: int = 0) -> float:
    """Learning rate of a step.

    Args:
        base: The highest.
        name: A name in `SCHEDULES`.
        step: Counted from 1.
        total: Steps of the whole run.
        warmup: First steps, in which the rate grows evenly up to `base` (Goyal et al. 2017); the
            schedule covers the steps after them.
    """
    if step <= warmup:
        return base * step / warmup
    done = (step - 1 - warmup) / max(1, total - warmup)
    return base * SCHEDULES[name](min(done, 1.0))


def table(schedule: Schedule, total: int) -> list[float]:
    """What a schedule says of each step of a run, asked once and in order.

    Raises:
        ValueError: A rate is negative or not finite.
    """
    rates = [float(schedule(step)) for step in range(1, total + 1)]
    for step, found in enumerate(rates, 1):
        if not 0 <= found < math.inf:
            raise ValueError(
                f"the schedule gives step {step} the learning rate {found}: give a finite number "
                "of at least 0"
            )
    return rates
