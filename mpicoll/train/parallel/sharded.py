"""Layers of which each rank of a group has a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer, Outputs, Residual, Shape
from mpicoll.train.models.pointwise import Dropout
from mpicoll.train.models.sequences import Attention, Embedding
from mpicoll.train.parallel.conjugate import Group, Step
from mpicoll.train.parallel.placements import Cut

T = TypeVar("T")
#: How parameters and buffers are cut, by the names that the layer knows.
Cuts = Mapping[str, Cut]
#: Collectives of both passes: name and values of the whole vector.
Calls = tuple[list[tuple[str, int]], list[tuple[str, int]]]


@dataclass(frozen=True)
class EmbeddingRows(Embedding):
    """The vectors of some tokens; those of others are zero.

    Attributes:
        start: The first of the tokens.
    """

    start: int = 0

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        outside = (inputs < 0) | (inputs >= self.tokens)
        if outside.any():  # on all ranks alike, though some could not tell by their vectors
            raise IndexError(
                f"a token is {inputs[outside][0]}, and the vocabulary has {self.tokens}: give "
                f"numbers from 0 to {self.tokens - 1}"
            )
        own = self._own(parameters, inputs)
        vectors = parameters["weight"][np.where(own, inputs - self.start, 0)]
        vectors[~own] = 0
        return vectors, inputs

    def backward_weight(
        self, parameters: Parameters, memory: Array, kept: Array
    ) -> dict[str, Array]:
        own = self._own(parameters, memory)
        return super().backward_weight(parameters, memory[own] - self.start, kept[own])

    def _own(self, parameters: Parameters, tokens: Array) -> Array:
        """Which of the tokens are among these."""
        end = self.start + len(parameters["weight"])
        own: Array = (tokens >= self.start) & (tokens < end)
        return own


@dataclass(frozen=True)
class AttentionHeads(Attention):
    """Some heads of an attention; the outputs are their part of the sum.

    Attributes:
        head: Width of a head.
    """

    head: int = 1

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def kept(self, shape: Shape) -> int:
        return super().kept((shape[0], self.heads * self.head))

    def waiting(self, shape: Shape) -> int:
        return 3 * shape[0] * self.heads * self.head + prod(shape)

    def working(self, shape: Shape) -> int:
        return super().working((shape[0], self.heads * self.head)) + 2 * prod(shape)


@dataclass(frozen=True)
class DropoutPart(Dropout):
    """A dropout of a part of the values: of each it draws what the whole dropout draws.

    Attributes:
        cut: How the values are divided.
        whole: Shape of a whole sample.
        size, rank: Number of parts, and which this is.
    """

    cut: Cut
    whole: Shape
    size: int
    rank: int

    def places(self, shape: Shape) -> Array:
        every = np.arange(prod(self.whole)).reshape(self.whole)
        return self.cut.take(every, self.size, self.rank).reshape(-1)


@dataclass(frozen=True, eq=False)
class Sharded(Layer):
    """A layer of which each rank of a group has a part, between collectives of the group.

    All ranks have the same samples.

    Attributes:
        layer: The whole layer, from which parameters are drawn.
        local: This rank's part of it.
        shape: Of a sample at the inputs of `layer`.
        group: The ranks.
        before, after: What is done with inputs and outputs, in order.
        cuts: How parameters and buffers are cut; what is not named here is the same on all ranks.
        once: Parameters that are added to a sum over the ranks: the first rank alone adds them.
        summed: Parameters whose gradients are to be summed over the ranks.
    """

    keeps_inputs = False
    layer: Layer
    local: Layer
    shape: Shape
    group: Group
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    cuts: Cuts = field(default_factory=dict)
    once: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()

    @property
    def name(self) -> str | None:
        """That of the whole layer, if it has one."""
        return getattr(self.layer, "name", None)

    def output_shape(self, shape: Shape) -> Shape:
        shape = self.local.output_shape(self._inner(shape))
        for step in self.after:
            shape = step.output_shape(shape, self.group)
        return shape

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        """This rank's part of what the whole layer draws."""
        return own_parts(self.layer.initial(self.shape, generator), self.cuts, self.group)

    def buffers(self, shape: Shape) -> dict[str, Array]:
        return own_parts(self.layer.buffers(self.shape), self.cuts, self.group)

    def sums(self, shape: Shape) -> tuple[int, ...]:
        return self.local.sums(self._inner(shape))

    def random_state(self) -> Any:
        return self.local.random_state()

    def set_random_state(self, state: Any) -> None:
        self.local.set_random_state(state)

    def kept(self, shape: Shape) -> int:
        inner, local = self._inner(shape), self.local
        values = local.kept(inner)
        values += prod(inner) if local.keeps_inputs else 0
        return values + (prod(local.output_shape(inner)) if local.keeps_outputs else 0)

    def waiting(self, shape: Shape) -> int:
        return self.local.waiting(self._inner(shape))

    def working(self, shape: Shape) -> int:
        inner = self._inner(shape)
        between = prod(shape) + prod(self.output_shape(shape)) if self.before or self.after else 0
        return self.local.working(inner) + between

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        values = inputs
        for step in self.before:
            values = step.forward(values, self.group)
        shape = values.shape
        values, memory = self._attempt(
            lambda: self.local.forward(self._given(parameters), values, batch),
            lambda: (_zeros(self._outputs(shape), parameters, inputs), None),
        )
        for step in self.after:
            values = step.forward(values, self.group)
        return values, (memory, shape)

    def backward_input(
        self, parameters: Parameters, memory: tuple[Any, Shape], error: Array, first: bool
    ) -> tuple[Array | None, Any]:
        own, shape = memory
        for step in reversed(self.after):
            error = step.backward(error, self.group)
        slopes, kept = self._attempt(
            lambda: self.local.backward_input(self._given(parameters), own, error, first),
            lambda: (None if first else _zeros(shape, parameters, error), None),
        )
        if slopes is None or first:
            return None, kept
        for step in reversed(self.before):
            slopes = step.backward(slopes, self.group)
        return slopes, kept

    def backward_weight(
        self, parameters: Parameters, memory: tuple[Any, Shape], kept: Any
    ) -> dict[str, Array]:
        gradients = self._attempt(
            lambda: self.local.backward_weight(self._given(parameters), memory[0], kept),
            lambda: self._no_gradients(parameters),
        )
        if self.summed:
            self._sum(gradients)
        return gradients

    def settle(self) -> None:
        self.group.agree()

    def _sum(self, gradients: dict[str, Array]) -> None:
        """Replace those that are to be summed over the ranks by their sums."""
        library = library_of(next(iter(gradients.values())))
        names = [name for name in gradients if name in self.summed]
        total = self.group.sum(library.concatenate([gradients[n].reshape(-1) for n in names]))
        start = 0
        for name in names:
            shape, size = gradients[name].shape, gradients[name].size
            gradients[name] = total[start : start + size].reshape(shape)
            start += size

    def _attempt(self, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """As of the group; but layers inside a residual see to themselves."""
        return (
            compute()
            if isinstance(self.local, Residual)
            else self.group.attempt(compute, otherwise)
        )

    def _outputs(self, shape: Shape) -> Shape:
        """Shape of the outputs of this rank's part, of inputs of this shape."""
        return shape[0], *self.local.output_shape(shape[1:])

    def _no_gradients(self, parameters: Parameters) -> dict[str, Array]:
        buffers = self.layer.buffers(self.shape)
        return {n: library_of(a).zeros_like(a) for n, a in parameters.items() if n not in buffers}

    def collectives(self, samples: int, first: bool) -> Calls:
        """Name and values of the whole vector of each collective of a forward and a backward pass.

        But that by which ranks say at the end whether they have failed.

        Args:
            samples: In the batch.
            first: Whether this is the first layer of the model.
        """
        there, back = collectives_of(self.local, samples, first)
        for step in (*self.before, *self.after):
            forward, backward = step.collectives(samples)
            there += forward
            back += [] if first and step in self.before else backward
        if self.summed:
            drawn = self.layer.initial(self.shape, np.random.default_rng(0))
            back.append(("allreduce", sum(drawn[name].size for name in self.summed)))
        return there, back

    def _inner(self, shape: Shape) -> Shape:
        """Shape of a sample at the inputs of this rank's part."""
        for step in self.before:
            shape = step.output_shape(shape, self.group)
        return shape

    def _given(self, parameters: Parameters) -> Parameters:
        """What this rank's part computes with."""
        if not self.once or self.group.rank == 0:
            return parameters
        zeros = {n: library_of(a).zeros_like(a) for n, a in parameters.items() if n in self.once}
        return {**parameters, **zeros}


def collectives(
    layers: Sequence[Layer], samples: int, start: int = 0, forwards: int = 1
) -> list[tuple[str, int]]:
    """What sharded layers send in a step: name and values of the whole vector of each collective.

    Args:
        layers: Of a model, first to last.
        samples: In the batch.
        start: Number of the first of them in the model.
        forwards: How many forward passes there are.
    """
    return [
        call
        for number, layer in enumerate(layers, start)
        for there, back in [collectives_of(layer, samples, number == 0)]
        for call in (*there * forwards, *back)
    ]


def collectives_of(layer: Layer, samples: int, first: bool) -> Calls:
    """As `Sharded.collectives`, of any layer: one that is not shared has none."""
    if isinstance(layer, Sharded):
        return layer.collectives(samples, first)
    there: list[tuple[str, int]] = []
    back: list[tuple[str, int]] = []
    for number, part in enumerate(layer.layers if isinstance(layer, Residual) else ()):
        forward, backward = collectives_of(part, samples, first and not number)
        there += forward
        back += backward
    return there, back


def _zeros(shape: Shape, parameters: Parameters, values: Array) -> Array:
    """Of the type that a layer computes in."""
    like = next((a for a in parameters.values() if a.dtype.kind == "f"), values)
    return library_of(like).zeros(shape, like.dtype)


def own_parts(arrays: Parameters, cuts: Cuts, group: Group) -> dict[str, Array]:
    """This rank's parts of whole arrays."""
    return {
        name: cuts[name].take(array, group.size, group.rank) if name in cuts else array
        for name, array in arrays.items()
    }
