"""A small residual net of convolutions."""

from __future__ import annotations

from math import prod

from mpicoll.train.models.batch_norm import BatchNorm
from mpicoll.train.models.images import AveragePool, Convolution, MaxPool
from mpicoll.train.models.layers import Dense, Layer, Residual
from mpicoll.train.models.networks import Sequential
from mpicoll.train.models.pointwise import Dropout, ReLU, Reshape


def resnet(
    image: tuple[int, int, int],
    channels: tuple[int, ...],
    classes: int,
    blocks: int = 1,
    dtype: str = "float64",
    dropout: float = 0.0,
    local: bool = False,
) -> Sequential:
    """Stages of residual blocks, then the mean over all pixels and a dense layer.

    K. He et al., "Deep residual learning for image recognition", 2016: a block adds to its inputs
    what two convolutions of width 3, with normalisation, make of them. A stage begins with a
    convolution to its number of channels; from the second on with pooling by 2, too.

    Args:
        image: Height, width and channels.
        channels: Channels of each stage.
        classes: Number of classes.
        blocks: Blocks in each stage.
        dtype: Floating type of the parameters.
        dropout: Share of the means that is set to zero while training.
        local: Whether each rank's part of a batch is normalised by itself (`BatchNorm`).

    Raises:
        ValueError: The image is too small for this number of stages.
    """
    layers: list[Layer] = [Reshape(image)]
    for stage, count in enumerate(channels):
        normed = (Convolution(count, bias=False), BatchNorm(local=local))
        layers += [*normed, ReLU(), *([MaxPool()] if stage else [])]
        layers += [Residual((*normed, ReLU(), *normed)), ReLU()] * blocks
    layers += [AveragePool(), *([Dropout(dropout, 0)] if dropout else []), Dense(classes, gain=1.0)]
    return Sequential(layers, (prod(image),), dtype)
