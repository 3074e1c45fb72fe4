"""Checkpoints of format 1: all arrays in one .npz file, the optimizer's as whole vectors.

`state/SLOT` and `residual` are laid out as the parameters are in the file, one after the other.
This mpicoll reads them, and writes format 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from mpicoll.base.arrays import Array, put
from mpicoll.base.files import sha256
from mpicoll.train.strategies.kept import Saved

FILE = "arrays.npz"
_PARAMETER = "parameter/"

Form = tuple["np.dtype[Any]", tuple[int, ...]]


class FirstFormat(Saved):
    """The arrays of a folder, by the names of format 2.

    Args:
        folder: Where the file is.
        facts: What the manifest says.

    Raises:
        ValueError: The file is missing or damaged.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder, self._path = folder, folder / FILE
        self._bytes, self._sha256 = facts.get("bytes"), facts.get("sha256")
        self._last: tuple[str, Array] = ("", np.empty(0))
        try:
            own = _heads(self._path)
        except (OSError, ValueError, BadZipFile) as error:
            raise ValueError(
                f"{self._path} is missing or damaged ({error}): take another checkpoint"
            ) from None
        self.forms: dict[str, Form] = {}
        #: Member of the file that has an array, and its first element there.
        self._places: dict[str, tuple[str, int]] = {}
        models = {name: form for name, form in own.items() if name.startswith(_PARAMETER)}
        total = sum(prod(shape) for _, shape in models.values())
        for member, (dtype, shape) in own.items():
            if member in models or shape != (total,):
                self.forms[member], self._places[member] = (dtype, shape), (member, 0)
                continue
            start = 0
            for parameter, (_, piece) in models.items():
                name = f"{member}/{parameter.removeprefix(_PARAMETER)}"
                self.forms[name], self._places[name] = (dtype, piece), (member, start)
                start += prod(piece)

    def __contains__(self, name: object) -> bool:
        return name in self.forms

    def verify(self, share: Callable[[list[str]], list[str]] = list) -> None:
        """Compare length and hash of the file, unless it is in nobody's share.

        Raises:
            ValueError: It is damaged.
        """
        for name in share([FILE]):
            size = self._path.stat().st_size
            if size != self._bytes or sha256(self.folder / name) != self._sha256:
                raise ValueError(
                    f"{self._path} is damaged: it has {size} bytes of {self._bytes}, or others "
                    "than were written; take another checkpoint"
                )

    def read(self, name: str, start: int, target: Array) -> None:
        member, first = self._places[name]
        if self._last[0] != member:
            self._last = "", np.empty(0)  # one at a time
            with np.load(self._path, allow_pickle=False) as file:
                self._last = member, file[member].reshape(-1)
        put(target, self._last[1][first + start : first + start + target.size])


def _heads(path: Path) -> dict[str, Form]:
    """Type and shape of each array of an .npz file, in the order in which they were written."""
    found: dict[str, Form] = {}
    with ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                np.lib.format.read_magic(file)  # of version 1.0, as arrays of numbers are
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            found[member.removesuffix(".npy")] = dtype, shape
    return found
