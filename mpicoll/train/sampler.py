"""Which samples each rank takes in each step.

The order of an epoch is one permutation drawn from (seed, epoch), the same on all ranks. Step t
takes the next `batch` samples of it (the last step what is left) and cuts them over the ranks, so
that the ranks together process exactly the batches that one process would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.layout import part


@dataclass(frozen=True)
class Sampler:
    """The global batches of every epoch.

    Attributes:
        samples: Number of samples in the training set.
        batch: Samples in one step, of all ranks together.
        seed: Decides the order, together with the epoch.
    """

    samples: int
    batch: int
    seed: int = 0

    @property
    def steps(self) -> int:
        """Steps in one epoch."""
        return -(-self.samples // self.batch)

    def batches(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Indices of the samples of each step of `epoch`, every sample exactly once."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        for start in range(0, self.samples, self.batch):
            yield order[start : start + self.batch]


def shared(items: NDArray[Any], size: int, rank: int) -> NDArray[Any]:
    """The rows of `items` that `rank` of `size` takes, as a view: none where rows run out."""
    start, length = part(len(items), size, rank)
    return items[start : start + length]
