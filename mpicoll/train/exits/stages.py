"""What one rank of a tier computes: its layers, for its part of a sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.exits import layout
from mpicoll.train.models.exits import EarlyExits
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.networks import Sequential
from mpicoll.train.models.parts import Aggregate, EachPart, Split, aggregated


class Stage:
    """A rank's layers.

    With the same batches its values are those of the network as a whole, to the bit.

    Args:
        model: The network.
        parameters: Its parameters and buffers, by name.
        tier: Number of the tier, devices are 0.
        part: Which part of a sample it is for.
        parts: How many the tier has of each.

    Attributes:
        feature_shape: Of what the tier hands on of a part.
        score_shape: Of what a part says at the exit.
        binary: Whether these values are signs.
    """

    def __init__(
        self, model: EarlyExits, parameters: Parameters, tier: int, part: int, parts: int
    ) -> None:
        self._model, self._part, self._parts = model, part, parts
        self._parameters = parameters
        start, end, self._exit = model.sections()[tier]
        self._layers = range(start, end)
        shape = model.shapes[end]
        self.feature_shape = shape[1:] if parts > 1 else shape
        self.score_shape = model.shapes[-1]
        if self._exit is not None and parts > 1:
            self.score_shape = layout.score_shape(model, self._exit)
        self._cut = self._split()
        self.binary = layout.is_binary(model.layers[start:end])

    def sight(self, samples: Array) -> Array:
        """What a device sees of samples, shape (samples, ...)."""
        values = samples
        for layer in self._cut:
            values, _ = layer.forward({}, values, None)
        return np.ascontiguousarray(values[:, self._part]) if self._cut else samples

    def _split(self) -> list[Layer]:
        """The layers up to the one that cuts samples into parts; none where none does."""
        layers = [self._model.layers[index] for index in self._layers]
        cuts = [number for number, layer in enumerate(layers) if isinstance(layer, Split)]
        return layers[: cuts[0] + 1] if cuts else []

    def features(self, received: Sequence[Array], here: Sequence[bool]) -> Array:
        """What the tier makes of what it sees, or of what comes from below.

        Args:
            received: On a device, what it sees; else one array for each part below, zeros where it
                is missing.
            here: Which of these there are.
        """
        values = received[0]
        rest = list(self._layers)
        first = self._model.layers[rest[0]]
        if isinstance(first, Aggregate):
            values = aggregated(first.how, received, _mask(here, len(values)))
            rest = rest[1:]
        for index in rest[len(self._cut) :]:
            values = self._apply(self._model, self._parameters, index, values)
        return values

    def scores(self, features: Array) -> Array:
        """What this rank says of samples at the exit: scores, or its part of what makes them.

        Args:
            features: As `features` has made them; of the last tier these are the scores.
        """
        if self._exit is None:
            return features
        head = self._head()
        values = features
        end = layout.head_cut(head.layers) if self._parts > 1 else len(head.layers)
        for index in range(1, end):
            values = self._apply(head, self._of_head(), index, values)
        return values

    def decided(self, received: Sequence[Array], here: Sequence[bool]) -> Array:
        """Scores of all parts together, shape (samples, classes).

        Args:
            received: What each part says, zeros where it is missing.
            here: Which of them there are.
        """
        head = self._head()
        cut = layout.head_cut(head.layers)
        layer = head.layers[cut]
        assert isinstance(layer, Aggregate)
        values = aggregated(layer.how, received, _mask(here, len(received[0])))
        for index in range(cut + 1, len(head.layers)):
            values = self._apply(head, self._of_head(), index, values)
        return values

    def _head(self) -> Sequential:
        assert self._exit is not None
        return self._model.heads[self._exit]

    def _of_head(self) -> Parameters:
        assert self._exit is not None
        return self._model.of_head(self._parameters, self._exit)

    def _apply(self, model: Sequential, parameters: Parameters, index: int, values: Array) -> Array:
        """A layer, or what it does to this rank's part."""
        layer, names = model.layers[index], model.names(index)
        # Of a layer in parts a rank has its own part alone.
        own = {name: parameters[full] for name, full in names.items() if full in parameters}
        if isinstance(layer, EachPart):
            return layer.part(own, self._part, values)
        return layer.forward(own, values, None)[0]


def _mask(here: Sequence[bool], samples: int) -> Array | None:
    """Which parts of each sample there are; None: all."""
    return None if all(here) else np.tile(np.array(here), (samples, 1))
