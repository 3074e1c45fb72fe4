"""How much memory the stages of a pipeline will take, before they take it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np

from mpicoll.base.memory import available, require
from mpicoll.train.models.layers import held
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel.agreement import Group
from mpicoll.train.parallel.stage import Stage
from mpicoll.train.step.catalogue import Schedule

_REMEDY = "recompute, give more microbatches or more pipe, or a smaller batch"


class Chunks(NamedTuple):
    """Bytes that the chunks of a rank take for a microbatch.

    Attributes:
        kept: For the backward pass, the most of any.
        inputs: What it begins with, the most of any.
        working: What passes work in beside, the most of any.
        waiting: Between both parts of the backward pass, the most of any.
    """

    kept: int
    inputs: int
    working: int
    waiting: int


def needed(model: Sequential, stage: Stage, schedule: Schedule, samples: int) -> dict[str, int]:
    """Bytes that a stage takes beside its parameters and their gradients, by what for: an estimate.

    Args:
        model: The model, whole.
        stage: Of one rank.
        schedule: The schedule.
        samples: Of a microbatch, the most.
    """
    item = np.promote_types(model.dtype, np.float32).itemsize
    kept, inputs, working, waiting = 0, 0, 0, 0
    for chunk in stage.chunks.values():
        shapes = model.shapes[chunk.numbers.start : chunk.numbers.stop + 1]
        own = sum(held(chunk.layers, shapes))
        if chunk.numbers.stop == len(model.layers):
            own += prod(shapes[-1])  # slopes of the loss
        kept, inputs = max(kept, own), max(inputs, prod(shapes[0]))
        every = list(zip(chunk.layers, shapes[:-1], strict=True))
        working = max(working, *(layer.working(shape) for layer, shape in every))
        waiting = max(waiting, sum(layer.waiting(shape) for layer, shape in every))
    parameters = sum(array.nbytes for array in stage.parameters.values())
    every_values = kept, inputs, working, waiting
    chunks = Chunks(*(samples * item * values for values in every_values))
    return passes(schedule, stage.rank, chunks, parameters)


def passes(schedule: Schedule, rank: int, chunks: Chunks, parameters: int) -> dict[str, int]:
    """Bytes of what a rank of a pipeline holds of its microbatches, by what for.

    Args:
        schedule: The schedule.
        rank: Of the pipeline.
        chunks: What they take.
        parameters: Bytes of the rank's.
    """
    count, again = schedule.held(rank)
    values = count * chunks.kept
    if schedule.recompute:
        values = count * chunks.inputs + again * chunks.kept
    named = (rank, schedule.stages, schedule.microbatches)
    versions = schedule.order.versions(*named, **schedule.parameters)
    return {
        "held microbatches": values,
        "slopes": schedule.waiting(rank) * chunks.waiting,
        "passes": chunks.working,
        "older versions": (versions - 1) * parameters,
    }


def replica(
    parameters: int, slots: int, ranks: int, shared: bool, gradients: int | None = None
) -> dict[str, int]:
    """Bytes that a rank takes beside parameters, by what for.

    Args:
        parameters: Bytes of all of these, though the rank may have a part.
        slots: Arrays of the optimizer for each.
        ranks: How many have the same parameters.
        shared: Whether each updates a part of them (zero1, fsdp).
        gradients: Bytes of the gradients; None: as of the parameters.
    """
    gradients = parameters if gradients is None else gradients
    own = -(-parameters // ranks) if shared else parameters
    found = {"gradients": gradients, "optimizer": slots * own}
    return {**found, "sums": -(-gradients // ranks)} if shared else found


def make_room(group: Group, needs: Mapping[str, int], has: Mapping[str, int]) -> None:
    """Refuse what cannot fit on a node; collective.

    Args:
        group: The ranks.
        needs: Bytes that this rank will need more, by what for.
        has: Those that it has taken, for the message.

    Raises:
        TrainingError: With the numbers; on all ranks.
    """
    node = platform.node()
    every = group.world.gather((node, dict(needs), dict(has)))
    with group.together("making room"):
        here = [(more, taken) for other, more, taken in every if other == node]
        more, taken = zip(*here, strict=True)
        require(more, available(), taken, where="this node", remedy=_REMEDY)
