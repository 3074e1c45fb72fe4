"""The data of a search: trials are judged on a validation set, and see no test set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data import Dataset, Inputs
from mpicoll.train.data.own import stratified_split
from mpicoll.train.data.rows import Rows


def without_test(dataset: Dataset, hold_out: int) -> Dataset:
    """The same data without the test set; where there is no validation set, with one.

    Args:
        dataset: The data.
        hold_out: One of so many training samples, of each class, is to judge by.

    Raises:
        ValueError: There are too few for that.
    """
    changes: dict[str, Any] = {"test_inputs": None, "test_targets": None}
    if "validation" not in dataset.parts:
        targets = dataset.train_targets
        by_class = dataset.classes is not None and len(targets.shape) == 1
        labels = targets[:] if by_class else np.zeros(len(targets), np.int8)
        train, held_out = stratified_split(labels, hold_out)
        if not len(held_out):
            raise ValueError(
                f"{dataset.name} has no validation set and {len(targets)} training samples, and "
                f"hold_out is {hold_out}: give a smaller one"
            )
        for name, rows in (("train", train), ("validation", held_out)):
            changes[f"{name}_inputs"] = _taken(dataset.train_inputs, rows)
            changes[f"{name}_targets"] = _taken(targets, rows)
    return replace(dataset, **changes)


def _taken(values: Inputs, rows: Array) -> Inputs:
    return values.taken(rows) if isinstance(values, Rows) else values[rows]
