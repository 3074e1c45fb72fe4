"""How long each layer of a model takes: on all ranks at once, as they will compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.layers import random_states, set_random_states
from mpicoll.train.models.networks import Sequential
from mpicoll.train.models.precision import computing

if TYPE_CHECKING:
    from mpi4py import MPI


def layer_seconds(
    model: Sequential,
    inputs: Array,
    comm: MPI.Intracomm | None = None,
    repeats: int = 7,
    slopes: Callable[[Array], Array] = np.zeros_like,
) -> Array:
    """Seconds of the forward pass and of both parts of the backward pass.  Collective.

    Args:
        model: The model, whole.
        inputs: A microbatch, shape (samples, ...).
        comm: The ranks; None for this process alone.
        repeats: How often; the median counts.
        slopes: Makes slopes of the loss of the model's outputs; it counts to the last layer.

    Returns:
        The mean over the ranks, shape (3, layers), the same on all.
    """
    batch = Batch(inputs, inputs[:0], len(inputs), np.arange(len(inputs)))
    found, values = np.zeros((3, len(model.layers))), inputs
    for index in range(len(model.layers)):  # one at a time is in memory
        last = index == len(model.layers) - 1
        found[:, index], values = _seconds_of(
            model, index, values, batch, comm, repeats, slopes if last else None
        )
    if comm is not None:
        total = np.empty_like(found)
        comm.Allreduce(found, total)
        found = total / comm.Get_size()
    return found


def _seconds_of(
    model: Sequential,
    index: int,
    inputs: Array,
    batch: Batch,
    comm: MPI.Intracomm | None,
    repeats: int,
    slopes: Callable[[Array], Array] | None,
) -> tuple[Array, Array]:
    """Medians of the three times of one layer on this rank, and its outputs."""
    chunk = model.chunk(index, index + 1)
    arrays = {**model.initial_parameters(0, [index]), **model.initial_buffers([index])}
    parameters, rounded = computing(arrays, model.dtype)
    spent, outputs = np.zeros((repeats, 3)), inputs
    for own in spent:
        if comm is not None:
            comm.Barrier()
        states = random_states(chunk.layers)
        begin = time.perf_counter()
        outputs, memory = chunk.forward(parameters, inputs, batch, rounded)
        error = slopes(outputs) if slopes is not None else None
        own[0] = time.perf_counter() - begin
        if states is not None:
            set_random_states(chunk.layers, states)
        if error is None:
            error = np.zeros_like(outputs)
        begin = time.perf_counter()
        _, kept = chunk.backward_input(parameters, memory, error, rounded)
        middle = time.perf_counter()
        for _ in chunk.backward_weight(parameters, memory, kept):
            pass
        own[1:] = middle - begin, time.perf_counter() - middle
    return np.median(spent, axis=0), outputs


def measured(
    model: Sequential, inputs: Array, comm: MPI.Intracomm | None = None, repeats: int = 5
) -> list[float]:
    """Seconds that forward and backward pass of each layer take: for `balanced`.  Collective.

    Args:
        model, inputs, comm, repeats: As of `layer_seconds`.

    Returns:
        The mean over the ranks, the same on all.
    """
    return [*map(float, layer_seconds(model, inputs, comm, repeats).sum(axis=0))]
