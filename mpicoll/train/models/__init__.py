"""Neural networks: their layers and their parameters.

A layer holds no arrays: parameters and what ``forward`` remembers are passed in.
"""

from mpicoll.train.models.images import Convolution, MaxPool
from mpicoll.train.models.layers import Dense, Dropout, Gelu, Layer, ReLU, Reshape, Residual
from mpicoll.train.models.losses import CrossEntropy, Loss, SquaredError
from mpicoll.train.models.measures import Accuracy, Measure, RSquared
from mpicoll.train.models.networks import (
    MLP,
    Batch,
    Model,
    Parameters,
    Sequential,
    convnet,
    push_gradients,
    transformer,
)
from mpicoll.train.models.sequences import (
    Attention,
    Embedding,
    LayerNorm,
    Position,
    Unembedding,
)

__all__ = [
    "MLP",
    "Accuracy",
    "Attention",
    "Batch",
    "Convolution",
    "CrossEntropy",
    "Dense",
    "Dropout",
    "Embedding",
    "Gelu",
    "Layer",
    "LayerNorm",
    "Loss",
    "MaxPool",
    "Measure",
    "Model",
    "Parameters",
    "Position",
    "RSquared",
    "ReLU",
    "Reshape",
    "Residual",
    "Sequential",
    "SquaredError",
    "Unembedding",
    "convnet",
    "push_gradients",
    "transformer",
]
