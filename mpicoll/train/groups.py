"""Parameter groups, each with a factor of the learning rate, a weight decay, or both.

A group is written ``PATTERN:lr=FACTOR:decay=DECAY``; one of the two may be left out.  An
optimizer works element by element, so that of a vector of several groups is the optimizer of each
stretch of it: whole, cut for `zero1`, or cut for servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from mpicoll.base.arrays import Array
from mpicoll.train.optimizers import Optimizer, State

#: What `weight_decay` may act on: all parameters, or those of two axes and more.
DECAYING = ("all", "matrices")


@dataclass(frozen=True)
class Group:
    """Parameters by their names.

    Attributes:
        pattern: A shell pattern: ``*.bias``, ``embedding.*``.
        lr: Factor of the learning rate; 0 leaves the parameters as they are.
        decay: Weight decay, None for that of the run.
    """

    pattern: str
    lr: float = 1.0
    decay: float | None = None


def parse(text: str) -> Group:
    """Read a group.

    Raises:
        ValueError: It is none.
    """
    pattern, *facts = text.split(":")
    found = dict(fact.partition("=")[::2] for fact in facts)
    try:
        numbers = {name: float(value) for name, value in found.items()}
    except ValueError:
        numbers = {}
    right = all(0 <= number < math.inf for number in numbers.values())
    if not (pattern and numbers and right and numbers.keys() <= {"lr", "decay"}):
        raise ValueError(
            f"{text!r} is no group of parameters: write PATTERN:lr=FACTOR, PATTERN:decay=DECAY or "
            "both, with numbers of at least 0, such as *.bias:decay=0"
        )
    return Group(pattern, **numbers)


class _Stretch(NamedTuple):
    start: int
    end: int
    optimizer: Optimizer
    lr: float


class Grouped(Optimizer):
    """The optimizer of a vector, or of a part of one, that holds several groups.

    Args:
        slots: Names of the arrays of all its optimizers.
        stretches: Of the vector, ascending, without gaps.
    """

    def __init__(self, slots: tuple[str, ...], stretches: Sequence[_Stretch]) -> None:
        self._slots, self._stretches = slots, stretches

    @property
    def slots(self) -> tuple[str, ...]:
        return self._slots

    def update(self, weights: Array, gradient: Array, state: State, lr: float, step: int) -> None:
        for start, end, optimizer, factor in self._stretches:
            part = {name: array[start:end] for name, array in state.items()}
            optimizer.update(weights[start:end], gradient[start:end], part, lr * factor, step)

    def part(self, start: int, end: int) -> Optimizer:
        """What updates the elements from `start` to `end` of the vector."""
        cut = (
            s._replace(start=max(s.start, start) - start, end=min(s.end, end) - start)
            for s in self._stretches
        )
        return Grouped(self._slots, [s for s in cut if s.start < s.end])


def part_of(optimizer: Optimizer, start: int, end: int) -> Optimizer:
    """What updates a part of the vector that an optimizer is of."""
    return optimizer.part(start, end) if isinstance(optimizer, Grouped) else optimizer


def grouped(
    optimizer: Optimizer,
    views: Mapping[str, Array],
    groups: Sequence[Group],
    decaying: str = "all",
    forms: Mapping[str, Any] | None = None,
) -> Optimizer:
    """The optimizer of parameters that lie one after the other in one vector.

    A parameter is of the first group whose pattern its name has.  One that several layers share has
    one name, and is of one group.

    Args:
        optimizer: For what no group says otherwise.
        views: The parameters by name, in the order of the vector.
        groups: The groups.
        decaying: One of `DECAYING`; the decay that a group names comes before it.
        forms: Of all whole parameters, with their shapes, where the vector has some of them or
            parts of them.

    Raises:
        ValueError: A group has no parameter, or the optimizer no weight decay to change.
    """
    every = forms or views
    for group in groups:
        if not any(fnmatchcase(name, group.pattern) for name in every):
            raise ValueError(
                f"no parameter is of group {group.pattern}: parameters are {', '.join(every)}"
            )
    stretches: list[_Stretch] = []
    start = 0
    for name, view in views.items():
        group = next((g for g in groups if fnmatchcase(name, g.pattern)), Group(name))
        decay = group.decay
        if decay is None and decaying == "matrices" and len(every[name].shape) < 2:
            decay = 0.0
        own = optimizer if decay is None else _decaying(optimizer, decay)
        last = stretches[-1] if stretches else None
        if last is not None and (last.optimizer, last.lr) == (own, group.lr):
            stretches[-1] = last._replace(end=start + view.size)
        else:
            stretches.append(_Stretch(start, start + view.size, own, group.lr))
        start += view.size
    if len(stretches) == 1 and (stretches[0].optimizer, stretches[0].lr) == (optimizer, 1.0):
        return optimizer
    return Grouped(optimizer.slots, stretches)


def _decaying(optimizer: Optimizer, decay: float) -> Optimizer:
    """The same optimizer with another weight decay."""
    try:
        return replace(optimizer, decay=decay)  # type: ignore[type-var]
    except TypeError:
        raise ValueError(
            f"the optimizer {type(optimizer).__name__} has no weight decay that groups could "
            "change: make it a dataclass with a field decay, or leave the decay of groups out"
        ) from None
