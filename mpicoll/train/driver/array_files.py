"""Files of arrays: parts of arrays, one after the other, as they are in memory, little-endian.

A file has no head: what is in it stands in the manifest of its checkpoint. Parts are written and
read one at a time, so that a checkpoint takes the memory of its largest array at most.

    "files": {"rank-0.arrays": {"bytes": 96, "sha256": "...", "parts": [["state/v/w", 0, 12, 0]]}},
    "arrays": {"state/v/w": {"type": "<f8", "shape": [4, 3]}}

A part is the name of its array, the first of its elements in C order, their number, and the byte
at which they begin.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpicoll.base.arrays import Array, host, put
from mpicoll.base.files import sha256, synchronise
from mpicoll.train.strategies.kept import Part, Saved

#: Floating-point and whole numbers, and truth values: what needs no pickle.
_TYPE = re.compile(r"<[fiu][248]|\|[iub]1")
_FILE = re.compile(r"rank-\d+\.arrays")

Facts = dict[str, Any]


def write(path: Path, parts: Iterable[Part]) -> tuple[Facts, Exception | None]:
    """Write the parts that a rank keeps to a file; there is none where it keeps nothing.

    All parts are taken, also after a failure: making them may be collective.

    Returns:
        What a manifest says of the file and of its arrays (`files`, `arrays`); what went wrong.
    """
    file: _Writer | None = None
    failure: Exception | None = None
    for part in parts:
        if failure is not None:
            continue
        try:
            file = file or _Writer(path)
            file.add(part)
        except Exception as error:
            failure = error
    found: Facts = {"files": {}, "arrays": {}}
    try:
        if file is not None:
            found = file.close()
    except Exception as error:
        failure = failure or error
    if isinstance(failure, OSError) and failure.errno and not failure.filename:
        failure.filename = str(path)  # a full disk does not say which file
    return found, failure


class _Writer:
    """A new file, and what is in it."""

    def __init__(self, path: Path) -> None:
        self._path, self._digest = path, hashlib.sha256()
        self._parts: list[list[Any]] = []
        self._arrays: dict[str, Facts] = {}
        self._end = 0
        try:
            self._file = open(path, "xb")  # noqa: SIM115 - until `close`
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path.parent}, which rank 0 has made, is not there on this rank: keep "
                "checkpoints in a folder that all ranks share"
            ) from None

    def add(self, part: Part) -> None:
        values = np.ascontiguousarray(host(part.values))
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        if not _TYPE.fullmatch(values.dtype.str):
            raise TypeError(
                f"array {part.name} is {values.dtype}, which a checkpoint does not keep: give "
                "numbers of 1 to 8 bytes"
            )
        data = values.view(np.uint8)
        self._file.write(data.data)
        self._digest.update(data.data)
        self._parts.append([part.name, part.start, values.size, self._end])
        self._arrays[part.name] = {"type": values.dtype.str, "shape": list(part.shape)}
        self._end += data.size

    def close(self) -> Facts:
        self._file.close()
        synchronise(self._path)
        facts = {"bytes": self._end, "sha256": self._digest.hexdigest(), "parts": self._parts}
        return {"files": {self._path.name: facts}, "arrays": self._arrays}


class _Piece(NamedTuple):
    """A part of an array, and where it is."""

    start: int
    length: int
    file: str
    at: int


class ArrayFiles(Saved):
    """The arrays of a folder.

    Args:
        folder: Where the files are.
        facts: What the manifest says, with `files` and `arrays`.

    Raises:
        ValueError: It does not say of each array where all of it is.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        try:
            self._files = {str(name): dict(file) for name, file in facts["files"].items()}
            self._types = {name: np.dtype(_typed(a["type"])) for name, a in facts["arrays"].items()}
            self._shapes = {
                name: tuple(map(_count, array["shape"])) for name, array in facts["arrays"].items()
            }
            self._pieces = self._found()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{folder} has a manifest that does not say where its arrays are "
                f"({type(error).__name__}: {error}): take another checkpoint"
            ) from None

    def _found(self) -> dict[str, list[_Piece]]:
        """The parts of each array, in order, which are all of it."""
        pieces: dict[str, list[_Piece]] = {name: [] for name in self._shapes}
        for file, about in self._files.items():
            if not _FILE.fullmatch(file):
                raise ValueError(f"{file!r} is no file of arrays")
            for name, start, count, at in about["parts"]:
                piece = _Piece(_count(start), _count(count), file, _count(at))
                if at + count * self._types[name].itemsize > _count(about["bytes"]):
                    raise ValueError(f"{name} goes on behind the end of {file}")
                pieces[name].append(piece)
        for name, found in pieces.items():
            found.sort()
            end = 0
            for piece in found:
                if piece.start != end:
                    raise ValueError(f"{name} lacks elements from {end} on")
                end += piece.length
            if end != prod(self._shapes[name]):
                raise ValueError(f"{name} has {end} of {prod(self._shapes[name])} elements")
        return pieces

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    @property
    def forms(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of each array."""
        return {name: (self._types[name], shape) for name, shape in self._shapes.items()}

    def verify(self, share: Callable[[list[str]], list[str]] = list) -> None:
        """Read all files, or a share of them, and compare lengths and hashes.

        Raises:
            ValueError: A file is missing or damaged.
        """
        for name in share(sorted(self._files)):
            path, about = self.folder / name, self._files[name]
            try:
                size, digest = path.stat().st_size, ""
                if size == about["bytes"]:
                    digest = sha256(path)
            except FileNotFoundError:
                raise ValueError(
                    f"{path} is missing: take another checkpoint, or put it into a folder that "
                    "all ranks share"
                ) from None
            if digest != about["sha256"]:
                raise ValueError(
                    f"{path} is damaged: it has {size} bytes of {about['bytes']}, or others than "
                    "were written; take another checkpoint"
                )

    def read(self, name: str, start: int, target: Array) -> None:
        dtype, end = self._types[name], start + target.size
        # On its way into an array of another kind it takes memory.
        at_once = type(target) is np.ndarray and target.dtype == dtype and target.flags.c_contiguous
        found = target if at_once else np.empty(target.size, dtype)
        for piece in self._pieces[name]:
            low, high = max(start, piece.start), min(end, piece.start + piece.length)
            if low >= high:
                continue
            with open(self.folder / piece.file, "rb") as file:
                file.seek(piece.at + (low - piece.start) * dtype.itemsize)
                buffer = found[low - start : high - start].view(np.uint8)
                if file.readinto(buffer.data) != buffer.size:
                    raise ValueError(
                        f"{self.folder / piece.file} has become shorter: take another checkpoint"
                    )
        if not at_once:
            put(target, found)


def _typed(name: Any) -> str:
    if not isinstance(name, str) or not _TYPE.fullmatch(name):
        raise ValueError(f"{name!r} is no type of numbers")
    return name


def _count(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{number!r} is no whole number of at least 0")
    return number
