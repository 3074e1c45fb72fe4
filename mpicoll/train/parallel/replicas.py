"""What the replicas of a stage have of its parameters, and how they add their gradients up.

S. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020,
section 5: replicas that own pieces have the optimizer's arrays of these alone (stage 1), and of the
parameters the pieces alone between steps (stage 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.flat import Flat
from mpicoll.train.parallel.agreement import Group
from mpicoll.train.parallel.layer_weights import LayerWeights
from mpicoll.train.parallel.pieces import Pieces
from mpicoll.train.parallel.stage import Stage
from mpicoll.train.parallel.sums import Sums, Use
from mpicoll.train.parallel.weights import Weights
from mpicoll.train.step.tasks import Task


class Replicas:
    """Each has all parameters of its stage, and makes the same update.

    Args:
        stage: This rank's.
        group: The ranks.
        dtype: Type to compute in.

    Attributes:
        owns_pieces: Whether each updates a piece of every parameter; otherwise all of it.
        keeps_whole: Whether each has whole parameters between steps.
        weights: The parameters, as they are kept between steps: whole, or this rank's pieces, each
            of one axis.
    """

    owns_pieces, keeps_whole = False, True

    def __init__(self, stage: Stage, group: Group, dtype: np.dtype) -> None:
        self._stage, self._group, self._dtype = stage, group, dtype
        self.weights = stage.weights

    def owned(self) -> dict[str, tuple[Array, int, int]]:
        """Of each parameter what this rank updates, of one axis, and where it is in `weights`."""
        vector = self.weights.vector
        return {
            name: (vector[start:end], start, end)
            for name, (start, end) in self.weights.spans.items()
        }

    def first(self, name: str) -> int:
        """Where in a parameter begins what this rank owns of it."""
        return 0

    def summed(self, sums: Sums) -> Mapping[Use, Array]:
        """The gradients of all replicas, of what this rank updates; collective."""
        self._group.add_replicas(sums)
        return sums.uses

    def changed(self) -> None:
        """Each rank has updated what it owns; collective."""

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """The stage has its whole parameters within the statement; entering is collective."""
        yield

    def versions(self, program: Sequence[Task]) -> Weights:
        """What the tasks of a program compute with."""
        stage = self._stage
        return Weights(stage.parameters, stage.buffers, stage.names, self._dtype, program)

    def whole(self, name: str, piece: Array) -> Array:
        """An array like a parameter, of what this rank owns of it; collective."""
        return piece.reshape(self._stage.parameters[name].shape)

    def piece(self, name: str, whole: Array) -> Array:
        """What this rank owns of an array like a parameter, of one axis."""
        return whole.reshape(-1)

    @property
    def elements(self) -> int:
        """Of the parameters that a task has at a time: all of the stage, unless it is said."""
        return self.weights.vector.size

    def step_nbytes(self) -> dict[str, int]:
        """Bytes of a step, beside gradients and what is kept, by what for."""
        return {}

    def collectives(self, tasks: Mapping[int, int]) -> list[tuple[str, int]]:
        """Name and bytes of the whole vector of each collective of a step.

        Args:
            tasks: How many computing tasks there are of each chunk.
        """
        length = sum(prod(shape) for shape in self._stage.uses.values())
        nbytes = length * self.weights.vector.itemsize
        return [self._group.sum_of_replicas(nbytes)] if length else []


class OwnedPieces(Replicas):
    """Each updates a piece of every parameter, and gives it to the others."""

    owns_pieces = True

    def __init__(self, stage: Stage, group: Group, dtype: np.dtype) -> None:
        super().__init__(stage, group, dtype)
        sizes = {name: array.size for name, array in stage.parameters.items()}
        self._shapes = {name: array.shape for name, array in stage.parameters.items()}
        self._parameters = Pieces(sizes, group.data)
        uses = {use: prod(shape) for use, shape in stage.uses.items()}
        self._gradients = Pieces(uses, group.data)
        longest = max(self._gradients.longest, self._parameters.longest)
        self._buffer_nbytes = longest * stage.weights.vector.itemsize

    def owned(self) -> dict[str, tuple[Array, int, int]]:
        found = {}
        for name, (start, _) in self.weights.spans.items():
            first, last = (start + place for place in self._parameters.spans[name])
            found[name] = self.weights.vector[first:last], first, last
        return found

    def first(self, name: str) -> int:
        return self._parameters.spans[name][0]

    def summed(self, sums: Sums) -> Mapping[Use, Array]:
        return self._gradients.sum(sums.uses, self.weights.vector.dtype)

    def changed(self) -> None:
        if self._group.data.size > 1:
            own = {name: piece for name, (piece, _, _) in self.owned().items()}
            self._parameters.gather(own, self._stage.parameters, self.weights.vector.dtype)

    def whole(self, name: str, piece: Array) -> Array:
        found = np.empty(self._shapes[name], piece.dtype)
        single = Pieces({name: found.size}, self._group.data)
        single.gather({name: piece}, {name: found}, piece.dtype)
        return found

    def piece(self, name: str, whole: Array) -> Array:
        first, last = self._parameters.spans[name]
        return whole.reshape(-1)[first:last]

    def step_nbytes(self) -> dict[str, int]:
        return {"exchanged pieces": self._buffer_nbytes}

    def collectives(self, tasks: Mapping[int, int]) -> list[tuple[str, int]]:
        item = self.weights.vector.itemsize
        return [
            *(("reduce_scatter", length * item) for length in self._gradients.lengths()),
            *(("allgather", length * self._item) for length in self._gathered(tasks)),
        ]

    def _gathered(self, tasks: Mapping[int, int]) -> list[int]:
        """Elements of the whole vector of each collective that gathers."""
        return self._parameters.lengths()

    @property
    def _item(self) -> int:
        """Bytes of a value that is gathered."""
        return self.weights.vector.itemsize


class FreedBetweenSteps(OwnedPieces):
    """Between steps each has its pieces alone: parameters are gathered before the first task.

    They are gathered in the type to compute in, and freed behind the last task.
    """

    keeps_whole = False

    def __init__(self, stage: Stage, group: Group, dtype: np.dtype) -> None:
        super().__init__(stage, group, dtype)
        own = {name: piece for name, (piece, _, _) in super().owned().items()}
        out = None if own else np.zeros(0, stage.weights.vector.dtype)
        self.weights = Flat(own, out=out)
        stage.weights, stage.parameters = Flat({}, out=self.weights.vector[:0]), {}

    def owned(self) -> dict[str, tuple[Array, int, int]]:
        return Replicas.owned(self)

    def changed(self) -> None:
        """Nothing is gathered before the next step."""

    @contextmanager
    def gathered(self) -> Iterator[None]:
        whole = {name: np.empty(shape, self._dtype) for name, shape in self._shapes.items()}
        self._parameters.gather(self.weights.views, whole, self._dtype)
        self._stage.parameters = whole
        try:
            yield
        finally:
            self._stage.parameters = {}

    @property
    def elements(self) -> int:
        return sum(prod(shape) for shape in self._shapes.values())

    def step_nbytes(self) -> dict[str, int]:
        gathered = {"gathered parameters": self.elements * self._dtype.itemsize}
        return {**super().step_nbytes(), **gathered}

    @property
    def _item(self) -> int:
        return self._dtype.itemsize


class FreedBehindLayers(FreedBetweenSteps):
    """Each has its pieces alone: a task gathers layer by layer, and frees each before the next."""

    def __init__(self, stage: Stage, group: Group, dtype: np.dtype) -> None:
        super().__init__(stage, group, dtype)
        self._names: dict[int, list[str]] = {}
        for layer, name in sorted(stage.uses):
            self._names.setdefault(layer, []).append(name)
        self._layers = {
            layer: Pieces({name: prod(self._shapes[name]) for name in names}, group.data)
            for layer, names in self._names.items()
        }

    @contextmanager
    def gathered(self) -> Iterator[None]:
        yield

    def versions(self, program: Sequence[Task]) -> Weights:
        layers = {
            number: [layer for layer in chunk.numbers if layer in self._layers]
            for number, chunk in self._stage.chunks.items()
        }
        return LayerWeights(self._gather, layers, self._stage.buffers, self._dtype)

    @property
    def elements(self) -> int:
        return max((sum(pieces.lengths()) for pieces in self._layers.values()), default=0)

    def _gather(self, layer: int) -> dict[str, Array]:
        whole = {name: np.empty(self._shapes[name], self._dtype) for name in self._names[layer]}
        self._layers[layer].gather(self.weights.views, whole, self._dtype)
        return whole

    def _gathered(self, tasks: Mapping[int, int]) -> list[int]:
        return [
            length
            for number, chunk in self._stage.chunks.items()
            for layer in chunk.numbers
            if layer in self._layers
            for length in self._layers[layer].lengths() * tasks[number]
        ]
