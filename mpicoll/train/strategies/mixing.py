"""What happens to parameters that differ from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mpicoll.base.arrays import Array
from mpicoll.train.exchange.buckets import cut, default_bucket
from mpicoll.train.ranks.workers import Workers


class Mixing(Protocol):
    """What happens to the parameters after each update; collective."""

    def mix(self, step: int, weights: Array, state: Sequence[Array]) -> None:
        """After a step, counted from 1: change parameters and the optimizer's arrays in place."""


def average(workers: Workers, arrays: Sequence[Array]) -> None:
    """Replace arrays by their means over the ranks; all of them or, where a rank dies, none."""
    means = [array.copy() for array in arrays] if workers.may_die else arrays
    for mean in means:
        flat = mean.reshape(-1)
        # In pieces, because a collective takes memory in proportion to its vector.
        for start, end in cut(flat.size, default_bucket(mean.nbytes) // mean.itemsize):
            workers.sum(flat[start:end])
        mean /= workers.size
    if workers.may_die:
        for array, mean in zip(arrays, means, strict=True):
            array[...] = mean
