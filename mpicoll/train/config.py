"""What a training run is told: a typed, checked configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpicoll import algorithms
from mpicoll.train.data import DATASETS
from mpicoll.train.models import MODELS

DTYPES = ("float64", "float32")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. Equal on all ranks; checked when made.

    Attributes:
        dataset: Name of a data set (`mpicoll.train.data.DATASETS`).
        model: `softmax` (softmax regression) or `mlp`.
        hidden: Sizes of the hidden layers of an `mlp`, first to last.
        epochs: Passes over the training set.
        batch: Samples in one step, of all ranks together. More than there are means all.
        lr: Learning rate.
        momentum: Share of the last update kept in the next, 0 for plain SGD.
        seed: Decides initial parameters and the order of samples.
        dtype: `float64` or `float32`, of data, parameters and gradients.
        algorithm: All-reduce algorithm for the gradients, None for the communicator's choice.

    Raises:
        ValueError: A value is out of its range; the message names value, limit and remedy.
    """

    dataset: str = "mnist5k"
    model: str = "softmax"
    hidden: tuple[int, ...] = (64,)
    epochs: int = 15
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    seed: int = 0
    dtype: str = "float64"
    algorithm: str | None = "ring"

    def __post_init__(self) -> None:
        _one_of("dataset", self.dataset, tuple(DATASETS))
        _one_of("model", self.model, tuple(MODELS))
        _one_of("dtype", self.dtype, DTYPES)
        if self.algorithm is not None:
            known = (*algorithms.names("allreduce"), "native")
            _one_of("all-reduce algorithm", self.algorithm, known)
        for size in self.hidden:
            _at_least("hidden layer size", size, 1)
        if self.model == "mlp" and not self.hidden:
            raise ValueError(
                "an mlp needs at least one hidden layer: give hidden, or model softmax"
            )
        _at_least("epochs", self.epochs, 1)
        _at_least("batch", self.batch, 1)
        _at_least("seed", self.seed, 0)
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}: give a finite learning rate above 0, such as 0.1")
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"momentum is {self.momentum}: give 0 (plain SGD) or a number between 0 and 1"
            )


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}: known are {', '.join(known)}")


def _at_least(what: str, value: int, limit: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < limit:
        raise ValueError(f"{what} is {value!r}: give a whole number of at least {limit}")
