"""Where a rank's samples come from: read by itself, or by a rank that reads for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays import library_of
from mpicoll.train import augment

if TYPE_CHECKING:
    from mpicoll.train.config import Config
    from mpicoll.train.data import Dataset

Array = NDArray[Any]
Samples = NDArray[np.int64]


class Feed(Protocol):
    """What gives a rank the samples it trains on."""

    @property
    def ahead(self) -> int:
        """Batches to ask for before the one that is needed."""

    def want(self, samples: Samples, epoch: int) -> None:
        """These will be needed, after those that were wanted before."""

    def take(self, samples: Samples, epoch: int) -> tuple[Array, Array]:
        """Inputs, augmented, and labels."""

    def forget(self) -> None:
        """What was wanted will not be needed."""

    def look(self) -> None:
        """Raise RankLost where a rank that gives samples, or is given some, has died."""


class Reading:
    """Reads samples when they are needed.

    Args:
        dataset: The data, of the type to compute in.
        config: The run.

    Raises:
        ValueError: Samples that are no images are to be augmented.
    """

    ahead = 0

    def __init__(self, dataset: Dataset, config: Config) -> None:
        self._dataset, self._seed = dataset, config.seed
        self._augmentation = None if config.augment is None else augment.parse(config.augment)
        self._image = (0, 0, 0) if self._augmentation is None else dataset.image

    def want(self, samples: Samples, epoch: int) -> None:
        """See `Feed.want`."""

    def take(self, samples: Samples, epoch: int) -> tuple[Array, Array]:
        """See `Feed.take`."""
        rows = library_of(self._dataset.train_labels).asarray(samples)
        inputs = self._dataset.train_inputs[rows]
        if self._augmentation is not None:
            inputs = self._augmentation.apply(inputs, self._image, self._seed, epoch, samples)
        return inputs, self._dataset.train_labels[rows]

    def forget(self) -> None:
        """See `Feed.forget`."""

    def look(self) -> None:
        """See `Feed.look`: there is none."""
