"""How long each layer of a model takes: on all ranks at once, as they will compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    count = len(model.layers)
    chunks = [model.chunk(index, index + 1) for index in range(count)]
    batch = Batch(inputs, inputs[:0], len(inputs), np.arange(len(inputs)))
    parameters, rounded = computing(
        {**model.initial_parameters(0), **model.initial_buffers()}, model.dtype
    )
    spent = np.zeros((repeats, 3, count))
    for own in spent:
        if comm is not None:
            comm.Barrier()
        values, memories = inputs, list[Any]()
        for index, chunk in enumerate(chunks):
            states = random_states(chunk.layers)
            begin = time.perf_counter()
            values, memory = chunk.forward(parameters, values, batch, rounded)
            error: Array | None = slopes(values) if index == count - 1 else None
            own[0, index] = time.perf_counter() - begin
            memories.append(memory)
            if states is not None:
                set_random_states(chunk.layers, states)
        for index in reversed(range(count)):
            begin = time.perf_counter()
            error, kept = chunks[index].backward_input(parameters, memories[index], error, rounded)
            middle = time.perf_counter()
            for _ in chunks[index].backward_weight(parameters, memories[index], kept):
                pass
            own[1:, index] = middle - begin, time.perf_counter() - middle
            memories[index] = []
    medians: Array = np.median(spent, axis=0)
    if comm is not None:
        total = np.empty_like(medians)
        comm.Allreduce(medians, total)
        medians = total / comm.Get_size()
    return medians


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
