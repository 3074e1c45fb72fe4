"""Units of parameters that are gathered and reduced together, and how each is divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

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
        division: How units are divided.
        dtype: Type that they are kept in.
        start: Where this rank's part begins in the vector of its parts of all units.

    Attributes:
        name, index: As given.
        spans: Of each parameter the first element, the one behind the last, and the shape.
        length: Number of elements.
        start, count: What this rank owns.
        own: Where that is in the vector of its parts of all units.
        weights: This rank's part, shape (count,).
        summed: Whether there is a gradient.
    """

    def __init__(
        self,
        name: str,
        index: int,
        arrays: Parameters,
        division: Division,
        dtype: np.dtype[Any],
        start: int,
    ) -> None:
        self.name, self.index = name, index
        self.spans: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        self.length = 0
        for full, array in arrays.items():
            self.spans[full] = self.length, self.length + array.size, array.shape
            self.length += array.size
        self.start, self.count = division.own(index, self.length)
        self.own = slice(start, start + self.count)
        self.weights: Array = np.zeros(self.count, dtype)
        self.summed = False
        self.assign(arrays)

    def move(self, vector: Array) -> None:
        """Keep this rank's part in the vector of its parts of all units."""
        vector[self.own] = self.weights
        self.weights = vector[self.own]

    def assign(self, arrays: Parameters) -> None:
        """Take this rank's part of whole arrays."""
        for name, first, place in self.parts():
            length = place.stop - place.start
            values = arrays[name].reshape(-1)[first : first + length]
            start = place.start - self.own.start
            self.weights[start : start + length] = values

    def parts(self) -> Iterator[tuple[str, int, slice]]:
        """Of each parameter: its name, the first element that this rank owns, and where it is.

        The places are of the vector of all units; of some parameters this rank owns nothing.
        """
        for name, (first, last, _) in self.spans.items():
            low = min(max(first, self.start), last)
            length = max(0, min(last, self.start + self.count) - low)
            begin = self.own.start + min(max(low - self.start, 0), self.count)
            yield name, low - first, slice(begin, begin + length)

    def views(self, vector: Array) -> dict[str, Array]:
        """The parameters in a vector of all elements."""
        return {
            name: vector[first:last].reshape(shape)
            for name, (first, last, shape) in self.spans.items()
        }


class Division(Protocol):
    """How units are divided among ranks.

    Attributes:
        collectives: Names of those that gather a unit, and that sum its gradients.
    """

    collectives: tuple[str, str]

    def own(self, unit: int, length: int) -> tuple[int, int]:
        """First and number of the elements of a unit that this rank owns."""

    def gather(self, unit: int, vector: Array) -> Running:
        """Begin to fill in, on all ranks, the elements that other ranks own."""

    def reduce(self, unit: int, vector: Array, own: Array) -> Running:
        """Begin to sum the ranks' vectors; each rank gets the elements that it owns."""


class EvenParts(Division):
    """Every rank owns an even part of each unit: all-gather and reduce-scatter."""

    collectives = "allgather", "reduce_scatter"

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

    collectives = "bcast", "reduce"

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


def sendable(vector: Array) -> Array:
    """The same memory in a type that MPI knows: of two bytes it has no floating-point numbers."""
    return vector.view(np.int16) if vector.itemsize == 2 else vector


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


def buffered(lengths: Sequence[int], ahead: int, keep: bool) -> int:
    """Elements of the buffers that units are gathered into; arguments as of `memory`."""
    return sum(lengths) if keep else min(1 + ahead, len(lengths)) * max(lengths)


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
    return (2 + slots) * sum(owned) + buffered(lengths, ahead, keep) + max(lengths)


class Drawn(Mapping[str, Array]):
    """The first parameters of a model; those of a layer are drawn when they are read.

    At most one layer's parameters exist at a time.

    Args:
        model: The model.
        seed: As for `Sequential.initial_parameters`.
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
