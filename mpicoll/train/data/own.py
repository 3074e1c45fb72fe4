"""Data of one's own: arrays by name, in memory, in an .npz file, in .npy or in idx files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mpicoll.base.arrays import Array
from mpicoll.train.data import idx_files, numpy_files, targets
from mpicoll.train.data.datasets import PARTS, Dataset
from mpicoll.train.data.rows import Inputs, Rows

#: Of so many samples (of a class), the last is for the test, where nobody has split them.
EVERY = 5


def load_file(path: Path) -> Dataset:
    """Read an .npz file or a folder of idx files, or map a folder of .npy files into memory.

    Idx files are the four of MNIST (`idx_files`), compressed or not.

    A folder of .npy files may hold an array in several files, such as `train_inputs-0.npy` and
    `train_inputs-1.npy`: their rows follow each other, in the order of these numbers, of which none
    may be missing. Inputs in such a folder, and arrays of 16 MB and more in an .npz file that is
    not compressed, stay on disk, and each rank reads the rows it needs.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, holds something else or lacks an array, or they do not fit
            together.
    """
    if path.is_dir():
        read = idx_files.read if idx_files.are_in(path) else numpy_files.read
        return from_arrays(path.name, read(path))
    return from_arrays(path.stem, numpy_files.read(path))


def from_arrays(name: str, arrays: Mapping[str, Any]) -> Dataset:
    """A data set of `train_inputs` and `train_labels` or `train_targets`, and others like them.

    Labels are numbers of classes, of any shape (samples, ...). Targets are real or whole numbers to
    approximate. `validation_inputs` and `test_inputs` go with the labels or targets of the same
    prefix; each pair may be left out. With `inputs`, and `labels` or `targets`, the last of every
    five samples (of each class, if there are classes) is for the test.

    `classes` is the number of classes; by default one more than the largest label. With
    `vocabulary`, a number, inputs are tokens: whole numbers below it. Otherwise inputs are numbers,
    and 8-bit whole numbers are scaled to 0 .. 1.

    Raises:
        ValueError: An array is missing, or they do not fit together.
    """
    starts, kind = _keys(name, arrays)
    vocabulary = _number(name, arrays, "vocabulary")
    inputs = {start: _inputs(arrays[f"{start}inputs"], vocabulary) for start in starts}
    given = {start: _as_samples(arrays[f"{start}{kind}"]) for start in starts}
    for start in starts:
        if len(given[start]) != len(inputs[start]):
            raise ValueError(
                f"{name} has {len(inputs[start])} {start}inputs and {len(given[start])} "
                f"{start}{kind}: give one for each"
            )
    where = {start: f"{name}, {start}{kind}" if start else name for start in starts}
    classes = None
    if kind == "labels":
        known = _number(name, arrays, "classes")
        classes = max(targets.check_classes(where[s], given[s], known) for s in starts)
    else:
        for start in starts:
            targets.check_numbers(where[start], given[start])
    wanted = {start: _targets(given[start], classes) for start in starts}
    if starts == [""]:
        return split(name, classes, inputs[""], wanted[""], vocabulary)
    sets: dict[str, Any] = {f"{start}inputs": rows for start, rows in inputs.items()}
    sets |= {f"{start}targets": rows for start, rows in wanted.items()}
    return Dataset(name, classes, vocabulary=vocabulary, **sets)


def split(
    name: str,
    classes: int | None,
    inputs: Inputs,
    wanted: Inputs,
    vocabulary: int | None = None,
) -> Dataset:
    """A data set of which the last of every five samples (of a class) is for the test."""
    if classes is not None and len(wanted.shape) == 1:
        train, test = stratified_split(wanted[:], EVERY)
    else:
        train, test = stratified_split(np.zeros(len(wanted), np.int8), EVERY)
    if not len(test):
        raise ValueError(
            f"{name} has {len(inputs)} samples, and of each class the last of {EVERY} is for the "
            "test: give more, or train_inputs and test_inputs"
        )

    def taken(values: Inputs, rows: Array) -> Inputs:
        return values.taken(rows) if isinstance(values, Rows) else values[rows]

    return Dataset(
        name,
        classes,
        taken(inputs, train),
        taken(wanted, train),
        taken(inputs, test),
        taken(wanted, test),
        vocabulary=vocabulary,
    )


def stratified_split(labels: ArrayLike, every: int) -> tuple[Array, Array]:
    """Split samples so that each class gives the test set the same share, without chance.

    Args:
        labels: Class of each sample.
        every: In each class, the last of every `every` samples goes to the test set.

    Returns:
        Indices of the training and of the test samples, each ascending.
    """
    labels = np.asarray(labels)
    held_out = np.zeros(labels.shape, bool)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[every - 1 :: every]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _keys(name: str, arrays: Mapping[str, Any]) -> tuple[list[str], str]:
    """How the names of the arrays of each set begin; and whether targets are `labels`."""
    starts = [""] if "inputs" in arrays else [f"{part}_" for part in PARTS]
    starts = [start for start in starts if f"{start}inputs" in arrays]
    kinds = [k for k in ("labels", "targets") if any(f"{start}{k}" in arrays for start in starts)]
    kind = kinds[0] if kinds else "labels"
    missing = [f"{start}{kind}" for start in starts if f"{start}{kind}" not in arrays]
    if starts[:1] not in ([""], ["train_"]):
        missing.insert(0, "train_inputs")
    if missing or len(kinds) > 1:
        raise ValueError(
            f"{name} has {'no ' + ', '.join(missing) if missing else 'labels and targets'}: give "
            "train_inputs and train_labels (or train_targets), perhaps those of validation and "
            "test, or inputs and labels (or targets)"
        )
    return starts, kind


def _number(name: str, arrays: Mapping[str, Any], key: str) -> int | None:
    """What `classes` or `vocabulary` says."""
    if key not in arrays:
        return None
    found = np.asarray(arrays[key])
    if found.size != 1 or found.dtype.kind not in "iu" or found.item() < 1:
        raise ValueError(f"{name}: {key} is {found.tolist()}: give a whole number of at least 1")
    return int(found.item())


def _inputs(inputs: Any, vocabulary: int | None) -> Inputs:
    """Tokens as they are, other numbers in a floating type."""
    inputs = _as_samples(inputs)
    if inputs.dtype.kind not in "fiub":
        raise ValueError(
            f"inputs are of type {inputs.dtype}: give numbers, whole or floating-point"
        )
    if vocabulary is not None:
        return inputs.limited(vocabulary) if isinstance(inputs, Rows) else inputs
    if isinstance(inputs, Rows):
        return inputs.numbers()
    return inputs if inputs.dtype.kind == "f" else Rows([inputs]).numbers()[:]


def _targets(given: Inputs, classes: int | None) -> Inputs:
    """Class numbers as they are, other numbers in a floating type."""
    if classes is None:
        return given if given.dtype.kind == "f" else given.astype(np.float64)
    return given.limited(classes) if isinstance(given, Rows) else given


def _as_samples(values: Any) -> Inputs:
    """Rows of files, or an array."""
    if isinstance(values, Rows):
        return values
    found = np.asarray(values)
    if not found.shape:
        raise ValueError(f"an array is {found.tolist()!r} alone: give one of shape (samples, ...)")
    return found
