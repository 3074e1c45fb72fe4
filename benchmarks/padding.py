"""Compute that takes as long as one says: layers that sleep, so that cores need not be there.

What a rank computes is padded in proportion to its part of a layer, and messages move meanwhile, as
they do where a thread makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mpicoll.train.models import Layer, Residual, Sequential
from mpicoll.train.models.layers import Shape, shapes_of
from mpicoll.train.parallel.sharded import Sharded
from mpicoll.train.planner.flops import flops
from mpicoll.train.planner.profile import LayerProfile, Times

#: Seconds between two looks at messages.
_SLICE = 0.001


class Pace:
    """Makes parts of a program take as long as they should.

    A sleep that ends late makes the next one shorter, so that sums are right.

    Args:
        poll: Called every millisecond, to move messages on.

    Attributes:
        spent: Seconds padded since somebody set it to zero.
    """

    def __init__(self, poll: Callable[[], object] = lambda: None) -> None:
        self._poll, self._late = poll, 0.0
        self.spent = 0.0

    def until(self, begun: float, seconds: float) -> None:
        """Return so many seconds after a moment of `time.perf_counter`."""
        end = begun + seconds - self._late
        while (left := end - time.perf_counter()) > 0:
            time.sleep(min(left, _SLICE))
            self._poll()
        now = time.perf_counter()
        self._late = min(max(now - end, 0.0), seconds)
        self.spent += now - begun


class Padded(Layer):
    """A layer, or a rank's part of one, that takes longer.

    Args:
        layer: It.
        seconds: Of a sample: its forward pass, and both parts of its backward pass.
        pace: Of this rank.
    """

    def __init__(self, layer: Layer, seconds: tuple[float, float, float], pace: Pace) -> None:
        self._layer, self._seconds, self._pace = layer, seconds, pace
        for name in ("keeps_inputs", "keeps_outputs", "keeps_parameters"):
            setattr(self, name, getattr(layer, name))
        for name in (
            "initial",
            "buffers",
            "output_shape",
            "kept",
            "waiting",
            "working",
            "sums",
            "settle",
        ):
            setattr(self, name, getattr(layer, name))

    def forward(self, parameters: Any, inputs: Any, batch: Any) -> Any:
        """See `Layer`."""
        begun = time.perf_counter()
        found = self._layer.forward(parameters, inputs, batch)
        self._pace.until(begun, self._seconds[0] * len(inputs))
        return found

    def backward_input(self, parameters: Any, memory: Any, error: Any, first: bool) -> Any:
        """See `Layer`."""
        begun = time.perf_counter()
        slopes, kept = self._layer.backward_input(parameters, memory, error, first)
        self._pace.until(begun, self._seconds[1] * len(error))
        return slopes, (len(error), kept)

    def backward_weight(self, parameters: Any, memory: Any, kept: Any) -> Any:
        """See `Layer`."""
        begun, (samples, inner) = time.perf_counter(), kept
        found = self._layer.backward_weight(parameters, memory, inner)
        self._pace.until(begun, self._seconds[2] * samples)
        return found


def padded(
    layers: Sequence[Layer], model: Sequential, profile: Sequence[LayerProfile], pace: Pace
) -> Sequential:
    """A model of layers that take what a profile says, of their part of each layer.

    Args:
        layers: The model's, or a rank's parts of them.
        model: The model, whole.
        profile: Of its layers, for one size of a microbatch; times are as those of that size.
        pace: Of this rank.
    """
    shapes, found = shapes_of(layers, model.shapes[0]), []
    for number, layer in enumerate(layers):
        (times,) = profile[number].times
        whole = flops(model.layers[number], model.shapes[number])
        found.append(_padded(layer, shapes[number], times, whole, pace))
    return Sequential(found, model.shapes[0], model.dtype.name, model.loss)


def _padded(layer: Layer, shape: Shape, times: Times, whole: int, pace: Pace) -> Layer:
    """A layer of which that with matrices or values sleeps, and collectives around it do not."""
    if isinstance(layer, Residual):
        inner = zip(layer.layers, shapes_of(layer.layers, shape), strict=False)
        return Residual(tuple(_padded(part, before, times, whole, pace) for part, before in inner))
    if isinstance(layer, Sharded):
        for step in layer.before:
            shape = step.output_shape(shape, layer.group)
        return replace(layer, local=_padded(layer.local, shape, times, whole, pace))
    share = flops(layer, shape) / (whole * times.samples)
    return Padded(layer, (share * times.forward, share * times.input, share * times.weight), pace)
