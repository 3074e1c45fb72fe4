"""Neural networks: their layers and their parameters.

A layer holds no arrays: parameters and what ``forward`` remembers are passed in.
"""

from mpicoll.train.models.batch_norm import BatchNorm
from mpicoll.train.models.exits import EarlyExits, Exit
from mpicoll.train.models.images import AveragePool, Convolution, MaxPool
from mpicoll.train.models.layers import Dense, Layer, Residual
from mpicoll.train.models.losses import CrossEntropy, Loss, SquaredError
from mpicoll.train.models.measures import Accuracy, Measure, RSquared
from mpicoll.train.models.networks import (
    MLP,
    Batch,
    Model,
    Parameters,
    Sequential,
    buffers_of,
    convnet,
    push_gradients,
    sums_of,
    transformer,
)
from mpicoll.train.models.parts import Aggregate, Binarize, EachPart, Split
from mpicoll.train.models.pointwise import Dropout, Gelu, ReLU, Reshape
from mpicoll.train.models.resnets import resnet
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
    "Aggregate",
    "Attention",
    "AveragePool",
    "Batch",
    "BatchNorm",
    "Binarize",
    "Convolution",
    "CrossEntropy",
    "Dense",
    "Dropout",
    "EachPart",
    "EarlyExits",
    "Embedding",
    "Exit",
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
    "Split",
    "SquaredError",
    "Unembedding",
    "buffers_of",
    "convnet",
    "push_gradients",
    "resnet",
    "sums_of",
    "transformer",
]
