"""Checkpoints: folders that are there as a whole or not at all.

    runs/
        step-00000400/
            arrays.npz       parameters, the optimizer's arrays, what narrow gradients have lost
            manifest.json    where the run was; length and SHA-256 of arrays.npz
        step-00000500/
        best                 name of the folder with the lowest loss, of validation or test

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
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.files import synchronise, write_atomically
from mpicoll.train.records import Epoch, upgraded

_VERSION = 1
_NAME = re.compile(r"(?:\.old-)?step-(\d{8,})")
#: Facts that say where a run was.
_COUNTS = ("epoch", "position", "number", "updates", "skipped", "skipped_in_a_row", "good")
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
        synchronise(draft / _ARRAYS)
        manifest = {
            "version": _VERSION,
            "bytes": (draft / _ARRAYS).stat().st_size,
            "sha256": _digest(draft / _ARRAYS),
            **facts,
        }
        (draft / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        synchronise(draft / _MANIFEST)
        synchronise(draft)
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
        write_atomically(folder / _BEST, final.name + "\n")
    synchronise(folder)
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
        best = (folder / _BEST).read_text(encoding="utf-8").strip()
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
        facts: dict[str, Any] = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("no JSON object")
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
    if size != facts.get("bytes") or _digest(path / _ARRAYS) != facts.get("sha256"):
        raise ValueError(
            f"{path / _ARRAYS} is damaged: it has {size} bytes of {facts.get('bytes')}, or others "
            "than were written; take another checkpoint"
        )
    with np.load(path / _ARRAYS, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}, facts


def require(
    path: Path,
    arrays: Mapping[str, Array],
    facts: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Refuse a checkpoint that lacks something, before any of it is used.

    Args:
        path: Its folder.
        arrays, facts: What `load` has given.
        shapes: Name and shape of the arrays that a run needs.

    Raises:
        ValueError: An array or a fact is missing or of another form.
    """
    for name, shape in shapes.items():
        if name not in arrays:
            raise ValueError(
                f"{path / _ARRAYS} has no array {name}, and the run needs it: take another "
                "checkpoint"
            )
        if arrays[name].shape != shape or arrays[name].dtype.kind != "f":
            raise ValueError(
                f"{path / _ARRAYS}: array {name} is {arrays[name].dtype} of shape "
                f"{arrays[name].shape}, and the run needs floating-point numbers of shape {shape}: "
                "take another checkpoint"
            )
    for name in _COUNTS:
        if not isinstance(facts.get(name), int) or facts[name] < 0:
            raise ValueError(
                f"{path / _MANIFEST}: {name} is {facts.get(name, 'missing')!r}, and the run needs "
                "a whole number of at least 0: take another checkpoint"
            )
    if not isinstance(facts.get("scale"), float):
        raise ValueError(
            f"{path / _MANIFEST}: scale is {facts.get('scale', 'missing')!r}, and the run needs a "
            "number: take another checkpoint"
        )
    known = [field.name for field in fields(Epoch)]
    history = facts.get("history")
    if not isinstance(history, list) or any(
        not isinstance(epoch, dict) or sorted(upgraded(epoch)) != sorted(known) for epoch in history
    ):
        raise ValueError(
            f"{path / _MANIFEST}: history is no list of epochs with {', '.join(known)}: take "
            "another checkpoint"
        )


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
