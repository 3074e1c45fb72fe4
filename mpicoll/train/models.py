"""Models in NumPy. A model is anything that has the methods of `Model`.

Parameters and gradients are mappings from names to arrays. A model holds no state of its own: the
training loop owns the parameters and passes them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parameters = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Batch:
    """This rank's part of a global batch; it may be empty.

    Attributes:
        inputs: Shape (samples, features).
        labels: Shape (samples,), integers.
        total: Samples in the global batch, of all ranks together.
    """

    inputs: Array
    labels: Array
    total: int


class Model(Protocol):
    """What the training loop asks of a model."""

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Parameters to start from; the same for the same seed."""

    def loss_and_gradients(
        self, parameters: Parameters, batch: Batch
    ) -> tuple[float, dict[str, Array]]:
        """This rank's share of the loss and of its gradients.

        Both are sums over the samples of `batch`, divided by `batch.total`: summed over the ranks
        they are means over the global batch, however unevenly it is cut. Nothing for no samples.
        """

    def losses_and_scores(
        self, parameters: Parameters, inputs: Array, labels: Array
    ) -> tuple[Array, Array]:
        """Loss of each sample, shape (samples,), and score of each class, (samples, classes)."""


class MLP:
    """Fully connected layers with ReLU between them, trained on the cross entropy of a softmax.

    Without a hidden layer this is softmax regression (multinomial logistic regression).

    Args:
        sizes: Features, sizes of the hidden layers, classes.
        dtype: Floating type of the parameters.
    """

    def __init__(self, sizes: tuple[int, ...], dtype: str = "float64") -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"layer sizes are {sizes}: give at least two, each at least 1")
        self.sizes = sizes
        self.dtype = np.dtype(dtype)
        self._names = tuple(
            (f"layer{layer}.weight", f"layer{layer}.bias") for layer in range(1, len(sizes))
        )

    def __str__(self) -> str:
        return "-".join(map(str, self.sizes))

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Normal weights of variance 2 / inputs before a ReLU (He et al. 2015), 1 / inputs last."""
        generator = np.random.default_rng(seed)
        parameters = {}
        for (weight, bias), (inputs, outputs) in zip(
            self._names, pairwise(self.sizes), strict=True
        ):
            gain = 1.0 if weight == self._names[-1][0] else 2.0
            draws = generator.standard_normal((inputs, outputs))
            parameters[weight] = (draws * np.sqrt(gain / inputs)).astype(self.dtype)
            parameters[bias] = np.zeros(outputs, self.dtype)
        return parameters

    def loss_and_gradients(
        self, parameters: Parameters, batch: Batch
    ) -> tuple[float, dict[str, Array]]:
        """See `Model.loss_and_gradients`."""
        activations = self._forward(parameters, batch.inputs)
        log_probabilities = _log_softmax(activations.pop())
        loss = -_at_labels(log_probabilities, batch.labels).sum() / batch.total

        error = np.exp(log_probabilities)
        error[np.arange(len(error)), batch.labels] -= 1
        error /= batch.total
        gradients = {}
        for weight, bias in reversed(self._names):
            inputs = activations.pop()
            gradients[weight] = inputs.T @ error
            gradients[bias] = error.sum(axis=0)
            if activations:
                error = error @ parameters[weight].T
                error *= inputs > 0
        return float(loss), gradients

    def losses_and_scores(
        self, parameters: Parameters, inputs: Array, labels: Array
    ) -> tuple[Array, Array]:
        """See `Model.losses_and_scores`."""
        scores = self._forward(parameters, inputs)[-1]
        return -_at_labels(_log_softmax(scores), labels), scores

    def _forward(self, parameters: Parameters, inputs: Array) -> list[Array]:
        """Inputs of each layer, then the scores."""
        activations = [inputs]
        for weight, bias in self._names:
            if len(activations) > 1:
                np.maximum(activations[-1], 0, out=activations[-1])
            activations.append(activations[-1] @ parameters[weight] + parameters[bias])
        return activations


def _log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(axis=1, keepdims=True)  # so that exp cannot overflow
    log_probabilities: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probabilities


def _at_labels(values: Array, labels: Array) -> Array:
    return values[np.arange(len(values)), labels]


def _softmax(features: int, classes: int, hidden: tuple[int, ...], dtype: str) -> MLP:
    return MLP((features, classes), dtype)


def _mlp(features: int, classes: int, hidden: tuple[int, ...], dtype: str) -> MLP:
    return MLP((features, *hidden, classes), dtype)


#: Name of each model and the function (features, classes, hidden, dtype) that makes it.
MODELS: dict[str, Callable[[int, int, tuple[int, ...], str], MLP]] = {
    "softmax": _softmax,
    "mlp": _mlp,
}
