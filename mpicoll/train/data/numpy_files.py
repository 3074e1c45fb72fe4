"""Arrays in NumPy's files: an .npz file, or a folder of .npy files that are mapped."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.rows import Rows

T = TypeVar("T")

#: Number of values of an array, and their type.
Head = tuple[int, np.dtype[Any]]


def read(path: Path) -> dict[str, Any]:
    """Arrays by name; of a folder, those whose names end with `inputs` as `Rows` that stay on disk.

    Raises:
        FileNotFoundError: There is no such path.
        ValueError: What is there is damaged, or something else; or parts of an array do not tell
            their order, or do not fit together.
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
    maps = {
        name: {number: _map(part) for number, part in parts.items()}
        for name, parts in _parts(path).items()
    }
    _check_lengths(path, maps)
    return {
        name: Rows([*parts.values()]) if name.endswith("inputs") else _joined(path, name, parts)
        for name, parts in maps.items()
    }


def heads(path: Path, wanted: Collection[str]) -> list[Head]:
    """What the heads of files say of some arrays; nothing where they cannot be read."""
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
        if path.is_dir():
            maps = [_map(part) for name in wanted for part in _parts(path).get(name, {}).values()]
            return [(array.size, array.dtype) for array in maps]
        with zipfile.ZipFile(path) as archive:
            there = set(archive.namelist())
            return [_head(archive, f"{name}.npy") for name in wanted if f"{name}.npy" in there]
    return []


#: Arrays or files of one array, by the number of the part; None where the array is in one part.
Parts = dict[int | None, T]


def _parts(folder: Path) -> dict[str, Parts[Path]]:
    """Files of each array of a folder, by number: `x-2.npy` and `x-010.npy` are of one.

    Raises:
        ValueError: The order of files is not clear, or a file is missing between others.
    """
    found: dict[str, Parts[Path]] = {}
    for path in sorted(folder.glob("*.npy")):
        name, dash, number = path.stem.partition("-")
        if dash and not (number.isascii() and number.isdigit()):
            raise ValueError(
                f"{path}: {number!r} is no number, so it is not clear which part of {name} it is: "
                f"call parts {name}-0.npy, {name}-1.npy, ..."
            )
        parts = found.setdefault(name, {})
        twin = parts.setdefault(int(number) if dash else None, path)
        if twin != path:
            raise ValueError(
                f"{folder} holds {twin.name} and {path.name}, which are the same part of {name}: "
                "remove one, or give it another number"
            )
    return {name: _ordered(folder, name, parts) for name, parts in found.items()}


def _ordered(folder: Path, name: str, parts: Parts[Path]) -> Parts[Path]:
    numbers = sorted(number for number in parts if number is not None)
    if None in parts and numbers:
        raise ValueError(
            f"{folder} holds {name}.npy and {parts[numbers[0]].name}: give the array as one file, "
            "or as parts with numbers alone"
        )
    for before, number in pairwise(numbers):
        if number != before + 1:
            raise ValueError(
                f"{folder} holds parts {before} and {number} of {name}, and nothing between them: "
                "number the parts without a gap"
            )
    return {number: parts[number] for number in numbers} or parts


def _check_lengths(folder: Path, maps: Mapping[str, Parts[Array]]) -> None:
    """Refuse parts of inputs and of their labels that have equal numbers and other lengths.

    In all there might be as many of both, and each label belong to the sample of another.
    """
    for name, parts in maps.items():
        labels = maps.get(f"{name.removesuffix('inputs')}labels", {})
        if not name.endswith("inputs") or parts.keys() != labels.keys():
            continue
        for number, part in parts.items():
            label = labels[number]
            if number is not None and part.shape[:1] != label.shape[:1]:
                raise ValueError(
                    f"{folder}: part {number} of {name} has shape {part.shape} and that of labels "
                    f"{label.shape}: give each sample its label in the part of the same number"
                )


def _joined(folder: Path, name: str, parts: Parts[Array]) -> Array:
    first, *others = parts.values()
    for other in others:
        if other.shape[1:] != first.shape[1:] or other.dtype.kind != first.dtype.kind:
            raise ValueError(
                f"{folder}: parts of {name} are of {first.dtype} and of {other.dtype}, with rows "
                f"of shape {first.shape[1:]} and {other.shape[1:]}: give all the same"
            )
    return np.concatenate([first, *others]) if others else np.array(first)


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
