"""What a sweep measures, how well, and how the order of its points comes about."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from mpicoll.bench.workload import elements

#: How ranks may begin a repetition together.
STARTS = ("barrier", "window")


@dataclass(frozen=True)
class SweepSettings:
    """What to measure and how well.

    Attributes:
        algorithms: The choices for each collective, in the order of the report: algorithms with
            parameters, as ``chain segments=4``.
        sizes: Bytes of the whole vector.
        dtypes: Element types.
        ranks: Numbers of ranks; of so many the first ones are taken. All ranks if empty.
        check: Whether outputs are checked before and after the repetitions.
        seed: Of the order.

    The others are options of `mpicoll bench` as they are written: see `mpicoll.bench.options`.
    """

    algorithms: dict[str, tuple[str, ...]]
    sizes: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    ranks: tuple[int, ...] = ()
    op: str = "sum"
    root: int = 0
    warmup: int = 5
    precision: float = 0.025
    iterations: int | None = None
    point_seconds: float = 2.0
    budget: float | None = None
    check: bool = True
    seed: int = 0
    timeout: float = 120.0
    launch: int = 0
    start: str = "barrier"
    cold: bool = False
    in_place: bool = False
    skew: float = 0.0
    device: str = "cpu"

    def plain(self) -> dict[str, Any]:
        """The settings as they are after being written as JSON and read again."""
        written = json.dumps({**asdict(self), "dtypes": [dtype.name for dtype in self.dtypes]})
        return dict(json.loads(written))


@dataclass(frozen=True)
class Key:
    """What tells a point from the others of a sweep."""

    collective: str
    ranks: int
    type: str
    count: int
    choice: str


@dataclass(frozen=True)
class Group:
    """Algorithms that are measured together, by turns: one collective, size, type and P."""

    collective: str
    ranks: int
    dtype: np.dtype[Any]
    count: int
    algorithms: tuple[str, ...]

    def key(self, choice: str) -> Key:
        """The key of one of its points."""
        kind = "none" if self.collective == "barrier" else self.dtype.name
        return Key(self.collective, self.ranks, kind, self.count, choice)


def groups(settings: SweepSettings, size: int, done: frozenset[Key] = frozenset()) -> list[Group]:
    """What a sweep has to measure, in the order of a report; nothing twice.

    Args:
        settings: The sweep.
        size: Number of ranks there are.
        done: Points that are measured already.
    """
    found: dict[Key, Group] = {}
    for collective, ranks, dtype, nbytes in product(
        settings.algorithms, settings.ranks or (size,), settings.dtypes, settings.sizes
    ):
        count = elements(collective, nbytes, dtype.itemsize, ranks)
        group = Group(collective, ranks, dtype, count, settings.algorithms[collective])
        missing = tuple(name for name in group.algorithms if group.key(name) not in done)
        found.setdefault(group.key(""), replace(group, algorithms=missing))
    return [group for group in found.values() if group.algorithms]


def shuffled(todo: list[Group], seed: int) -> list[Group]:
    """The groups in an order that the seed decides."""
    order = list(todo)
    random.Random(seed).shuffle(order)
    return order
