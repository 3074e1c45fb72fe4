"""Models: their layers and their parameters."""

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
    "Model",
    "Parameters",
    "Sequential",
    "convnet",
    "push_gradients",
]
