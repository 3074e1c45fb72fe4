"""What each layer of a model costs for a microbatch, as whole numbers: picoseconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Layers:
    """A chain of layers, or a rank's parts of them.

    Attributes:
        forward, input, weight: Picoseconds of the forward pass, of the gradient of the inputs and
            of that of the weights, with the collectives inside.
        forward_collectives, backward_collectives: Picoseconds of each pass that are collectives of
            the ranks that share the layer.
        forward_sent, backward_sent: Bytes that a rank sends in them.
        edges: Bytes of the values at the inputs of each layer; of the outputs of the last one.
        kept: Bytes that each layer adds to what is kept for the backward pass.
        working: Bytes that each works in beside.
        weights: Bytes of its parameters.
        cuts: Whether a chunk may begin at a layer, or end at the last one.
    """

    forward: Numbers
    input: Numbers
    weight: Numbers
    forward_collectives: Numbers
    backward_collectives: Numbers
    forward_sent: Numbers
    backward_sent: Numbers
    edges: Numbers
    kept: Numbers
    working: Numbers
    weights: Numbers
    cuts: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.forward)

    @cached_property
    def backward(self) -> Numbers:
        """Picoseconds of the whole backward pass."""
        return self.input + self.weight

    @cached_property
    def before(self) -> dict[str, Numbers]:
        """Sums of the layers before each, by what."""
        names = [field.name for field in fields(self) if field.name not in ("edges", "cuts")]
        return {n: np.concatenate([[0], np.cumsum(getattr(self, n))]) for n in (*names, "backward")}

    def total(self, name: str, start: int, end: int) -> int:
        """The sum over the layers from `start` to before `end`."""
        sums = self.before[name]
        return int(sums[end] - sums[start])

    @cached_property
    def most_working(self) -> Numbers:
        """The largest `working` of layers i to j, shape (layers, layers)."""
        count = len(self)
        every = np.broadcast_to(self.working, (count, count))
        return np.maximum.accumulate(np.triu(every), axis=1)
