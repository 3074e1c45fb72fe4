"""A data set: samples to train on, and others to judge by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpicoll.base.arrays import Array
from mpicoll.train.data import targets
from mpicoll.train.data.rows import Inputs, Rows

Samples = NDArray[np.int64]
#: The sets that samples are in.
PARTS = ("train", "validation", "test")


class Feed(ABC):
    """What gives a rank the samples it trains on.

    Attributes:
        ahead: Batches to ask for before the one that is needed.
    """

    ahead = 0

    def want(self, samples: Samples, epoch: int) -> None:  # noqa: B027 - may do nothing
        """These will be needed, after those that were wanted before."""

    @abstractmethod
    def take(self, samples: Samples, epoch: int) -> tuple[Array, Array]:
        """Inputs, augmented, and targets."""

    def forget(self) -> None:  # noqa: B027
        """What was wanted will not be needed."""

    def begin(self, epoch: int, done: int) -> None:  # noqa: B027
        """An epoch begins, or goes on after so many of its batches."""

    def look(self) -> None:  # noqa: B027
        """Raise RankLost where a rank that gives samples, or is given some, has died."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples of any shape: a model learns row i of `*_targets` from row i of `*_inputs`.

    If there is a validation set, stop rules and the choice of the best checkpoint use only that,
    and the test set is measured once, at the end. Without one they use the test set.

    Attributes:
        name: Name in reports.
        classes: Number of classes: targets are whole numbers below it. None for real targets.
        train_inputs, test_inputs, validation_inputs: Shape (samples, ...), floating point or
            tokens; None where there is no such set.
        train_targets, test_targets, validation_targets: Shape (samples, ...), of as many samples.
        vocabulary: Number of tokens: inputs are whole numbers below it. None for real inputs.
        about: What identifies the data, such as their source; equal on all ranks, and when a run
            resumes.
        feed: A source of training samples; None if each rank reads them from the arrays.

    Raises:
        ValueError: Shapes do not fit together, a set is empty, a target or a token is out of range
            or a target is not finite. Data in files are checked when they are read.
    """

    name: str
    classes: int | None
    train_inputs: Inputs
    train_targets: Inputs
    test_inputs: Inputs | None = None
    test_targets: Inputs | None = None
    validation_inputs: Inputs | None = None
    validation_targets: Inputs | None = None
    vocabulary: int | None = None
    about: str = ""
    feed: Feed | None = None

    def __post_init__(self) -> None:
        for part in PARTS:
            inputs, wanted = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_targets")
            if inputs is not None or wanted is not None:
                self._check(part, inputs, wanted)

    def _check(self, part: str, inputs: Inputs | None, wanted: Inputs | None) -> None:
        where = f"{self.name}, {'training' if part == 'train' else part} set"
        if inputs is None or wanted is None:
            missing = "inputs" if inputs is None else "targets"
            raise ValueError(f"{where} has no {missing}: give both, or leave both out")
        if not inputs.shape or not len(inputs):
            raise ValueError(
                f"{where}: inputs have shape {inputs.shape}: give (samples, ...), with at least "
                "one sample"
            )
        if not isinstance(wanted, Rows):
            if self.classes is None:
                targets.check_numbers(where, wanted)
            else:
                targets.check_classes(where, wanted, self.classes)
        if len(wanted) != len(inputs):
            raise ValueError(
                f"{where}: {len(inputs)} inputs and {len(wanted)} targets: give one for each"
            )
        if self.vocabulary is not None and not isinstance(inputs, Rows):
            targets.check_tokens(where, inputs, self.vocabulary)
        for kind, found, first in (
            ("inputs", inputs, self.train_inputs),
            ("targets", wanted, self.train_targets),
        ):
            if found.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"{self.name}: samples have {kind} of shape {first.shape[1:]} in the training "
                    f"set and {found.shape[1:]} in the {part} set: give both the same"
                )

    @property
    def parts(self) -> dict[str, tuple[Inputs, Inputs]]:
        """Inputs and targets of the sets that are there, by their names of `PARTS`."""
        found = {
            part: (getattr(self, f"{part}_inputs"), getattr(self, f"{part}_targets"))
            for part in PARTS
        }
        return {part: both for part, both in found.items() if both[0] is not None}

    @property
    def held_out(self) -> str | None:
        """The set that decides when to stop and what is best; None where all is to train on."""
        return next((part for part in ("validation", "test") if part in self.parts), None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the inputs of one sample."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def features(self) -> int:
        """Values in the inputs of one sample."""
        return prod(self.shape)

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels.

        Raises:
            ValueError: The samples are no images.
        """
        if len(self.shape) not in (2, 3) or self.vocabulary is not None:
            raise ValueError(
                f"{self.name}: samples are {self.features} values and no images: give a model "
                "other than conv and no augmentation, or data with a height and a width"
            )
        height, width, channels = (*self.shape, 1)[:3]
        return height, width, channels

    def astype(self, dtype: DTypeLike) -> Dataset:
        """The same set with real numbers in another floating type (itself where nothing changes).

        Targets are kept in float32 at least; class numbers and tokens stay as they are.
        """
        wide = np.promote_types(dtype, np.float32)
        changes: dict[str, Any] = {}
        for part, (inputs, wanted) in self.parts.items():
            if self.vocabulary is None and inputs.dtype != dtype:
                changes[f"{part}_inputs"] = inputs.astype(dtype)
            if self.classes is None and wanted.dtype != wide:
                changes[f"{part}_targets"] = wanted.astype(wide)
        return replace(self, **changes) if changes else self
