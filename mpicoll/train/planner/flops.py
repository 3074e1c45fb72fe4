"""Floating point operations of a layer's forward pass for a sample: an estimate.

Products of matrices count two for each pair of numbers; what works on each value by itself counts
some for each.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from mpicoll.train.models.images import Convolution
from mpicoll.train.models.layers import Dense, Layer, Residual, Shape, shapes_of
from mpicoll.train.models.sequences import Attention, Unembedding
from mpicoll.train.parallel.sharded import AttentionHeads, Sharded

#: Of each value of a layer without matrices.
_POINTWISE = 4


def flops(layer: Layer, shape: Shape) -> int:
    """Operations of a layer.

    Args:
        layer: Whole, or a rank's part of it.
        shape: Of a sample at its inputs.
    """
    if isinstance(layer, Sharded):
        for step in layer.before:
            shape = step.output_shape(shape, layer.group)
        return flops(layer.local, shape)
    if isinstance(layer, Residual):
        inner = zip(layer.layers, shapes_of(layer.layers, shape), strict=False)
        return sum(flops(part, before) for part, before in inner) + prod(shape)
    for kind, count in _COUNTS.items():
        if isinstance(layer, kind):
            return count(layer, shape)
    return _POINTWISE * max(prod(shape), prod(layer.output_shape(shape)))


def _dense(layer: Layer, shape: Shape) -> int:
    assert isinstance(layer, Dense)
    return 2 * prod(shape) * layer.outputs


def _convolution(layer: Layer, shape: Shape) -> int:
    assert isinstance(layer, Convolution)
    return 2 * layer.width**2 * prod(shape) * layer.channels


def _unembedding(layer: Layer, shape: Shape) -> int:
    assert isinstance(layer, Unembedding)
    return 2 * prod(shape) * layer.tokens


def _attention(layer: Layer, shape: Shape) -> int:
    """Four products with weights, and two of tokens with tokens."""
    assert isinstance(layer, Attention)
    tokens, width = shape
    head = layer.head if isinstance(layer, AttentionHeads) else width // layer.heads
    inner = layer.heads * head
    return 8 * tokens * width * inner + 4 * tokens**2 * inner


_COUNTS: dict[type[Layer], Callable[[Layer, Shape], int]] = {
    Dense: _dense,
    Convolution: _convolution,
    Unembedding: _unembedding,
    Attention: _attention,
}
