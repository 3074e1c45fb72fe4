"""The idx files of MNIST, and of all data that are handed on in its form: four in a folder.

    train-images-idx3-ubyte.gz   train-labels-idx1-ubyte.gz
    t10k-images-idx3-ubyte.gz    t10k-labels-idx1-ubyte.gz

Each may be compressed (.gz) or not. A file is a head, two zero bytes, the type, the number of axes
and the length of each as 4 bytes, the highest first; then the values (Y. LeCun, C. Cortes,
C. Burges, "The MNIST database of handwritten digits"). Only values of one byte are read.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, cast

import numpy as np

from mpicoll.base.arrays import Array

#: How the names of the files of each set begin.
_SETS = {"train": "train", "test": "t10k"}
#: What the files of a set hold: how a name goes on, and the number of axes.
_IMAGES, _LABELS = ("images", 3), ("labels", 1)
#: Bytes that one byte of a compressed file can stand for, at most (deflate).
_MOST = 1032


def are_in(folder: Path) -> bool:
    """Whether there is such a file in a folder."""
    return any(folder.glob("*idx[0-9]-ubyte")) or any(folder.glob("*idx[0-9]-ubyte.gz"))


def read(folder: Path, remedy: str = "give a folder of all four") -> dict[str, Array]:
    """Images, as numbers from 0 to 1, and labels, by the names that `from_arrays` knows.

    Args:
        folder: Where the files are.
        remedy: What to do where one is missing, for the message.

    Raises:
        FileNotFoundError: One is missing.
        ValueError: One is no idx file of bytes, or of another length than its head says.
        OSError: One cannot be read.
    """
    found: dict[str, Array] = {}
    for part in _SETS:
        images = _read(_find(folder, part, _IMAGES, remedy), _IMAGES[1])
        found[f"{part}_inputs"] = images.astype(np.float32) / np.float32(255)
        labels = _read(_find(folder, part, _LABELS, remedy), _LABELS[1])
        found[f"{part}_labels"] = labels.astype(np.intp)
    return found


def sizes(folder: Path) -> list[int]:
    """Values of the images of each set, by the heads of files; nothing where `read` will raise."""
    try:
        paths = [_find(folder, part, _IMAGES, "") for part in _SETS]
        return [prod(_shape(path, _IMAGES[1])) for path in paths]
    except (OSError, ValueError):
        return []


def _find(folder: Path, part: str, kind: tuple[str, int], remedy: str) -> Path:
    name, axes = kind
    begin = f"{_SETS[part]}-{name}"
    for separator in "-.":  # some hand them on with a dot
        for end in ("", ".gz"):
            path = folder / f"{begin}{separator}idx{axes}-ubyte{end}"
            if path.is_file():
                return path
    raise FileNotFoundError(f"{folder / begin}-idx{axes}-ubyte(.gz) is missing: {remedy}")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file of bytes, whether it is compressed or not.

    Raises:
        ValueError: Reading it shows that it is damaged.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield cast(IO[bytes], file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, str(error)) from None


def _shape(path: Path, axes: int) -> tuple[int, ...]:
    """The lengths of the axes, as the head says."""
    with _opened(path) as file:
        head = file.read(_start(axes))
    if head[:4] != bytes((0, 0, 8, axes)) or len(head) != _start(axes):
        raise _damaged(path, f"it does not begin as idx{axes}-ubyte does")
    shape = tuple(np.frombuffer(head, ">u4", offset=4).tolist())
    if 0 in shape:
        raise _damaged(path, f"nothing has a shape of {shape}")
    # Looked at first, since as much as the head says is asked for.
    if prod(shape) > path.stat().st_size * (_MOST if path.suffix == ".gz" else 1):
        raise _damaged(path, f"it is too short for a shape of {shape}")
    return shape


def _read(path: Path, axes: int) -> Array:
    """The values of a file, of 8 bits."""
    shape = _shape(path, axes)
    with _opened(path) as file:
        file.seek(_start(axes))
        values = file.read(prod(shape) + 1)
    if len(values) != prod(shape):
        what = "more" if len(values) > prod(shape) else "less"
        raise _damaged(path, f"it holds {what} than a shape of {shape}")
    return np.frombuffer(values, np.uint8).reshape(shape)


def _start(axes: int) -> int:
    """Bytes of the head."""
    return 4 + 4 * axes


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged, or no idx file: {reason}: get it again")
