"""What a model is given to compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Replaces a vector of float64 by its sum over the parts of a global batch; collective.
Sum = Callable[[NDArray[np.float64]], object]


@dataclass(frozen=True, eq=False)
class Batch:
    """This rank's part of a global batch; it may be empty.

    Attributes:
        inputs: Shape (samples, ...).
        targets: Shape (samples, ...): the wanted outputs; class numbers are integers.
        total: The divisor of sums over samples: the number of samples in the global batch (smaller
            if the loss is scaled for a narrow type).
        samples: Shape (samples,), the index of each in the training set.
        epoch: Number of the epoch, counted from 1.
        seed: Seed of the run. Random numbers for a sample depend on (seed, epoch, sample).
        sum: Adds a vector over all parts of the batch, for models that need it; None if each part
            is by itself. All ranks call it for the same sums in the same order, as the model's
            `sums` lists them.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    total: float
    samples: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    epoch: int = 1
    seed: int = 0
    sum: Sum | None = None
