"""How much memory a run will take, before it takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mpicoll.train import optimizers, tree
from mpicoll.train.config import Config
from mpicoll.train.flat import Flat
from mpicoll.train.models import Model

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def estimate(config: Config, ranks: int, model: Model, weights: Flat) -> dict[str, int]:
    """Bytes that each rank will need beside data and parameters, by what for.

    Args:
        config: The run.
        ranks: Number of ranks.
        model: The model; activations are counted if it has `activations(samples)`.
        weights: Its parameters.
    """
    size = weights.vector.nbytes
    optimizer = optimizers.make(config.optimizer, config.momentum, config.weight_decay)
    shares = ranks if config.strategy == "zero1" else 1
    slots = 1
    if config.invariant is not None:
        own = tree.shards_of(0, ranks, config.invariant)
        slots = tree.slots(tree.program(own, config.invariant))
    needed = {"gradients": slots * size, "optimizer": len(optimizer.slots) * -(-size // shares)}
    count = getattr(model, "activations", None)
    if count is not None:
        samples = -(-config.global_batch(ranks) // ranks)
        item = {"float64": 8, "float32": 4, "float16": 2}[config.dtype]
        needed["activations"] = count(samples) * item
    return needed


def available() -> int | None:
    """Bytes that this node can still give, None where the system does not say.

    The lesser of what Linux calls available and what is left of the limit of a control group.
    """
    found = []
    with suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(), re.M)
        if match:
            found.append(1024 * int(match[1]))
    with suppress(OSError, ValueError):
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        if limit != "max":
            found.append(max(0, int(limit) - used))
    return min(found, default=None)


def require(needed: Mapping[str, int], ranks_here: int) -> None:
    """Refuse what cannot fit.

    Args:
        needed: As `estimate` gives it.
        ranks_here: Ranks on this node.

    Raises:
        MemoryError: With the numbers.
    """
    room = available()
    total = sum(needed.values()) * ranks_here
    if room is None or total <= room:
        return
    parts = ", ".join(f"{what} {_megabytes(size)}" for what, size in needed.items())
    raise MemoryError(
        f"the {ranks_here} rank(s) of this node need {_megabytes(total)} more ({parts} each), "
        f"{_megabytes(room)} are available: give a smaller batch or model, more nodes, float32, "
        "or strategy zero1"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
