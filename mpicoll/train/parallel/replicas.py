"""What the replicas of a stage have of its parameters, and how they add their gradients up.

S. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020,
section 5: replicas that own pieces have the optimizer's arrays of these alone (stage 1), and of the
parameters the pieces alone between steps (stage 3).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import TypeVar, cast

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.exchange.buckets import default_bucket
from mpicoll.train.models.flat import Flat
from mpicoll.train.parallel.agreement import Group
from mpicoll.train.parallel.layer_weights import LayerWeights, gathers
from mpicoll.train.parallel.memory import replica
from mpicoll.train.parallel.piece_sums import PieceSums
from mpicoll.train.parallel.pieces import MOST, Gathering, Pieces, WholeArrays
from mpicoll.train.parallel.stage import Stage
from mpicoll.train.parallel.sums import Sums, Use
from mpicoll.train.parallel.units import GATHERS
from mpicoll.train.parallel.weights import Weights
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.step.tasks import Task

Key = TypeVar("Key", bound=Hashable)


class Replicas:
    """Each has all parameters of its stage, and makes the same update.

    Args:
        stage: This rank's.
        group: The ranks.
        dtype: Type to compute in.

    Attributes:
        owns_pieces: Whether each updates a piece of every parameter; otherwise all of it.
        are_alike: Whether all have the same parameters between steps.
        keeps_whole: Whether each has whole parameters between steps.
        weights: The parameters, as they are kept between steps: whole, or this rank's pieces, each
            of one axis.
        sums: Where gradients of this rank are added up.
    """

    owns_pieces, keeps_whole, are_alike = False, True, True

    def __init__(self, stage: Stage, group: Group, dtype: np.dtype) -> None:
        self._stage, self._group, self._dtype = stage, group, dtype
        self.weights = stage.weights
        self._shapes = {name: array.shape for name, array in stage.parameters.items()}
        self.sums = self._make_sums()

    def _make_sums(self) -> Sums:
        group = self._group
        return Sums(self._stage.uses, self._wide, group.parts, group.tree_over)

    @property
    def _wide(self) -> np.dtype:
        """Type in which parameters are kept."""
        return np.promote_types(self._dtype, np.float32)

    @property
    def workers(self) -> Workers:
        """All of them."""
        return self._group.data

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

    def summed(self) -> Mapping[Use, Array]:
        """The gradients of all replicas, of what this rank updates; collective."""
        self._group.add_replicas(self.sums)
        return self.sums.uses

    def changed(self) -> None:
        """Each rank has updated what it owns; collective."""

    def versions(self, program: Sequence[Task]) -> Weights:
        """What the tasks of a program compute with; collective."""
        stage = self._stage
        return Weights(stage.parameters, stage.buffers, stage.names, self._dtype, program)

    def whole(self, name: str, piece: Array) -> Array:
        """An array like a parameter, of what this rank owns of it; collective."""
        return piece.reshape(self._stage.parameters[name].shape)

    def piece(self, name: str, whole: Array) -> Array:
        """What this rank owns of an array like a parameter, of one axis."""
        return whole.reshape(-1)

    def nbytes(self, slots: int) -> dict[str, int]:
        """Bytes beside the parameters, by what for.

        Args:
            slots: Arrays of the optimizer for each parameter.
        """
        return replica(
            self._wide.itemsize * self._elements,
            slots,
            self._group.data.size,
            self.owns_pieces,
            self.sums.nbytes,
        )

    @property
    def longest_nbytes(self) -> int:
        """Bytes of the gradients that a layer finds, the most of any."""
        layers: dict[int, int] = {}
        for (layer, _), shape in self._stage.uses.items():
            layers[layer] = layers.get(layer, 0) + prod(shape)
        return self._wide.itemsize * max(layers.values(), default=0)

    def step_nbytes(self) -> dict[str, int]:
        """Bytes of a step, beside gradients and what layers keep, by what for."""
        narrow = self._dtype.itemsize < 4  # layers compute in float32
        return {"parameters to compute with": 4 * self._elements} if narrow else {}

    @property
    def _elements(self) -> int:
        """Of all parameters of the stage."""
        return sum(prod(shape) for shape in self._shapes.values())

    def collectives(self, program: Sequence[Task]) -> list[tuple[str, int]]:
        """Name and bytes of the whole vector of each collective of a step."""
        length = sum(prod(shape) for shape in self._stage.uses.values())
        nbytes = length * self.weights.vector.itemsize
        return [self._group.sum_of_replicas(nbytes)] if length else []


class Independent(Replicas):
    """Each has parameters of its own, and updates them by its own part of a batch."""

    are_alike = False

    def summed(self) -> Mapping[Use, Array]:
        return self.sums.uses

    def collectives(self, program: Sequence[Task]) -> list[tuple[str, int]]:
        return []


class OwnedPieces(Replicas):
    """Each updates a piece of every parameter, and gives it to the others.

    Gradients are summed while the backward pass of the last microbatch goes on.
    """

    owns_pieces = True
    sums: PieceSums

    def __init__(self, stage: Stage, group: Group, dtype: np.dtype) -> None:
        group.data.connect()  # collective: before anything that may fail on one rank
        super().__init__(stage, group, dtype)
        sizes = {name: prod(shape) for name, shape in self._shapes.items()}
        self._parameters = self._divided(sizes, self._most)

    @property
    def _most(self) -> int:
        """Elements that go through a collective together."""
        item = self._wide.itemsize
        return default_bucket(item * sum(map(prod, self._stage.uses.values()))) // item

    def _make_sums(self) -> Sums:
        uses = self._stage.uses
        self._gradients = {
            number: self._divided(
                {use: prod(uses[use]) for use in sorted(uses, reverse=True) if use[0] in c.numbers},
                self._most,
            )
            for number, c in self._stage.chunks.items()
        }
        return PieceSums(uses, self._wide, self._group.parts, self._gradients)

    def owned(self) -> dict[str, tuple[Array, int, int]]:
        found = {}
        for name, (start, _) in self.weights.spans.items():
            first, last = (start + place for place in self._parameters.spans[name])
            found[name] = self.weights.vector[first:last], first, last
        return found

    def first(self, name: str) -> int:
        return self._parameters.spans[name][0]

    def summed(self) -> Mapping[Use, Array]:
        return self.sums.found

    def changed(self) -> None:
        if self._group.data.size > 1:
            own = {name: piece for name, (piece, _, _) in self.owned().items()}
            self._parameters.gather(own, self._stage.parameters, self.weights.vector.dtype)

    def whole(self, name: str, piece: Array) -> Array:
        found = np.empty(self._shapes[name], piece.dtype)
        single = self._divided({name: found.size})
        single.gather({name: piece}, {name: found}, piece.dtype)
        return found

    def piece(self, name: str, whole: Array) -> Array:
        first, last = self._parameters.spans[name]
        return whole.reshape(-1)[first:last]

    def step_nbytes(self) -> dict[str, int]:
        # Gradients are exchanged chunk by chunk; parameters of all chunks, by `changed`.
        longest = max(self._longest_gradients, self._parameters.longest)
        return {**super().step_nbytes(), "exchanged pieces": longest * self._wide.itemsize}

    @property
    def _longest_gradients(self) -> int:
        """Elements of the longest vector of gradients that goes through a collective."""
        return max(pieces.longest for pieces in self._gradients.values())

    def collectives(self, program: Sequence[Task]) -> list[tuple[str, int]]:
        gather, reduce = self._parameters.collectives
        every = [n for pieces in self._gradients.values() for n in pieces.lengths()]
        return [
            *((reduce, length * self._wide.itemsize) for length in every),
            *((gather, length * self._item) for length in self._gathered(program)),
        ]

    def _gathered(self, program: Sequence[Task]) -> list[int]:
        """Elements of the whole vector of each collective that gathers."""
        return self._parameters.lengths()

    @property
    def _item(self) -> int:
        """Bytes of a value that is gathered."""
        return self._wide.itemsize

    def _divided(self, sizes: Mapping[Key, int], most: int = MOST) -> Pieces[Key]:
        """Who owns what of some arrays."""
        return Pieces(sizes, self._group.data, most)


class _Layer:
    """Parameters of a layer that are being gathered: `Coming` of `LayerWeights`."""

    def __init__(
        self,
        parts: Sequence[Gathering[str]],
        shapes: Mapping[str, tuple[int, ...]],
        dtype: np.dtype,
    ) -> None:
        self._parts, self._shapes, self._dtype = parts, shapes, dtype

    def Test(self) -> None:
        for part in self._parts:
            part.Test()

    def finish(self) -> dict[str, Array]:
        whole = {name: np.empty(shape, self._dtype) for name, shape in self._shapes.items()}
        for part in self._parts:
            part.finish(whole)
        return whole


class FreedBetweenSteps(OwnedPieces):
    """Between steps each has its pieces alone: the first task of a layer gathers its parameters.

    They are gathered in the type to compute in, while the layer before is computed, and freed
    behind the last task.

    Args:
        stage, group, dtype: As of `Replicas`.
        gather: What a replica owns: an even part of every array ("all"), or all of some layers
            ("broadcast").
    """

    keeps_whole = False
    #: Whether gathered parameters stay to the end of the step.
    _keep = True

    def __init__(
        self, stage: Stage, group: Group, dtype: np.dtype, gather: str = GATHERS[0]
    ) -> None:
        self._by_layers = gather == "broadcast"
        super().__init__(stage, group, dtype)
        own = {name: piece for name, (piece, _, _) in super().owned().items()}
        out = None if own else np.zeros(0, self._wide)
        self.weights = Flat(own, out=out)
        stage.weights, stage.parameters = Flat({}, out=self.weights.vector[:0]), {}
        self._layers: dict[int, dict[int, list[str]]] = {}
        for number, chunk in stage.chunks.items():
            names = {n: [name for layer, name in stage.uses if layer == n] for n in chunk.numbers}
            self._layers[number] = {layer: sorted(own) for layer, own in names.items() if own}
        self._pieces: dict[tuple[str, ...], Pieces[str]] = {}

    def owned(self) -> dict[str, tuple[Array, int, int]]:
        return Replicas.owned(self)

    def changed(self) -> None:
        """Nothing is gathered before the next step."""

    def _divided(self, sizes: Mapping[Key, int], most: int = MOST) -> Pieces[Key]:
        if not self._by_layers:
            return super()._divided(sizes, most)
        count = self._group.data.size
        names = {key: key if isinstance(key, str) else cast("Use", key)[1] for key in sizes}
        owners = {key: self._stage.units[name] % count for key, name in names.items()}
        return WholeArrays(sizes, self._group.data, owners, most)

    def nbytes(self, slots: int) -> dict[str, int]:
        found = super().nbytes(slots)
        if self._by_layers:
            found["optimizer"] = slots * self.weights.vector.nbytes
            every = [span for pieces in self._gradients.values() for span in pieces.spans.values()]
            found["sums"] = self._wide.itemsize * sum(end - start for start, end in every)
        return found

    def versions(self, program: Sequence[Task]) -> Weights:
        given = self._layers, self._stage.buffers, self._dtype, program, self._keep
        return LayerWeights(self._start, *given)

    def _start(self, layer: int, names: Sequence[str]) -> _Layer:
        parts = self._of_layer(names).start_gathers(self.weights.views, self._dtype)
        return _Layer(parts, {name: self._shapes[name] for name in names}, self._dtype)

    def _of_layer(self, names: Sequence[str]) -> Pieces[str]:
        key = tuple(names)
        if key not in self._pieces:
            self._pieces[key] = self._divided({name: prod(self._shapes[name]) for name in key})
        return self._pieces[key]

    def step_nbytes(self) -> dict[str, int]:
        wide = max(4, self._dtype.itemsize)  # layers of narrow types compute in float32
        pieces = self._longest_gradients * self._wide.itemsize
        return {"exchanged pieces": pieces, "gathered parameters": self._gathered_nbytes(wide)}

    def _gathered_nbytes(self, item: int) -> int:
        """Bytes of gathered parameters in the last backward pass, of so many bytes each."""
        return self._elements * item

    @property
    def _item(self) -> int:
        return self._dtype.itemsize

    def _gathered(self, program: Sequence[Task]) -> list[int]:
        tasks = [task for task in program if not task.is_message]
        every = gathers(tasks, self._layers, self._keep)
        return [n for task in every for _, own in task for n in self._of_layer(own).lengths()]


class FreedBehindLayers(FreedBetweenSteps):
    """Each has its pieces alone: a task gathers layer by layer, and frees each before the next."""

    _keep = False

    def _gathered_nbytes(self, item: int) -> int:
        # A layer that is used, and of the next one what travels.
        every = [own for layers in self._layers.values() for own in layers.values()]
        longest = max((sum(self._of_layer(own).lengths()) for own in every), default=0)
        return longest * (item + self._item)


#: Makes what the replicas of a stage have.
MakeReplicas = Callable[[Stage, Group, np.dtype], Replicas]
