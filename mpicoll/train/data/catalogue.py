"""Data sets by name or path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.train.data import idx_files, numpy_files, pictures, text
from mpicoll.train.data.datasets import PARTS, Dataset
from mpicoll.train.data.own import load_file

#: Name of each data set that comes without a path, and the function that reads it.
DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": pictures.load_digits,
    "mnist5k": pictures.load_mnist5k,
    "fashion-mnist": lambda: pictures.load_fashion_mnist(pictures.FASHION_MNIST),
    "text": text.load_library,
}


def load(name: str, path: str | None = None, context: int = text.CONTEXT) -> Dataset:
    """Read a data set.

    Args:
        name: A name in `DATASETS`, or the path of an .npz file or of a folder of .npy or of idx
            files (see `load_file`).
        path: Folder of the files of `fashion-mnist`; a file for `text`, in place of Python's own
            library; others need none.
        context: Bytes of a sample of `text`.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: What is in it does not fit.
    """
    if name == "fashion-mnist" and path is not None:
        return pictures.load_fashion_mnist(Path(path))
    if name == "text":
        return text.load_library(context) if path is None else text.load_file(Path(path), context)
    if name in DATASETS:
        return DATASETS[name]()
    return load_file(Path(name))


def read_inputs(name: str) -> list[tuple[int, np.dtype[Any]]]:
    """Number of values, and their type, in each array of inputs that `load` reads into memory.

    Of files that cannot be read, nothing: `load` will say why.
    """
    if name in pictures.VALUES:
        return [(pictures.VALUES[name], np.dtype(np.uint8))]
    if not is_path(name):
        return []
    path = Path(name)
    if path.is_dir() and idx_files.are_in(path):
        return [(size, np.dtype(np.uint8)) for size in idx_files.sizes(path)]
    return numpy_files.heads(path, ("inputs", *(f"{part}_inputs" for part in PARTS)))


def is_path(name: str) -> bool:
    """Whether the name of a data set is a path."""
    return "/" in name or name.endswith(".npz")


def name_of(name: str) -> str:
    """What `load` calls the set of this name or path."""
    path = Path(name)
    return path.name if path.is_dir() else path.stem
