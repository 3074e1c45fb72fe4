"""Units of parameters that are gathered and reduced together, and how each is divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.networks import Sequential
from mpicoll.train.ranks.workers import Running, Workers

#: How units are divided; see `FullySharded`.
GATHERS = ("all", "broadcast")
#: What a step does with a unit: `use` it (gather, compute, free), or `reduce` its gradients.
Event = tuple[str, int]


class Unit:
    """Parameters that lie one after the other in a vector, of which this rank owns a part.

    Args:
        name: What their names begin with.
        index: Its number.
        arrays: The parameters; read, not kept.
        own: First element and number of elements that this rank owns, from the number of all.

    Attributes:
        name, index: As given.
        spans: Of each parameter the first element, the one behind the last, and the shape.
        length: Number of elements.
        start, count: What this rank owns.
        weights, gradient: This rank's part, shape (count,).
        state: The optimizer's arrays of that part.
        summed: Whether there is a gradient.
    """

    def __init__(self, name: str, index: int, arrays: Parameters, division: Division) -> None:
        self.name, self.index = name, index
        self.spans: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        self.length = 0
        for full, array in arrays.items():
            self.spans[full] = self.length, self.length + array.size, array.shape
            self.length += array.size
        self.start, self.count = division.own(index, self.length)
        self.weights = np.zeros(self.count, next(iter(arrays.values())).dtype)
        self.gradient = np.zeros_like(self.weights)
        self.state: dict[str, Array] = {}
        self.summed = False
        self.assign(arrays)

    def assign(self, arrays: Parameters) -> None:
        """Take this rank's part of whole arrays."""
        for name, (first, last, _) in self.spans.items():
            low, high = max(first, self.start), min(last, self.start + self.count)
            if low < high:
                values = arrays[name].reshape(-1)[low - first : high - first]
                self.weights[low - self.start : high - self.start] = values

    def views(self, vector: Array) -> dict[str, Array]:
        """The parameters in a vector of all elements."""
        return {
            name: vector[first:last].reshape(shape)
            for name, (first, last, shape) in self.spans.items()
        }


class Division(Protocol):
    """How units are divided among ranks."""

    def own(self, unit: int, length: int) -> tuple[int, int]:
        """First and number of the elements of a unit that this rank owns."""

    def gather(self, unit: int, vector: Array) -> Running:
        """Begin to fill in, on all ranks, the elements that other ranks own."""

    def reduce(self, unit: int, vector: Array, own: Array) -> Running:
        """Begin to sum the ranks' vectors; each rank gets the elements that it owns."""


class EvenParts(Division):
    """Every rank owns an even part of each unit: all-gather and reduce-scatter."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def own(self, unit: int, length: int) -> tuple[int, int]:
        return part(length, self._workers.size, self._workers.rank)

    def gather(self, unit: int, vector: Array) -> Running:
        return self._workers.start_share(vector)

    def reduce(self, unit: int, vector: Array, own: Array) -> Running:
        return self._workers.start_reduce_scatter(vector, own)


class WholeUnits(Division):
    """Unit u is owned by rank u mod N: broadcast and reduce."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def own(self, unit: int, length: int) -> tuple[int, int]:
        return 0, length if unit % self._workers.size == self._workers.rank else 0

    def gather(self, unit: int, vector: Array) -> Running:
        return self._workers.start_broadcast(vector, unit % self._workers.size)

    def reduce(self, unit: int, vector: Array, own: Array) -> Running:
        return self._workers.start_reduce(vector, own, unit % self._workers.size)


def grouped(names: Sequence[str]) -> dict[str, list[str]]:
    """Names by what they begin with: `layer1` for `layer1.weight` and `layer1.0.bias`."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.partition(".")[0], []).append(name)
    return found


def program(layers: Sequence[int | None]) -> list[Event]:
    """What a step of a chain of layers does, in order.

    Args:
        layers: The unit of each layer; None for one without parameters.
    """
    forward = [("use", unit) for unit in layers if unit is not None]
    left, backward = Counter(unit for _, unit in forward), []
    for event in reversed(forward):
        backward.append(event)
        left[event[1]] -= 1
        if not left[event[1]]:
            backward.append(("reduce", event[1]))
    return forward + backward


def memory(lengths: Sequence[int], owned: Sequence[int], slots: int, ahead: int, keep: bool) -> int:
    """Elements that a rank holds in a step, beside what layers work in.

    Its parts of parameters, gradients and `slots` arrays of an optimizer; gathered units; and the
    gradients of one unit.

    Args:
        lengths: Of each unit.
        owned: Elements of each that this rank owns.
        slots: Arrays of the optimizer.
        ahead: Units that are gathered before they are used.
        keep: Whether gathered units are kept until the update.
    """
    gathered = sum(lengths) if keep else min(1 + ahead, len(lengths)) * max(lengths)
    return (2 + slots) * sum(owned) + gathered + max(lengths)


class Drawn(Mapping[str, Array]):
    """The first parameters of a model, each layer's drawn when it is read.

    At most those of one layer are there at a time.

    Args:
        model: The model.
        seed: As of `Sequential.initial_parameters`.
    """

    def __init__(self, model: Sequential, seed: int) -> None:
        self._model, self._seed = model, seed
        self._layer: int | None = None
        self._arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        layer = self._model.holders[name][0]
        if layer != self._layer:
            self._arrays = {}  # before the next ones are drawn
            self._arrays = self._model.initial_parameters(self._seed, [layer])
            self._layer = layer
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.parameter_shapes)

    def __len__(self) -> int:
        return len(self._model.parameter_shapes)
