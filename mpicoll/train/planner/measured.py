"""How long the layers of a model take: on all ranks at once, as they will compute."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from functools import partial
from math import prod
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel.layer_times import layer_seconds
from mpicoll.train.planner.flops import flops
from mpicoll.train.planner.profile import LayerProfile, Profile, Times

if TYPE_CHECKING:
    from mpi4py import MPI

_REPEATS = 7
#: Sides of the product of matrices that the rate of a process is measured by.
_SIDE = 512


def described(model: Sequential) -> list[tuple[str, tuple[int, ...], int]]:
    """Kind of each layer, shape of its inputs, and number of its parameters."""
    return [
        (
            type(layer).__name__,
            model.shapes[index],
            sum(prod(model.parameter_shapes[name]) for name in _parameters(model, index)),
        )
        for index, layer in enumerate(model.layers)
    ]


def _parameters(model: Sequential, layer: int) -> list[str]:
    return [name for name in model.names(layer).values() if name in model.parameter_shapes]


def halves(model: Sequential) -> bool:
    """Whether every layer with parameters has a backward pass in two parts."""
    return all(
        type(layer).backward_input is not Layer.backward_input
        for index, layer in enumerate(model.layers)
        if _parameters(model, index)
    )


def from_rate(model: Sequential, rate: float) -> Profile:
    """A profile by the operations of each layer.

    Args:
        model: The model.
        rate: Operations of a process in a second.
    """
    found = []
    for layer, (kind, shape, count) in zip(model.layers, described(model), strict=True):
        seconds = flops(layer, shape) / rate
        times = (Times(1, seconds, seconds, seconds if count else 0.0),)
        found.append(LayerProfile(kind, shape, count, times))
    return Profile(tuple(found), {"flop_s": rate})


def rate() -> float:
    """Operations of this process in a second: of products of matrices of float32."""
    matrix = np.ones((_SIDE, _SIDE), np.float32)
    seconds = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - begin)
    return float(2 * _SIDE**3 / median(seconds))


def measure(
    model: Sequential,
    inputs: Array,
    targets: Array,
    sizes: Sequence[int],
    comm: MPI.Intracomm | None = None,
) -> Profile:
    """Measure the layers of a model.  Collective.

    Args:
        model: The model, whole.
        inputs, targets: As many samples as the largest of `sizes`; the loss counts to the last
            layer.
        sizes: Samples of microbatches.
        comm: The ranks; None for this process alone.

    Returns:
        Medians of each rank, and of these the mean; the same on all ranks.
    """
    every = [
        layer_seconds(model, inputs[:n], comm, _REPEATS, partial(_slopes, model, targets[:n]))
        for n in sizes
    ]
    ranks = 1 if comm is None else comm.Get_size()
    layers = tuple(
        LayerProfile(
            *facts,
            tuple(Times(n, *map(float, every[row][:, index])) for row, n in enumerate(sizes)),
        )
        for index, facts in enumerate(described(model))
    )
    return Profile(layers, {"ranks": ranks, "node": platform.node(), "dtype": model.dtype.name})


def _slopes(model: Sequential, targets: Array, outputs: Array) -> Array:
    """Of the loss, by the outputs."""
    return model.loss.evaluate(outputs, targets)[1]
