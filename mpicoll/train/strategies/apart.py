"""Ranks that train apart for a while: periodic averaging, and gossip with neighbours.

Each rank updates its own parameters by its own gradients. With gradients of the size of the whole
batch's, the mean over the ranks of what they become in one step is what all-reduce would make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpicoll.train.config import Config
from mpicoll.train.ranks.workers import Workers

Array = NDArray[Any]


class Mixing(Protocol):
    """What happens to the parameters after each update; collective."""

    def mix(self, step: int, weights: Array, state: Sequence[Array]) -> None:
        """After a step, counted from 1: change parameters and the optimizer's arrays in place."""


class PeriodicAverage:
    """All parameters are averaged after every so many steps (local SGD; Stich 2019).

    The optimizer's arrays are averaged too.

    Args:
        workers: The ranks.
        every: Steps from one average to the next.
    """

    def __init__(self, workers: Workers, every: int) -> None:
        self._workers, self._every = workers, every

    def mix(self, step: int, weights: Array, state: Sequence[Array]) -> None:
        """See `Mixing.mix`."""
        if step % self._every == 0:
            average(self._workers, [weights, *state])


class Gossip:
    """Parameters are mixed with those of one or two neighbours after every step.

    The weights of the mixture are doubly stochastic, so that the mean over all ranks stays as it
    is: thirds with both neighbours on a ring, or halves with the rank 1, 2, 4, ... places before,
    another in each step (Assran et al. 2019). On 2^k ranks k such steps give every rank the mean.

    Args:
        workers: The ranks.
        graph: `ring` or `exponential`.
    """

    def __init__(self, workers: Workers, graph: str) -> None:
        self._workers, self._graph = workers, graph

    def mix(self, step: int, weights: Array, state: Sequence[Array]) -> None:
        """See `Mixing.mix`; the optimizer's arrays stay each rank's own."""
        distances = self._distances(step)
        received = np.empty_like(weights)
        own = weights.copy()
        for distance in distances:
            self._workers.shift(own, received, distance)
            weights += received
        weights /= 1 + len(distances)

    def _distances(self, step: int) -> tuple[int, ...]:
        size = self._workers.size
        if size == 1:
            return ()
        if self._graph == "ring":
            return (1,) if size == 2 else (1, size - 1)
        return (1 << (step - 1) % (size - 1).bit_length(),)


def average(workers: Workers, arrays: Sequence[Array]) -> None:
    """Replace arrays by their means over the ranks."""
    for array in arrays:
        workers.sum(array)
        array /= workers.size


def make(config: Config, workers: Workers) -> Mixing | None:
    """What the strategy of a run does to parameters, None if they are the same on all ranks."""
    if config.strategy == "local_sgd":
        return PeriodicAverage(workers, config.average_every)
    if config.strategy == "gossip":
        return Gossip(workers, config.graph)
    return None
