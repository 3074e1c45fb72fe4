"""A PyTorch DataLoader as the source of a run's training samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mpicoll.base.arrays import Array
from mpicoll.train.data.datasets import Dataset, Feed, Samples
from mpicoll.train.data.sampler import DistributedSampler


def from_loader(
    loader: Any, test: Any, name: str = "loader", vocabulary: int | None = None
) -> Dataset:
    """A data set whose training samples a PyTorch DataLoader gives, on each rank its own.

    With ``batch_sampler=DistributedSampler(...)`` of the run's number of samples, batch and seed
    the ranks take the batches that one process would, and a run goes on in the middle of an epoch.
    Any other loader is read in its own order, as many samples at a time as a rank has of a batch,
    from its start in each epoch; a run then goes on as it would have from the end of an epoch only,
    and a warning says so.

    Args:
        loader: Of pairs of inputs and targets.  Its data set has a length and is indexed by number.
            Targets that are whole numbers are classes, others are to come close to.
        test: Another, which is read to its end at once.
        name: What reports call the set.
        vocabulary: Inputs are tokens, whole numbers from 0 to below it; None: inputs are numbers.

    Raises:
        TypeError: The loader's data set cannot be indexed.
        ValueError: What they give does not fit.
    """
    source = loader.dataset
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise TypeError(
            f"{type(source).__name__} has no samples with a number: give a loader of a data set "
            "with a length and __getitem__"
        )
    if isinstance(loader.batch_sampler, DistributedSampler):
        feed: Feed = SampledFeed(loader, loader.batch_sampler)
    else:
        feed = StreamFeed(loader)
        warnings.warn(
            "the loader has a sampler of its own, whose order nobody knows: a run that is stopped "
            "within an epoch goes on with other samples of it; give the DataLoader "
            "batch_sampler=DistributedSampler(...)",
            stacklevel=2,
        )
    tests = [_pair(batch) for batch in test]
    test_inputs, test_targets = (np.concatenate(arrays) for arrays in zip(*tests, strict=True))
    targets, classes = _targets(source), None
    if targets.dtype.kind != "f":
        classes = 1 + int(max(targets.max(initial=0), test_targets.max(initial=0)))
    return Dataset(
        name,
        classes,
        _Rows(source),
        targets,
        test_inputs,
        test_targets,
        vocabulary=vocabulary,
        feed=feed,
    )


class SampledFeed(Feed):
    """What a loader gives whose sampler is ours.

    Args:
        loader: The loader.
        sampler: Its `batch_sampler`.
    """

    def __init__(self, loader: Any, sampler: DistributedSampler) -> None:
        self._loader, self._sampler = loader, sampler
        sampler.gives_empty = False  # of which loaders can make no batch
        self._expected: Iterator[Samples] = iter(())
        self._batches: Iterator[Any] | None = None

    def begin(self, epoch: int, done: int) -> None:
        self._sampler.set_epoch(epoch, done)
        self._expected = (mine for mine, _ in self._sampler.batches(epoch, done) if len(mine))
        self._batches = None

    def take(self, samples: Samples, epoch: int) -> tuple[Array, Array]:
        if not len(samples):
            first = _pair(self._loader.dataset[0])
            inputs, targets = (np.zeros((0, *array.shape), array.dtype) for array in first)
            return inputs, targets
        if not np.array_equal(samples, next(self._expected, ())):
            raise ValueError(
                "the sampler of the loader gives other samples than the run asks for: make it of "
                "the run's number of samples, batch and seed, and leave invariant and balance out"
            )
        if self._batches is None:
            self._batches = iter(self._loader)
        return _pair(next(self._batches))


class StreamFeed(Feed):
    """What a loader gives in an order of its own; more than is wanted waits, and it starts again.

    Args:
        loader: The loader.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches = self._all()
        self._held: list[tuple[Array, Array]] = []

    def begin(self, epoch: int, done: int) -> None:
        for sampler in (self._loader.sampler, self._loader.batch_sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        self._batches, self._held = self._all(), []

    def take(self, samples: Samples, epoch: int) -> tuple[Array, Array]:
        while not self._held or sum(len(targets) for _, targets in self._held) < len(samples):
            self._held.append(next(self._batches))
        inputs, targets = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        self._held = [(inputs[len(samples) :], targets[len(samples) :])]
        return inputs[: len(samples)], targets[: len(samples)]

    def _all(self) -> Iterator[tuple[Array, Array]]:
        while True:
            count = 0
            for batch in self._loader:
                count += 1
                yield _pair(batch)
            if not count:
                raise ValueError("the loader gives no batch: give it samples")


class _Rows:
    """The inputs of a PyTorch data set, read where they are needed."""

    def __init__(self, source: Any, dtype: DTypeLike | None = None) -> None:
        first = _pair(source[0])[0]
        self._source = source
        self.shape = (len(source), *first.shape)
        self.dtype = first.dtype if dtype is None else np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        numbers = np.arange(len(self))[index]
        rows = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        for row, number in zip(rows, numbers.tolist(), strict=True):
            row[...] = _pair(self._source[number])[0]
        return rows

    def astype(self, dtype: DTypeLike) -> _Rows:
        """The same samples in another type."""
        return _Rows(self._source, dtype)


def _targets(source: Any) -> Array:
    """All targets of a data set: where there are such, without reading the inputs."""
    targets = getattr(source, "targets", None)
    if targets is None and hasattr(source, "tensors"):
        targets = source.tensors[1]
    if targets is not None:
        return np.asarray(targets)
    return np.array([np.asarray(source[number][1]) for number in range(len(source))])


def _pair(batch: Any) -> tuple[Array, Array]:
    """Inputs and targets as arrays of the same memory."""
    inputs, targets = batch
    return np.asarray(inputs), np.asarray(targets)
