"""Random numbers that belong to a sample, whichever rank computes it and in whatever batch.

Augmentation and dropout draw from (seed, epoch, sample), never from a generator of the rank: the
numbers are a hash of what they are for, so that P ranks draw what one process would.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15


def uniform(
    seed: int,
    epoch: int,
    samples: NDArray[np.integer[Any]],
    stream: int,
    places: int | NDArray[np.integer[Any]],
) -> NDArray[np.float64]:
    """Numbers in [0, 1), shape (samples, places), each a function of its five coordinates alone.

    Args:
        seed: Of the run.
        epoch: Number of the epoch.
        samples: Index of each sample in the whole training set.
        stream: Tells uses apart that draw for the same sample, such as layers.
        places: Which numbers of each sample; of an integer, the first so many.
    """
    key = np.zeros(1, np.uint64)
    for coordinate in (seed, epoch, stream):
        key = _mix(key + np.array(coordinate, np.uint64))
    rows = _mix(key + samples.astype(np.uint64))
    columns = np.arange(places) if isinstance(places, int) else places
    bits = _mix(rows[:, None] + columns.astype(np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014), which is a bijection."""
    with np.errstate(over="ignore"):
        values = (values + np.uint64(1)) * np.uint64(_GOLDEN)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
