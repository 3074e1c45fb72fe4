"""The part of a model that a rank of a pipeline has: its chunks, and their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.flat import Flat
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.losses import Loss
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel.sums import Use, total
from mpicoll.train.parallel.wires import Wires
from mpicoll.train.ranks.workers import TrainingError
from mpicoll.train.step.catalogue import Schedule

if TYPE_CHECKING:
    from mpi4py import MPI


def modelled(
    model: Sequential | Sequence[Layer],
    inputs: tuple[int, ...] | None,
    dtype: str,
    loss: Loss | None,
) -> Sequential:
    """A model, or one of its layers.

    Raises:
        ValueError: Layers without the shape of a sample, or that do not fit each other.
    """
    if isinstance(model, Sequential):
        return model
    if inputs is None:
        raise ValueError(
            "inputs is None, and layers do not say of which shape a sample is: give it, as "
            "inputs=(784,)"
        )
    return Sequential(model, inputs, dtype, loss)


#: Layers that have a parameter, ascending, by the rank of the pipeline that has them.
Holders = dict[int, list[int]]


class Stage:
    """The chunks of one rank.

    Args:
        model: The model, whole.
        schedule: Says which rank has a chunk.
        starts: Number of the first layer of each chunk of the model.
        rank: This rank of the pipeline.

    Attributes:
        rank: As given.
        chunks: By number.
        names: Of the parameters of each chunk.
        ties: The parameters that several ranks have: their layers by rank.
        owners: For each parameter of the model, the rank of the first layer that has it.
        units: For each, that layer's number among the layers with parameters of their own.
        uses: Shape of the parameter, for each layer of this rank and parameter of it.
        weights: Its parameters, once `begin` has been called; in float32 where the model's type is
            narrower.
        parameters, buffers: By name; likewise.  Where replicas own pieces, the parameters are whole
            within a step alone.
        buffer_names: Of the buffers of each chunk.
    """

    def __init__(
        self, model: Sequential, schedule: Schedule, starts: Sequence[int], rank: int
    ) -> None:
        self._model, self.rank = model, rank
        ends = [*starts[1:], len(model.layers)]
        rank_of = [
            schedule.place(chunk)
            for chunk, (start, end) in enumerate(zip(starts, ends, strict=True))
            for _ in range(start, end)
        ]
        own = schedule.chunks_of(rank)
        self.chunks = {chunk: model.chunk(starts[chunk], ends[chunk]) for chunk in own}
        self.names = {
            number: [
                name
                for name, layers in model.holders.items()
                if any(layer in chunk.numbers for layer in layers)
            ]
            for number, chunk in self.chunks.items()
        }
        self.ties: dict[str, Holders] = {}
        self.owners: dict[str, int] = {}
        self.uses: dict[Use, tuple[int, ...]] = {}
        for name, layers in model.holders.items():
            holders: Holders = {}
            for layer in layers:
                holders.setdefault(rank_of[layer], []).append(layer)
                if rank_of[layer] == rank:
                    self.uses[layer, name] = model.parameter_shapes[name]
            self.owners[name] = rank_of[layers[0]]
            if len(holders) > 1:
                self.ties[name] = holders
        firsts = sorted({layers[0] for layers in model.holders.values()})
        self.units = {name: firsts.index(layers[0]) for name, layers in model.holders.items()}
        self.weights = Flat({}, out=np.zeros(0))
        self.parameters: dict[str, Array] = {}
        self.buffers: dict[str, Array] = {}
        self.buffer_names: dict[int, list[str]] = {}

    def begin(self, seed: int, replicas: MPI.Intracomm | None, wires: Wires | None) -> None:
        """Draw first parameters and buffers; collective.

        Those of a PyTorch module are its own: of the first replica, and of the stage of the first
        layer that has them.

        Args:
            seed: What they are drawn by.
            replicas: The ranks with the same stage.
            wires: The messages between stages.
        """
        wide = np.promote_types(self._model.dtype, np.float32)
        own = dict.fromkeys(name for _, name in self.uses)
        # A parameter is drawn by the first layer that has it.
        drawn = self._model.initial_parameters(
            seed, sorted({self._model.holders[name][0] for name in own})
        )
        arrays = {name: drawn[name].astype(wide, copy=False) for name in own}
        self.weights = Flat(arrays, out=None if own else np.zeros(0, wide))
        self.parameters = self.weights.views
        if own and replicas is not None:
            replicas.Bcast(self.weights.vector)
        for tag, name, holders in self._shared():
            assert wires is not None
            others = [] if self.owners[name] != self.rank else [*holders][1:]
            root = {} if others else {self.owners[name]: self.parameters[name]}
            wires.swap(self.parameters[name], others, root, tag)
        for number, chunk in self.chunks.items():
            found = self._model.initial_buffers(chunk.numbers)
            self.buffers.update(found)
            self.buffer_names[number] = list(found)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Where the statement fails on all ranks, buffers are as they were before it."""
        before = {name: array.copy() for name, array in self.buffers.items()}
        try:
            yield
        except TrainingError:
            for name, array in before.items():
                self.buffers[name][...] = array
            raise

    def tied(self, gradients: dict[str, Array], uses: Mapping[Use, Array], wires: Wires) -> None:
        """Let gradients of parameters that several ranks have be those of all; collective.

        Sums go from the last layer to the first: all holders have the same bits.

        Args:
            gradients: By name; changed.
            uses: Of this rank, by layer: whole, or pieces that are the same on all holders.
            wires: The messages.
        """
        for tag, name, holders in self._shared():
            own = np.stack([uses[layer, name] for layer in holders[self.rank]])
            arrivals = {
                rank: np.empty((len(layers), *own.shape[1:]), own.dtype)
                for rank, layers in holders.items()
                if rank != self.rank
            }
            wires.swap(own, list(arrivals), arrivals, tag)
            every = {**arrivals, self.rank: own}
            gradients[name] = total(
                {
                    layer: every[rank][index]
                    for rank, layers in holders.items()
                    for index, layer in enumerate(layers)
                }
            )

    def _shared(self) -> Iterator[tuple[int, str, Holders]]:
        """This rank's parameters that others have, too, each with a tag that no wire has."""
        for number, (name, holders) in enumerate(self.ties.items()):
            if self.rank in holders:
                yield 2 * len(self._model.layers) + number, name, holders
