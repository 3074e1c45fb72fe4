"""What a pipeline refuses, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from mpicoll.base.wording import plural
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel.program import Plan
from mpicoll.train.parallel.wires import MOST
from mpicoll.train.step import core
from mpicoll.train.step.catalogue import Schedule


def require(
    model: Sequential,
    schedule: Schedule,
    ties: Collection[str],
    replicas: int,
    invariant: int | None,
) -> None:
    """Check that a schedule can train a model.

    Args:
        model: The model.
        schedule: Of one replica.
        ties: Names of parameters that layers of several ranks share.
        replicas: How many there are.
        invariant: Number of parts of the whole batch, if it is given.

    Raises:
        ValueError: It cannot.
    """
    order = schedule.order
    if not order.trains:
        raise ValueError(f"{order.name} has forward passes alone: give a schedule that trains")
    require_progress(schedule)
    if any(task.kind == "I" for task in schedule.programs[0]):
        _require_halves(model, order.name)
    parts = replicas * schedule.microbatches
    if order.updates:
        if replicas > 1:
            raise ValueError(
                f"{order.name} updates each stage by itself, and there are data={replicas} "
                "replicas: give data=1, or schedule 1f1b"
            )
        if ties:
            raise ValueError(
                f"{order.name} updates each stage by itself, and several share {', '.join(ties)}: "
                "cut the model so that one stage has it, or give schedule 1f1b"
            )
        if invariant is not None:
            raise ValueError(
                f"{order.name} adds no microbatches up, and invariant is {invariant}: leave it out"
            )
    if invariant is not None and invariant != parts:
        remedy = f"give invariant={parts}"
        if invariant % replicas == 0 and invariant > 0:
            remedy += f", or microbatches={invariant // replicas}"
        raise ValueError(
            f"invariant is {invariant}, and data={replicas} with "
            f"microbatches={schedule.microbatches} makes {plural(parts, 'part')}: {remedy}"
        )


def require_short(plan: Plan, batches: Sequence[Batch]) -> None:
    """Check that no message of a step is longer than MPI can count.

    Raises:
        ValueError: One is; on all ranks.
    """
    most = max((math.prod(shape) for shape in plan.shapes.values()), default=0)
    length = max(len(batch.samples) for batch in batches) * most * plan.dtype.itemsize
    if length > MOST:
        raise ValueError(
            f"a message of {length} bytes between two stages is longer than {MOST}: give "
            f"microbatches={len(batches) * -(-length // MOST)}"
        )


def require_progress(schedule: Schedule) -> None:
    """Check that no rank waits for ever. Senders go on: messages need no room at their receivers.

    Raises:
        ValueError: Ranks do.
    """
    try:
        for _ in core.run(schedule.programs):
            pass
    except core.DeadlockError as error:
        stages = schedule.stages
        below = schedule.microbatches // stages * stages
        whole = " or ".join(str(n) for n in (below, below + stages) if n)
        raise ValueError(
            f"{schedule.words} comes to a {error}: give microbatches={whole}, or schedule 1f1b"
        ) from None


def _require_halves(model: Sequential, name: str) -> None:
    """Layers with parameters have a backward pass in two parts."""
    for index in sorted({layer for layers in model.holders.values() for layer in layers}):
        kind = type(model.layers[index])
        if kind.backward_input is Layer.backward_input:
            raise ValueError(
                f"{name} needs backward passes in two parts, and layer {index}, {kind.__name__}, "
                "has one: define backward_input and backward_weight, or give schedule 1f1b"
            )
