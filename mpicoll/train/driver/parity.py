"""How far the parameters of P ranks are from those of one process with the same global batches."""

from __future__ import annotations

import numpy as np

from mpicoll.train.config import Config
from mpicoll.train.models import Parameters
from mpicoll.train.strategies.protocol import strategy_of


def differences(parameters: Parameters, reference: Parameters) -> dict[str, float]:
    """Largest difference of each array, relative to the largest value of the reference's array.

    Relative to the array, not to each element: elements near zero carry rounding errors of the
    size of the others. NaN if a value is NaN.
    """
    return {
        name: _relative(np.abs(array - reference[name]).max(), np.abs(reference[name]).max())
        for name, array in parameters.items()
    }


def _relative(difference: float, largest: float) -> float:
    if difference == 0:
        return 0.0
    return float(difference / largest) if largest else float("inf")


def limit(config: Config) -> float | None:
    """Largest difference that rounding explains, or None where none is promised.

    None is in narrower types than float64. A hidden layer's ReLU turns rounding near zero into
    larger steps, so models with hidden layers have more room. Invariant sums have none. Parts that
    are normalised by themselves depend on the number of ranks.
    """
    if config.invariant is not None:
        return 0.0
    narrow = config.dtype != "float64" or config.wire != "full"
    local = config.model == "resnet" and config.norm == "local"
    if narrow or local or not strategy_of(config).is_exact(config):
        return None
    return 1e-12 if config.model == "softmax" else 1e-9
