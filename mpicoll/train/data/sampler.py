"""Which samples each rank takes in each step.

The order of an epoch is one permutation drawn from (seed, epoch), the same on all ranks. Step t
takes the next `batch` samples of it (the last step what is left) and cuts them over the ranks, so
that the ranks together process exactly the batches that one process would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.schedule.layout import part

if TYPE_CHECKING:
    from mpi4py import MPI


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

    def batches(self, epoch: int, done: int = 0) -> Iterator[NDArray[np.int64]]:
        """Indices of the samples of each step of `epoch`, every sample exactly once.

        Args:
            epoch: Number of the epoch.
            done: Steps at its start to leave out.
        """
        order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        for start in range(done * self.batch, self.samples, self.batch):
            yield order[start : start + self.batch]


class DistributedSampler:
    """The samples of one rank, for a training loop of your own::

        for epoch in range(1, 11):
            for mine, total in DistributedSampler(len(labels), 64, comm).batches(epoch):
                ...  # gradients of the rows `mine`, summed and divided by `total`

    As `batch_sampler` of a PyTorch DataLoader it returns lists of row numbers::

        loader = DataLoader(data, batch_sampler=DistributedSampler(len(data), 64, comm))
        for epoch in range(1, 11):
            loader.batch_sampler.set_epoch(epoch)
            for inputs, labels in loader: ...

    Args:
        samples: Number of samples in the training set.
        batch: Samples in one step, of all ranks together.
        comm: The ranks.
        seed: Determines the order, together with the epoch.

    Attributes:
        gives_empty: Whether iteration returns an empty list if a rank has no samples of a step, as
            in a last batch of fewer samples than ranks; the loader's collate_fn must accept it.
    """

    def __init__(self, samples: int, batch: int, comm: MPI.Intracomm, seed: int = 0) -> None:
        self._sampler = Sampler(samples, batch, seed)
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._epoch, self._done = 1, 0
        self.gives_empty = True

    def __len__(self) -> int:
        """Steps in one epoch, the same on all ranks."""
        return self._sampler.steps

    def __iter__(self) -> Iterator[list[int]]:
        """The samples of this rank in each step that is left of the epoch that was set."""
        for mine, _ in self.batches(self._epoch, self._done):
            if len(mine) or self.gives_empty:
                yield mine.tolist()

    def set_epoch(self, epoch: int, done: int = 0) -> None:
        """Set the next iteration: an epoch, counted from 1, and how many of its steps to skip."""
        self._epoch, self._done = epoch, done

    def batches(self, epoch: int, done: int = 0) -> Iterator[tuple[NDArray[np.int64], int]]:
        """This rank's samples of each step, perhaps none, and the number of those of all ranks."""
        for samples in self._sampler.batches(epoch, done):
            yield shared(samples, self._size, self._rank), len(samples)


def shared(
    items: NDArray[Any], size: int, rank: int, speeds: NDArray[Any] | None = None
) -> NDArray[Any]:
    """The rows of `items` that `rank` of `size` takes, as a view: none where rows run out.

    Lengths differ by at most one, or follow the `speeds` of the ranks; each rank has at least one,
    where there are enough.
    """
    if speeds is None:
        start, length = part(len(items), size, rank)
        return items[start : start + length]
    least = len(items) >= size
    rest = len(items) - least * size
    ends = np.rint(np.cumsum(speeds) / speeds.sum() * rest).astype(int)
    ends += least * np.arange(1, size + 1)
    return items[ends[rank - 1] if rank else 0 : ends[rank]]
