"""How much memory a run will take, before it takes it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

import numpy as np

from mpicoll.base import arrays
from mpicoll.base.memory import OWN_LIMIT, available, left, listed, megabytes, require
from mpicoll.train.config import DTYPES, Config
from mpicoll.train.data import Dataset, Inputs, catalogue
from mpicoll.train.data.rows import Rows
from mpicoll.train.models import Model
from mpicoll.train.models.flat import Flat
from mpicoll.train.ranks.workers import Workers, together
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.protocol import strategy_of

_REMEDY = "give a smaller batch or model, more nodes, float32, or strategy zero1"

Bytes = dict[str, int]


def estimate(config: Config, rank: int, ranks: int, model: Model, holding: Holding) -> Bytes:
    """Bytes that a rank will need beside data and parameters, by what for.

    Args:
        config: The run.
        rank, ranks: The rank, and their number.
        model: The model; activations are counted if it has `activations(samples)`.
        holding: The rank's parameters.
    """
    strategy = strategy_of(config)
    needed = strategy.memory(config, rank, ranks, holding)
    needed["gradients"] += strategy.found(model, holding)
    return needed | strategy.passes(config, rank, ranks, model, holding)


def reading(config: Config) -> Bytes:
    """Bytes that reading the data takes: as they are in files, as numbers, and in another type."""
    total = 0
    for count, dtype in catalogue.read_inputs(config.dataset):
        natural = dtype if dtype.kind == "f" else np.dtype(np.float64)
        other = DTYPES[config.dtype] if natural.name != config.dtype else 0
        total += count * (dtype.itemsize + natural.itemsize + other)
    return {"data": total}


def make_room(
    workers: Workers,
    needed: Mapping[str, int],
    held: Mapping[str, int] | None = None,
    device: str = "cpu",
    words: str = "",
) -> None:
    """Refuse what cannot fit on a node, or on a GPU; collective.

    Args:
        workers: The ranks.
        needed: Bytes that this rank will need more, by what for.
        held: Those that it has taken, for the message.
        device: Where, as `mpicoll.train.Config` has it.
        words: What part of the model this rank has; "" for all of it, on all ranks.

    Raises:
        TrainingError: With the numbers; on all ranks.
    """
    where, room = ("node", available()) if device == "cpu" else arrays.room()
    place = platform.node(), where
    everyone = workers.gather((place, words, dict(needed), dict(held or {})))
    with together(workers, "making room"):
        here = [(name, more, has) for other, name, more, has in everyone if other == place]
        if words:
            _require_stages([(name, more) for name, more, _ in here], room)
        what = "this node" if device == "cpu" else f"this GPU {where}"
        needs, has = [more for _, more, _ in here], [has for _, _, has in here]
        require(needs, room, has, where=what, remedy=_REMEDY)
        if device == "cpu":
            require([needed], left(), [held or {}], where=OWN_LIMIT, remedy=_REMEDY)


def _require_stages(stages: Sequence[tuple[str, Bytes]], room: int | None) -> None:
    """Refuse parts of a model that do not fit on a node together: by what each of them needs.

    Raises:
        MemoryError: With the numbers.
    """
    if room is None or sum(sum(needed.values()) for _, needed in stages) <= room:
        return
    each = (f"{name} needs {megabytes(sum(n.values()))} more: {listed(n)}" for name, n in stages)
    raise MemoryError(
        f"{'; '.join(each)}; this node has {megabytes(room)}: give recompute, more stages, or a "
        "smaller batch"
    )


def taken(dataset: Dataset, weights: Flat) -> Bytes:
    """Bytes that data and parameters take; what is mapped from files takes none."""
    read = sum(_held(rows) for both in dataset.parts.values() for rows in both)
    return {"data": read, "parameters": weights.vector.nbytes}


def _held(rows: Inputs) -> int:
    """Bytes of samples in memory; a view counts as what it shows."""
    return 0 if isinstance(rows, (Rows, np.memmap)) else int(getattr(rows, "nbytes", 0))
