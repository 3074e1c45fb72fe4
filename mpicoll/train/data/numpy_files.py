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
#: Bytes from which on an array stays in its file.
_MAPPED = 1 << 24
#: What reads the head of an array, by the version of its format.
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read(path: Path) -> dict[str, Any]:
    """Arrays by name; those of 16 MB and more, unless they are compressed, as `Rows` of the file.

    In a folder that holds for all whose names end with `inputs`.

    Raises:
        FileNotFoundError: There is no such path.
        ValueError: What is there is damaged, or something else; or parts of an array do not tell
            their order, or do not fit together.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: give the path of an .npz file, or of a folder of .npy or of "
            "idx files"
        )
    if not path.is_dir():
        with _arrays_in(path, "numpy.savez"):
            if not zipfile.is_zipfile(path):
                raise ValueError("no zip file")
            with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
                mapped = {name: _mapped(path, archive, f"{name}.npy") for name in file.files}
                return {
                    name: file[name] if found is None else Rows([found])
                    for name, found in mapped.items()
                }
    maps = {
        name: {number: _map(part) for number, part in parts.items()}
        for name, parts in _parts(path).items()
    }
    _check_lengths(path, maps)
    return {
        name: Rows([*parts.values()])
        if name.endswith("inputs") or sum(part.nbytes for part in parts.values()) >= _MAPPED
        else _joined(path, name, parts)
        for name, parts in maps.items()
    }


def heads(path: Path, wanted: Collection[str]) -> list[Head]:
    """What an .npz file says of those of some arrays that `read` holds in memory.

    Nothing where it cannot be read, and nothing of a folder.
    """
    errors = OSError, ValueError, KeyError, zipfile.BadZipFile
    with suppress(*errors), zipfile.ZipFile(path) as archive:
        there = {info.filename: info for info in archive.infolist()}
        found = [there[f"{name}.npy"] for name in wanted if f"{name}.npy" in there]
        return [_head(archive, info.filename) for info in found if not _is_mapped(info)]
    return []


def _is_mapped(info: zipfile.ZipInfo) -> bool:
    return info.compress_type == zipfile.ZIP_STORED and info.file_size >= _MAPPED


def _mapped(path: Path, archive: zipfile.ZipFile, name: str) -> Array | None:
    """A large array of a file as a map of it, None where it is small or compressed."""
    info = archive.getinfo(name)
    if not _is_mapped(info):
        return None
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)  # of a local header: the lengths of two fields after it
        lengths = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
        file.seek(info.header_offset + 30 + lengths)
        shape, fortran, dtype = _READERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ValueError("objects")
        found: Array = np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
    return found


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
    """Refuse parts of inputs and of their targets that have equal numbers and other lengths.

    In all there might be as many of both, and each target belong to the sample of another.
    """
    for name, parts in maps.items():
        for kind in ("labels", "targets") if name.endswith("inputs") else ():
            others = maps.get(f"{name.removesuffix('inputs')}{kind}", {})
            for number in parts if parts.keys() == others.keys() else ():
                part, other = parts[number], others[number]
                if number is not None and part.shape[:1] != other.shape[:1]:
                    raise ValueError(
                        f"{folder}: part {number} of {name} has shape {part.shape} and that of "
                        f"{kind} {other.shape}: give each sample its own in the part of the same "
                        "number"
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
    with archive.open(name) as file:
        shape, _, dtype = _READERS[np.lib.format.read_magic(file)](file)
    return prod(shape), dtype


@contextmanager
def _arrays_in(path: Path, writer: str) -> Iterator[None]:
    """Say of a file that it is not what was awaited; NumPy advises to run code from it."""
    try:
        yield
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} holds no arrays of numbers, or is damaged: write it again by {writer}"
        ) from error
