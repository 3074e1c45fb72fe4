"""Where a model is cut into the chunks of a pipeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.wording import plural
from mpicoll.schedule.layout import even
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.layers import random_states, set_random_states
from mpicoll.train.models.networks import Sequential
from mpicoll.train.models.precision import computing

if TYPE_CHECKING:
    from mpi4py import MPI

#: What `cut` may be: the numbers of the first layers of all chunks, or "0,3,7", or "even".
Cut = str | Sequence[int]


def starts(layers: int, stages: int, chunks: int, cut: Cut = "even") -> tuple[int, ...]:
    """Number of the first layer of each chunk.

    Args:
        layers: How many layers the model has.
        stages: Number of ranks that share them.
        chunks: Chunks of each rank.
        cut: The numbers themselves, or "even" for as many layers in each chunk, but for one.

    Raises:
        ValueError: There are fewer layers than chunks, or the cut is none.
    """
    count = stages * chunks
    if count > layers:
        remedy = f"give pipe of at most {layers}"
        if chunks > 1:
            remedy = (
                f"give chunks={max(layers // stages, 1)}, or pipe of at most {layers // chunks}"
            )
        several = f" with chunks={chunks}" if chunks > 1 else ""
        raise ValueError(
            f"pipe={stages}{several} needs {plural(count, 'layer')}, the model has {layers}: "
            f"{remedy}"
        )
    if cut == "even":
        return even(layers, count).offsets
    try:
        found = tuple(int(n) for n in (cut.split(",") if isinstance(cut, str) else cut))
    except ValueError:
        raise ValueError(
            f'cut is {cut!r}: give "even", or the first layer of each chunk, as 0,3,7'
        ) from None
    words = ",".join(map(str, found))
    if len(found) != count:
        raise ValueError(
            f"cut {words} is of {plural(len(found), 'chunk')}, and there are {count}: give the "
            "first layer of each"
        )
    if found[0] != 0 or found[-1] >= layers or any(a >= b for a, b in pairwise(found)):
        example = ",".join(map(str, even(layers, count).offsets))
        raise ValueError(
            f"cut {words} is no ascending list of layers that begins with 0 and ends below "
            f"{layers}: give the first layer of each chunk, as {example}"
        )
    return found


def balanced(times: Sequence[float], chunks: int) -> tuple[int, ...]:
    """The cut whose slowest chunk is fastest; among equal ones, that with longer chunks first.

    Args:
        times: Of each layer.
        chunks: How many.

    Raises:
        ValueError: There are fewer layers than chunks.
    """
    count = len(times)
    starts(count, chunks, 1)
    sums = [0.0, *accumulate(times)]
    # Of the first layers, into so many chunks: the slowest one's time, and where the last begins.
    best = [[(total, 0) for total in sums]]
    for made in range(1, chunks):
        best.append(
            [
                min(
                    (max(best[-1][start][0], sums[end] - sums[start]), -start)
                    for start in range(made, end)
                )
                if end > made
                else (0.0, 0)
                for end in range(count + 1)
            ]
        )
    cut, end = [], count
    for row in reversed(best[1:]):
        end = -row[end][1]
        cut.append(end)
    return (0, *reversed(cut))


def measured(
    model: Sequential,
    inputs: Array,
    comm: MPI.Intracomm | None = None,
    repeats: int = 5,
) -> list[float]:
    """Measure forward and backward pass of each layer, in seconds, for `balanced`.  Collective.

    All ranks measure at the same time, as they will compute at the same time.

    Args:
        model: The model, whole.
        inputs: A microbatch, shape (samples, ...).
        comm: The ranks; None for this process alone.
        repeats: Repetitions, of which the median counts.

    Returns:
        The mean over the ranks, the same on all.
    """
    batch = Batch(inputs, inputs[:0], len(inputs), np.arange(len(inputs)))
    chunks = [model.chunk(index, index + 1) for index in range(len(model.layers))]
    own = [
        computing(
            {**model.initial_parameters(0, [index]), **model.initial_buffers([index])}, model.dtype
        )
        for index in range(len(chunks))
    ]
    seconds: list[list[float]] = [[] for _ in chunks]
    for _ in range(repeats):
        values, memories = inputs, []
        for chunk, (parameters, rounded), spent in zip(chunks, own, seconds, strict=True):
            states = random_states(chunk.layers)
            begun = time.perf_counter()
            values, memory = chunk.forward(parameters, values, batch, rounded)
            spent.append(time.perf_counter() - begun)
            memories.append(memory)
            if states is not None:
                set_random_states(chunk.layers, states)
        error: Array | None = np.zeros_like(values)
        for chunk, (parameters, rounded), spent in zip(
            reversed(chunks), reversed(own), reversed(seconds), strict=True
        ):
            begun = time.perf_counter()
            [slopes] = chunk.backward(parameters, memories.pop(), error, rounded)
            spent[-1] += time.perf_counter() - begun
            error = slopes.error
    means = np.array([median(spent) for spent in seconds])
    if comm is not None:
        total = np.empty_like(means)
        comm.Allreduce(means, total)
        means = total / comm.Get_size()
    return [float(mean) for mean in means]
