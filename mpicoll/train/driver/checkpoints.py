"""Checkpoints: folders that are there as a whole or not at all.

    runs/
        step-00000400/
            arrays.npz       parameters, the optimizer's arrays, what narrow gradients have lost
            manifest.json    where the run was; length and SHA-256 of arrays.npz
        step-00000500/
        best                 name of the folder with the best test accuracy

A checkpoint is written into a folder with another name, the manifest last, every file is synced,
and the folder is renamed: what is killed meanwhile leaves the checkpoints before it as they were.
Files are read without pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array

_VERSION = 1
_NAME = re.compile(r"(?:\.old-)?step-(\d{8,})")
_ARRAYS, _MANIFEST, _BEST = "arrays.npz", "manifest.json", "best"


def save(
    folder: Path, step: int, arrays: Mapping[str, Array], facts: Mapping[str, Any], best: bool
) -> Path:
    """Write a checkpoint.

    Args:
        folder: Where all of the run are; made if need be.
        step: Steps made.
        arrays: Arrays by name.
        facts: What else there is to know, in JSON's types.
        best: Whether it is the best so far.

    Returns:
        Its folder.

    Raises:
        OSError: It cannot be written; those before it are as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08}"
    draft, old = folder / f".{final.name}.{os.getpid()}", folder / f".old-{final.name}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        with open(draft / _ARRAYS, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            _sync(file)
        manifest = {
            "version": _VERSION,
            "bytes": (draft / _ARRAYS).stat().st_size,
            "sha256": _digest(draft / _ARRAYS),
            **facts,
        }
        with open(draft / _MANIFEST, "w") as file:
            json.dump(manifest, file, indent=1)
            _sync(file)
        _sync_folder(draft)
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        draft.rename(final)
    except BaseException:
        if old.exists() and not final.exists():
            old.rename(final)
        shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if best:
        draft_best = folder / f".{_BEST}.{os.getpid()}"
        with open(draft_best, "w") as file:
            file.write(final.name + "\n")
            _sync(file)
        draft_best.rename(folder / _BEST)
    _sync_folder(folder)
    return final


def prune(folder: Path, keep: int, step: int) -> None:
    """Delete old checkpoints, and what killed runs left behind.

    Args:
        folder: Where they are.
        keep: So many stay of those up to `step`, and the best.
        step: Steps made. Those of later steps are of another run, and stay.
    """
    best = ""
    with suppress(FileNotFoundError):
        best = (folder / _BEST).read_text().strip()
    own = [path for number, path in _all(folder) if number <= step]
    for path in own[: -keep or None]:
        if path.name.removeprefix(".old-") != best:
            shutil.rmtree(path)
    kept = [path for _, path in _all(folder)]
    for path in (*folder.glob(".step-*"), *folder.glob(".old-step-*")):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def later(folder: Path, step: int) -> list[Path]:
    """Checkpoints of more steps than so many, oldest first."""
    return [path for number, path in _all(folder) if number > step]


def find(path: Path) -> Path:
    """The checkpoint meant by a path: itself, or the last one in a folder of them.

    Raises:
        FileNotFoundError: There is none.
    """
    if (path / _MANIFEST).is_file():
        return path
    found = _all(path)
    if not found:
        raise FileNotFoundError(
            f"{path} holds no checkpoint: give a folder in which a run has kept them, or one of "
            f"its folders step-..."
        )
    return found[-1][1]


def load(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and facts of a checkpoint.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged or of another version.
    """
    try:
        facts: dict[str, Any] = json.loads((path / _MANIFEST).read_text())
    except ValueError as error:
        raise ValueError(
            f"{path / _MANIFEST} is damaged ({error}): take another checkpoint"
        ) from None
    if facts.get("version") != _VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {facts.get('version')}, this mpicoll reads version "
            f"{_VERSION}: take another checkpoint, or the mpicoll that wrote it"
        )
    size = (path / _ARRAYS).stat().st_size
    if size != facts["bytes"] or _digest(path / _ARRAYS) != facts["sha256"]:
        raise ValueError(
            f"{path / _ARRAYS} is damaged: it has {size} bytes of {facts['bytes']}, or others than "
            "were written; take another checkpoint"
        )
    with np.load(path / _ARRAYS, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}, facts


def _all(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders of complete checkpoints, oldest first.

    A run that was killed while it wrote a step again has left the one before it under another name.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):  # .old-step-... come first
        match = _NAME.fullmatch(path.name)
        if match and (path / _MANIFEST).is_file():
            found[int(match[1])] = path
    return sorted(found.items())


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
