"""What each layer of a model costs for a microbatch, as whole numbers: picoseconds and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
#: Picoseconds that a step takes at most, 13 days: sums of some such times fit into 64 bits.
LONGEST = 1 << 60


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
        begins: Bytes more of these where a chunk begins with the layer.
        working: Bytes that each works in beside.
        waiting: Bytes that it keeps between both parts of its backward pass.
        weights: Bytes of its parameters.
        first: Number of the first layer that has the same parameters; its own, if no other has.
        cuts: Whether a chunk may begin at a layer, or end at the last one.
        item: Bytes of a number of its parameters.
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
    begins: Numbers
    working: Numbers
    waiting: Numbers
    weights: Numbers
    first: NDArray[np.intp]
    cuts: NDArray[np.bool_]
    item: int = 4

    def __len__(self) -> int:
        return len(self.forward)

    @cached_property
    def backward(self) -> Numbers:
        """Picoseconds of the whole backward pass."""
        return self.input + self.weight

    @cached_property
    def before(self) -> dict[str, Numbers]:
        """Sums of the layers before each, by what."""
        passes = ("forward", "input", "weight", "backward", "kept", "waiting", "weights")
        inside = ("forward_collectives", "backward_collectives", "forward_sent", "backward_sent")
        found = {name: getattr(self, name) for name in (*passes, *inside)}
        return {name: np.concatenate([[0], np.cumsum(own)]) for name, own in found.items()}

    def total(self, name: str, start: int, end: int) -> int:
        """The sum over the layers from `start` to before `end`."""
        sums = self.before[name]
        return int(sums[end] - sums[start])

    def most(self, name: str) -> Numbers:
        """The largest number of layers i to j, shape (layers, layers): `working` or `weights`."""
        if name not in self._most:
            count = len(self)
            every = np.broadcast_to(getattr(self, name), (count, count))
            self._most[name] = np.maximum.accumulate(np.triu(every), axis=1)
        return self._most[name]

    @cached_property
    def _most(self) -> dict[str, Numbers]:
        return {}

    @cached_property
    def passes(self) -> int:
        """Picoseconds of two forward passes and a backward pass over all layers."""
        return 2 * int(self.forward.sum()) + int(self.backward.sum())

    # --- memory of a chunk, of some layers, or of all ---

    def parameters(self, spans: Sequence[tuple[int, int]]) -> int:
        """Bytes of the parameters of some layers; what several of these share counts once."""
        numbers = np.concatenate([np.arange(*span) for span in spans])
        return int(self.weights[np.unique(self.first[numbers])].sum())

    @cached_property
    def repeated(self) -> list[tuple[int, int]]:
        """Layers that have the parameters of one before, each with the last such one."""
        last: dict[int, int] = {}
        found = []
        for layer, first in enumerate(self.first.tolist()):
            if first in last:
                found.append((last[first], layer))
            last[first] = layer
        return found

    def ties(self, stages: Sequence[Sequence[tuple[int, int]]]) -> Iterator[dict[int, int]]:
        """Bytes of the gradients that each stage has of parameters that several stages have.

        Args:
            stages: First layer, and the one behind the last, of each chunk of each stage.
        """
        for first in sorted({int(self.first[layer]) for _, layer in self.repeated}):
            layers = np.nonzero(self.first == first)[0]
            held = {
                rank: sum(int(start <= n < end) for start, end in spans for n in layers)
                for rank, spans in enumerate(stages)
            }
            own = {rank: n * int(self.weights[first]) for rank, n in held.items() if n}
            if len(own) > 1:
                yield own

    def kept_by(self, start: int, end: int) -> int:
        """Bytes that a chunk keeps of a microbatch, with the slopes of the loss on the last one."""
        last = int(self.edges[end]) if end == len(self) else 0
        return self.total("kept", start, end) + int(self.begins[start]) + last

    @property
    def activations(self) -> int:
        """Bytes that passes over all layers take: as `Sequential.activations` has it."""
        kept = self.before["kept"]
        most = int((kept[1:] + self.working).max())
        return max(most, int(kept[-1] + 3 * self.edges[-1]))
