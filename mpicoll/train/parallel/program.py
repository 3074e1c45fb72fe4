"""What a run of a program is given, keeps of each microbatch, and tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.chunks import Chunk
from mpicoll.train.models.losses import Loss
from mpicoll.train.step.tasks import Task


class Span(NamedTuple):
    """When a task was done, by this rank's clock."""

    task: Task
    start: float
    end: float


class Failure(NamedTuple):
    """What has gone wrong on this rank.

    Attributes:
        text: In words.
        error: The exception; None where a loss or a gradient is not finite.
    """

    text: str
    error: Exception | None = None

    @classmethod
    def of(cls, place: object, error: Exception) -> Failure:
        """An exception, and where it was raised."""
        return cls(f"{place}: {type(error).__name__}: {error}", error)


class Plan(NamedTuple):
    """What stays the same in every step.

    Attributes:
        program: Tasks of this rank, messages included.
        chunks: Of this rank, by number.
        last: Number of the model's last chunk.
        loss: Of its outputs.
        place: Which rank has a chunk.
        shapes: Of a sample on each edge between two chunks, by its number.
        dtype: Of what edges carry.
        recomputes: Whether the program runs forward passes again.
    """

    program: Sequence[Task]
    chunks: Mapping[int, Chunk]
    last: int
    loss: Loss
    place: Callable[[int], int]
    shapes: Mapping[int, tuple[int, ...]]
    dtype: np.dtype[Any]
    recomputes: bool


class Held(NamedTuple):
    """What is kept of a microbatch between its passes over a chunk.

    Attributes:
        inputs: To run the forward pass again with; None where memories are kept.
        buffers, states: As they were before the forward pass, for the same.
        memories: Of the layers.
        slopes: Of the loss, by the outputs of the last chunk.
        kept: Of the first part of the backward pass, for the second.
    """

    inputs: Array | None = None
    buffers: dict[str, Array] | None = None
    states: list[Any] | None = None
    memories: list[Any] | None = None
    slopes: Array | None = None
    kept: list[Any] | None = None
