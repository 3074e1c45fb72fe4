"""Where a rank's samples come from: read by itself, or by a rank that reads for it."""

from __future__ import annotations

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.data import augment
from mpicoll.train.data.datasets import Dataset, Feed, Samples


class Reading(Feed):
    """Reads samples when they are needed.

    Args:
        dataset: The data, of the type to compute in.
        seed: Of the draws of augmentation.
        augmentation: In words (`mpicoll.train.data.augment`), None for none.

    Raises:
        ValueError: Samples that are no images are to be augmented.
    """

    def __init__(self, dataset: Dataset, seed: int, augmentation: str | None) -> None:
        self._dataset, self._seed = dataset, seed
        self._augmentation = None if augmentation is None else augment.parse(augmentation)
        self._image = (0, 0, 0) if self._augmentation is None else dataset.image

    def take(self, samples: Samples, epoch: int) -> tuple[Array, Array]:
        rows = library_of(self._dataset.train_targets).asarray(samples)
        inputs = self._dataset.train_inputs[rows]
        if self._augmentation is not None:
            inputs = self._augmentation.apply(inputs, self._image, self._seed, epoch, samples)
        return inputs, self._dataset.train_targets[rows]
