"""Checkpoints: folders that are there as a whole or not at all.

    runs/
        step-00000400/
            rank-0.arrays    what rank 0 keeps of parameters, the optimizer's arrays, buffers, and
            rank-1.arrays    what narrow gradients have lost; another rank's part, if it keeps one
            manifest.json    where the run was; what its model is; where each array is; length and
                             SHA-256 of each file
        step-00000500/
        best                 name of the folder with the lowest loss, of validation or test

A checkpoint is written into a folder with another name, the manifest last, every file is synced,
and the folder is renamed: what is killed meanwhile leaves the checkpoints before it as they were.
Files are read without pickle. Arrays are named `parameter/NAME`, `state/SLOT/NAME`, `buffer/NAME`
and `residual/NAME`, by the names of parameters: any number of ranks reads them.
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
from mpicoll.train.driver.array_files import ArrayFiles
from mpicoll.train.driver.first_format import FirstFormat
from mpicoll.train.records import Epoch, upgraded

_VERSION = 2
_NAME = re.compile(r"(?:\.old-)?step-(\d{8,})")
_DRAFT = re.compile(r"\.(step-\d{8,})\.\d+")
#: Facts that say where a run was.
_COUNTS = ("epoch", "position", "number", "updates", "skipped", "skipped_in_a_row", "good")
_MANIFEST, _BEST, _SEAL = "manifest.json", "best", "manifest_sha256"

Facts = dict[str, Any]
Arrays = ArrayFiles | FirstFormat


def begin(folder: Path, step: int) -> Path:
    """Make the folder in which a checkpoint is written, before it is there.

    Args:
        folder: Where all of the run are; made if need be.
        step: Steps made.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".step-{step:08}.{os.getpid()}"
    discard(draft)
    draft.mkdir()
    return draft


def discard(draft: Path) -> None:
    """Remove what `begin` has made, with all that is in it."""
    shutil.rmtree(draft, ignore_errors=True)


def discard_all(folder: Path) -> None:
    """Remove all that is being written, by whomever."""
    for draft in folder.glob(".step-*"):
        discard(draft)


def complete(draft: Path, facts: Mapping[str, Any], best: bool) -> Path:
    """All files are written: let the checkpoint be there, in place of one of the same step.

    Args:
        draft: What `begin` has made; with the files that the facts name.
        facts: What `array_files.write` says of them, and what else there is to know.
        best: Whether it is the best so far.

    Returns:
        Its folder.

    Raises:
        OSError: It cannot be written; those before it are as they were.
        ValueError: A file is not there, or parts of arrays are missing; likewise.
    """
    match = _DRAFT.fullmatch(draft.name)
    assert match is not None
    folder = draft.parent
    final, old = folder / match[1], folder / f".old-{match[1]}"
    try:
        ArrayFiles(draft, facts)  # that all parts are there
        for name, about in facts["files"].items():
            file = draft / name
            if not file.is_file() or file.stat().st_size != about["bytes"]:
                raise ValueError(
                    f"{file} is not as another rank has written it: keep checkpoints in a folder "
                    "that all ranks share"
                )
        (draft / _MANIFEST).write_text(sealed(facts), encoding="utf-8")
        synchronise(draft / _MANIFEST)
        synchronise(draft)
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        draft.rename(final)
    except BaseException:
        if old.exists() and not final.exists():
            old.rename(final)
        discard(draft)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if best:
        write_atomically(folder / _BEST, final.name + "\n")
    synchronise(folder)
    return final


def sealed(facts: Mapping[str, Any]) -> str:
    """The text of a manifest of these facts, with a hash of them."""
    found = json.loads(json.dumps({"version": _VERSION, **facts}))
    return json.dumps({**found, _SEAL: _hash_of(found)}, indent=1)


def _hash_of(facts: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in facts.items() if k != _SEAL}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def prune(folder: Path, keep: int, step: int) -> None:
    """Delete old checkpoints, and what killed runs left behind.

    Args:
        folder: Where they are.
        keep: So many stay of those up to `step`, and the best.
        step: Steps made. Those of later steps are of another run, and stay.
    """
    best = _best(folder)
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


def find(path: Path, best: bool = False) -> Path:
    """The checkpoint meant by a path: itself, or in a folder of them the last, or the best.

    The file `best` of such a folder stands for the best one, too.

    Raises:
        FileNotFoundError: There is none.
    """
    if (path / _MANIFEST).is_file():
        return path
    if path.name == _BEST and path.is_file():
        return find(path.parent, best=True)
    known = _all(path)
    if best and known:
        name = _best(path)
        for _, found in known:
            if found.name.removeprefix(".old-") == name:
                return found
        raise FileNotFoundError(
            f"{path} names no best checkpoint, because no epoch has ended: take the last checkpoint"
        )
    if not known:
        raise FileNotFoundError(
            f"{path} holds no checkpoint: give a folder in which a run has kept them, or one of "
            f"its folders step-..."
        )
    return known[-1][1]


def resumed(resume: str | None, folder: str | None) -> Path | None:
    """The checkpoint that a run goes on from; None for none.

    Args:
        resume, folder: Fields `resume` and `checkpoint` of the configuration.

    Raises:
        FileNotFoundError: There is none, and the run asks for one.
    """
    path = folder if resume == "auto" else resume
    if path is None:
        return None
    try:
        return find(Path(path))
    except FileNotFoundError:
        if resume != "auto":
            raise
        return None


def read(path: Path) -> tuple[Arrays, Facts]:
    """Arrays, none of which is read or verified yet, and facts of a checkpoint.

    Raises:
        FileNotFoundError: There is none.
        ValueError: Its manifest is damaged or of another version.
    """
    try:
        facts = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("no JSON object")
        if facts.get("version") == _VERSION and facts.get(_SEAL) != _hash_of(facts):
            raise ValueError("it says other things than were written")
    except ValueError as error:
        raise ValueError(
            f"{path / _MANIFEST} is damaged ({error}): take another checkpoint"
        ) from None
    if facts.get("version") not in (1, _VERSION):
        raise ValueError(
            f"{path} is a checkpoint of version {facts.get('version')}, this mpicoll reads version "
            f"{_VERSION} and 1: take another checkpoint, or the mpicoll that wrote it"
        )
    return FirstFormat(path, facts) if facts["version"] == 1 else ArrayFiles(path, facts), facts


def load(path: Path, kinds: tuple[str, ...] = ()) -> tuple[dict[str, Array], Facts]:
    """Arrays and facts of a checkpoint, verified.

    Args:
        path: Its folder.
        kinds: Of the arrays, as ``("parameter", "buffer")``; all, if none are given.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged or of another version.
    """
    saved, facts = read(path)
    saved.verify()
    found = {
        name: np.empty(shape, dtype)
        for name, (dtype, shape) in saved.forms.items()
        if not kinds or name.split("/")[0] in kinds
    }
    for name, array in found.items():
        saved.read(name, 0, array.reshape(-1))
    return found, facts


def require(saved: Arrays, facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a checkpoint that lacks something, before any of it is used.

    Args:
        saved, facts: What `read` has given.
        shapes: Name and shape of the arrays that a run needs.

    Raises:
        ValueError: An array or a fact is missing or of another form.
    """
    path, forms = saved.folder, saved.forms
    for name, shape in shapes.items():
        if name not in forms:
            raise ValueError(
                f"{path} has no array {name}, and the run needs it: take another checkpoint"
            )
        dtype, found = forms[name]
        if found != shape or (dtype.kind != "f" and not name.startswith("buffer/")):
            raise ValueError(
                f"{path}: array {name} is {dtype} of shape {found}, and the run needs "
                f"floating-point numbers of shape {shape}: take another checkpoint"
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


def _best(folder: Path) -> str:
    """Name of the best checkpoint, "" where there is none."""
    with suppress(FileNotFoundError):
        return (folder / _BEST).read_text(encoding="utf-8").strip()
    return ""


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
