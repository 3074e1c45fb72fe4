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
        targets: Shape (samples, ...): what the outputs are to be; class numbers are integers.
        total: What sums over samples are divided by: the samples in the global batch, of all ranks
            together (less where the loss is scaled for a narrow type).
        samples: Shape (samples,), the index of each in the training set.
        epoch: Number of the epoch, counted from 1.
        seed: Of the run. What is drawn at random for a sample depends on (seed, epoch, sample).
        sum: For a model that needs sums over all parts of the batch; None where each part is by
            itself. All ranks ask for the same sums in the same order, those that the model's
            `sums` says.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    total: float
    samples: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    epoch: int = 1
    seed: int = 0
    sum: Sum | None = None
