"""Neural networks: their layers and their parameters.

A layer holds no arrays: parameters and what ``forward`` remembers are passed in.  Images have shape
(samples, height, width, channels).
"""

from mpicoll.train.models.layers import Convolution, Dense, Dropout, Layer, MaxPool, ReLU, Reshape
from mpicoll.train.models.networks import (
    MLP,
    Batch,
    Model,
    Parameters,
    Sequential,
    convnet,
    push_gradients,
)

__all__ = [
    "MLP",
    "Batch",
    "Convolution",
    "Dense",
    "Dropout",
    "Layer",
    "MaxPool",
    "Model",
    "Parameters",
    "ReLU",
    "Reshape",
    "Sequential",
    "convnet",
    "push_gradients",
]
