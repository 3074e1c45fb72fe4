"""The model that a configuration names, for the data that it is to train on."""

from __future__ import annotations

from math import prod

from mpicoll.base.wording import plural
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.models import (
    CrossEntropy,
    Layer,
    Loss,
    Reshape,
    Sequential,
    SquaredError,
    convnet,
    resnet,
    transformer,
)
from mpicoll.train.models.networks import head


def make_model(config: Config, dataset: Dataset) -> Sequential:
    """The model that a configuration names, for a data set.

    Class numbers are learnt by `CrossEntropy`, real numbers by `SquaredError`.

    Raises:
        ValueError: They do not fit.
    """
    dtype = "float32" if config.is_narrow else config.dtype  # in which parameters are kept
    if config.model == "transformer":
        return _decoder(config, dataset, dtype)
    if dataset.vocabulary is not None:
        raise ValueError(
            f"{dataset.name}: inputs are tokens, and model {config.model} wants real numbers: give "
            "model transformer"
        )
    loss: Loss = SquaredError() if dataset.classes is None else CrossEntropy()
    wanted = tuple(dataset.train_targets.shape[1:])
    if dataset.classes is not None:
        wanted = (*wanted, dataset.classes)
    outputs = prod(wanted)
    if config.model in ("conv", "resnet"):
        if len(wanted) > 1 or dataset.classes is None:
            raise ValueError(
                f"{dataset.name}: targets have shape {wanted}, and model {config.model} gives one "
                "class for an image: give model mlp"
            )
        if config.model == "resnet":
            stages = config.channels, outputs, config.blocks
            local = config.norm == "local"
            return resnet(dataset.image, *stages, dtype, config.dropout, local)
        sizes = config.channels, config.hidden, outputs
        net = convnet(dataset.image, *sizes, dtype, config.dropout)
        return Sequential(net.layers, dataset.shape, dtype)  # of samples as they are
    hidden = config.hidden if config.model == "mlp" else ()
    layers: list[Layer] = [Reshape()] if len(dataset.shape) != 1 else []
    layers += head(hidden, outputs, config.dropout)
    if len(wanted) > 1:
        layers.append(Reshape(wanted))
    return Sequential(layers, dataset.shape, dtype, loss)


def _decoder(config: Config, dataset: Dataset, dtype: str) -> Sequential:
    if dataset.vocabulary is None or dataset.classes is None:
        raise ValueError(
            f"{dataset.name}: inputs are real numbers, and model transformer wants tokens with a "
            "class number for each: give data set text, arrays with a vocabulary, or model mlp"
        )
    if dataset.classes > dataset.vocabulary:
        raise ValueError(
            f"{dataset.name}: {dataset.classes} classes and a vocabulary of {dataset.vocabulary}, "
            "and model transformer gives a score to each token of it: raise the vocabulary"
        )
    if len(dataset.shape) != 1:
        raise ValueError(
            f"{dataset.name}: samples have shape {dataset.shape}, and model transformer wants "
            "tokens in a row: give inputs of shape (samples, tokens)"
        )
    return transformer(
        dataset.vocabulary,
        dataset.shape[0],
        config.width,
        config.layers,
        config.heads,
        dtype,
        config.dropout,
    )


def described(config: Config, dataset: Dataset) -> str:
    """The model that a configuration names, in words."""
    if config.model == "transformer":
        return f"{plural(config.layers, 'layer')} of width {config.width}, {config.heads} heads"
    outputs = prod(dataset.train_targets.shape[1:]) * (dataset.classes or 1)
    sizes = {
        "softmax": (dataset.features, outputs),
        "mlp": (dataset.features, *config.hidden, outputs),
        "conv": (*dataset.shape, *config.channels, *config.hidden, outputs),
        "resnet": (*dataset.shape, *config.channels, outputs),
    }[config.model]
    return "-".join(map(str, sizes))
