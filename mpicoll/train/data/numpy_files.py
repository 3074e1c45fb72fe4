"""Arrays in NumPy's files: an .npz file, or a folder of .npy files that are mapped."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.rows import Rows

#: Number of values of an array, and their type.
Head = tuple[int, np.dtype[Any]]


def read(path: Path) -> dict[str, Any]:
    """Arrays by name; of a folder, those whose names end with `inputs` as `Rows` that stay on disk.

    Raises:
        FileNotFoundError: There is no such path.
        ValueError: What is there is damaged, or something else.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: give the path of an .npz file or of a folder of .npy files"
        )
    if not path.is_dir():
        with _arrays_in(path, "numpy.savez"):
            if not zipfile.is_zipfile(path):
                raise ValueError("no zip file")
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    maps = {name: [_map(part) for part in parts] for name, parts in _parts(path).items()}
    return {
        name: Rows(parts) if name.endswith("inputs") else np.concatenate(parts)
        for name, parts in maps.items()
    }


def heads(path: Path, wanted: Collection[str]) -> list[Head]:
    """What the heads of files say of some arrays; nothing where they cannot be read."""
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
        if path.is_dir():
            maps = [_map(part) for name in wanted for part in _parts(path).get(name, ())]
            return [(array.size, array.dtype) for array in maps]
        with zipfile.ZipFile(path) as archive:
            there = set(archive.namelist())
            return [_head(archive, f"{name}.npy") for name in wanted if f"{name}.npy" in there]
    return []


def _parts(folder: Path) -> dict[str, list[Path]]:
    """Files of each array of a folder: `x-000.npy` and `x-001.npy` are of one."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.npy")):
        found.setdefault(path.stem.partition("-")[0], []).append(path)
    return found


def _map(path: Path) -> Array:
    with _arrays_in(path, "numpy.save"):
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _head(archive: zipfile.ZipFile, name: str) -> Head:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with archive.open(name) as file:
        shape, _, dtype = readers[np.lib.format.read_magic(file)](file)
    return prod(shape), dtype


@contextmanager
def _arrays_in(path: Path, writer: str) -> Iterator[None]:
    """Say of a file that it is not what was awaited; NumPy advises to run code from it."""
    try:
        yield
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} holds no arrays of numbers, or is damaged: write it again by {writer}"
        ) from error
