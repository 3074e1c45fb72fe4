"""Networks that samples may leave early, on the way through their layers.

S. Teerapittayanon, B. McDanel, H. T. Kung, "Distributed deep neural networks over the cloud, the
edge and end devices", 2017: the exits are trained together, and each tier of a system has the
layers up to its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.chunks import Chunk
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer, Shape
from mpicoll.train.models.losses import Loss
from mpicoll.train.models.networks import Push, Sequential
from mpicoll.train.models.pointwise import Reshape
from mpicoll.train.models.precision import Rounding, computing


@dataclass(frozen=True)
class Exit:
    """An exit: a place where a sample may leave.

    Attributes:
        head: Layers that compute scores from the output of the layer before.
        after: Number of layers before it.
        weight: Weight of its loss; that of the last layer is 1.
    """

    head: tuple[Layer, ...]
    after: int
    weight: float = 1.0


class EarlyExits(Sequential):
    """A network with exits, trained on the weighted sum of all losses.

    Its outputs are those of the last layer: it is evaluated like the network without exits. Samples
    leave at exits under `mpicoll tiers`. Parameters of a head are named `exit1.layer1.weight`, ....

    Args:
        layers, inputs, dtype, loss: As for `Sequential`.
        exits: In any order.

    Attributes:
        exits: First to last.
        heads: The head of each exit, as a network.

    Raises:
        ValueError: A head does not fit, its outputs have another shape than those of the last
            layer, it is not between two layers, or two exits are at the same place.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        exits: Sequence[Exit],
        inputs: Shape,
        dtype: str,
        loss: Loss | None = None,
    ) -> None:
        super().__init__(layers, inputs, dtype, loss)
        self.exits = tuple(sorted(exits, key=lambda found: found.after))
        places = [found.after for found in self.exits]
        for place in places:
            if not 1 <= place < len(self.layers) or places.count(place) > 1:
                raise ValueError(
                    f"exits are after {places} of {len(self.layers)} layers: give other numbers, "
                    f"each from 1 to {len(self.layers) - 1}"
                )
        for found in self.exits:
            if not 0 < found.weight < np.inf:
                raise ValueError(f"weight of an exit is {found.weight}: give a number above 0")
        shapes = [self.shapes[found.after] for found in self.exits]
        # A view in front, so that the first layer with parameters hands slopes on, too.
        self.heads = tuple(
            Sequential((Reshape(shape), *found.head), shape, dtype, self.loss)
            for found, shape in zip(self.exits, shapes, strict=True)
        )
        for number, head in enumerate(self.heads, start=1):
            if head.shapes[-1] != self.shapes[-1]:
                raise ValueError(
                    f"exit {number} has outputs of shape {head.shapes[-1]} and the last layer of "
                    f"{self.shapes[-1]}: give both the same"
                )

    def activations(self, samples: int) -> int:
        return super().activations(samples) + sum(head.activations(samples) for head in self.heads)

    def initial_parameters(
        self, seed: int, layers: Iterable[int] | None = None
    ) -> dict[str, Array]:
        found = super().initial_parameters(seed, layers)
        if layers is None:
            for number, head in enumerate(self.heads, start=1):
                # A stream of its own, as layers have.
                own = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
                found |= renamed(head.initial_parameters(own), number)
        return found

    # Of some layers, as a stage of a pipeline asks for them, without heads.
    def initial_buffers(self, layers: Iterable[int] | None = None) -> dict[str, Array]:
        found = super().initial_buffers(layers)
        if layers is None:
            for number, head in enumerate(self.heads, start=1):
                found |= renamed(head.initial_buffers(), number)
        return found

    def sums(self) -> tuple[int, ...]:
        found: list[int] = []
        for start, end, number in self.sections():
            for layer, shape in zip(self.layers[start:end], self.shapes[start:end], strict=True):
                found += layer.sums(shape)
            if number is not None:
                head = self.heads[number]
                for layer, shape in zip(head.layers, head.shapes, strict=False):
                    found += layer.sums(shape)
        return (*found, *reversed(found))

    def sections(self) -> list[tuple[int, int, int | None]]:
        """First layer, layer after the last, and exit of each section; the last one has no exit."""
        cuts = [0, *(found.after for found in self.exits), len(self.layers)]
        numbers = [*range(len(self.exits)), None]
        return list(zip(cuts[:-1], cuts[1:], numbers, strict=True))

    def push_gradients(self, parameters: Parameters, batch: Batch, push: Push) -> float:
        parameters, rounded = computing(parameters)
        values, loss = batch.inputs, 0.0
        sections: list[_Section] = []
        for start, end, number in self.sections():
            section = _Section(self.chunk(start, end))
            values, section.memories = section.chunk.forward(parameters, values, batch, rounded)
            sections.append(section)
            scores, weight = values, 1.0
            if number is not None:
                section.head = self._head(parameters, number, values, batch, rounded)
                scores, weight = section.head.outputs, self.exits[number].weight
            losses, section.slopes = self.loss.evaluate(scores, batch.targets)
            section.slopes *= weight / batch.total
            loss += weight * float(losses.sum(dtype=np.float64)) / batch.total
        waiting: dict[str, list[Array]] = {}

        def take(gradients: dict[str, Array], holders: dict[str, list[int]], start: str) -> None:
            for name in reversed(gradients):
                found = waiting.setdefault(start + name, [])
                found.append(gradients[name])
                if len(found) == len(holders[name]):
                    push(start + name, sum(found[1:], start=found[0]))

        error: Array | None = None
        for number, section in reversed(list(enumerate(sections))):
            slopes = section.slopes
            if section.head is not None:
                head = section.head
                for found in head.chunk.backward(head.parameters, head.memories, slopes, rounded):
                    take(found.gradients, self.heads[number].holders, prefix(number + 1))
                    slopes = found.error
                assert error is not None
                slopes = slopes + error
            for found in section.chunk.backward(parameters, section.memories, slopes, rounded):
                take(found.gradients, self.holders, "")
                error = found.error
        return loss

    def _head(
        self, parameters: Parameters, number: int, values: Array, batch: Batch, rounded: Rounding
    ) -> _Head:
        """The forward pass of a head."""
        own = self.of_head(parameters, number)
        chunk = self.heads[number].chunk(0, len(self.heads[number].layers))
        outputs, memories = chunk.forward(own, values, batch, rounded)
        return _Head(chunk, own, outputs, memories)

    def of_head(self, parameters: Parameters, number: int) -> dict[str, Array]:
        """The parameters and buffers of a head, by the names it knows; heads count from 0."""
        start = prefix(number + 1)
        return {
            name.removeprefix(start): array
            for name, array in parameters.items()
            if name.startswith(start)
        }


@dataclass
class _Head:
    """A head in the middle of a pass."""

    chunk: Chunk
    parameters: Parameters
    outputs: Array
    memories: list[Any]


@dataclass
class _Section:
    """Layers up to an exit in the middle of a pass."""

    chunk: Chunk
    memories: Any = None
    head: _Head | None = None
    slopes: Any = None


def prefix(number: int) -> str:
    """How the names of the parameters of an exit begin; they count from 1."""
    return f"exit{number}."


def renamed(arrays: dict[str, Array], number: int) -> dict[str, Array]:
    """Arrays of a head, by their names in the model."""
    return {prefix(number) + name: array for name, array in arrays.items()}
