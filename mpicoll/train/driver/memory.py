"""How much memory a run will take, before it takes it."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from mpicoll.base import arrays
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, datasets
from mpicoll.train.models import Model
from mpicoll.train.models.flat import Flat
from mpicoll.train.ranks.workers import Workers, together
from mpicoll.train.strategies.protocol import strategy_of

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")

Bytes = dict[str, int]


def estimate(config: Config, rank: int, ranks: int, model: Model, weights: Flat) -> Bytes:
    """Bytes that a rank will need beside data and parameters, by what for.

    Args:
        config: The run.
        rank, ranks: The rank, and their number.
        model: The model; activations are counted if it has `activations(samples)`.
        weights: Its parameters.
    """
    workers = config.worker_count(ranks)
    needed = strategy_of(config).memory(config, rank, ranks, weights)
    # Where the model has just made one, before it is in its place.
    needed["gradients"] += max(view.nbytes for view in weights.views.values())
    count = getattr(model, "activations", None)
    if count is not None and rank < workers:
        samples = -(-config.global_batch(workers) // (config.invariant or workers))
        item = {"float64": 8, "float32": 4, "float16": 2}[config.dtype]
        needed["activations"] = count(samples) * item
    return needed


def reading(config: Config) -> Bytes:
    """Bytes that reading the data takes: as they are in files, as numbers, and in another type."""
    wanted = np.dtype(config.dtype)
    total = 0
    for count, dtype in datasets.read_inputs(config.dataset):
        natural = dtype if dtype.kind == "f" else np.dtype(np.float64)
        other = wanted.itemsize if natural != wanted else 0
        total += count * (dtype.itemsize + natural.itemsize + other)
    return {"data": total}


def make_room(
    workers: Workers,
    needed: Mapping[str, int],
    held: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> None:
    """Refuse what cannot fit on a node, or on a GPU; collective.

    Args:
        workers: The ranks.
        needed: Bytes that this rank will need more, by what for.
        held: Those that it has taken, for the message.
        device: Where, as `mpicoll.train.Config` has it.

    Raises:
        TrainingError: With the numbers; on all ranks.
    """
    where, room = ("node", available()) if device == "cpu" else arrays.room()
    place = platform.node(), where
    everyone = workers.gather((place, dict(needed), dict(held or {})))
    with together(workers, "making room"):
        here = [(more, has) for other, more, has in everyone if other == place]
        what = "node" if device == "cpu" else f"GPU {where}"
        require([more for more, _ in here], room, [has for _, has in here], what)


def taken(dataset: Dataset, weights: Flat) -> Bytes:
    """Bytes that data and parameters take; what is mapped from files takes none."""
    parts = (
        dataset.train_inputs,
        dataset.train_labels,
        dataset.test_inputs,
        dataset.test_labels,
    )
    read = sum(getattr(part, "nbytes", 0) for part in parts)
    return {"data": read, "parameters": weights.vector.nbytes}


def available() -> int | None:
    """Bytes that this node can still give, None where the system does not say.

    The lesser of what Linux calls available and what is left of the limit of a control group.
    """
    found = []
    with suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(encoding="utf-8"), re.M)
        if match:
            found.append(1024 * int(match[1]))
    with suppress(OSError, ValueError):
        limit = (_CGROUP / "memory.max").read_text(encoding="utf-8").strip()
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        if limit != "max":
            found.append(max(0, int(limit) - used))
    return min(found, default=None)


def require(
    needed: Sequence[Mapping[str, int]],
    room: int | None,
    held: Sequence[Mapping[str, int]] = (),
    place: str = "node",
) -> None:
    """Refuse what cannot fit.

    Args:
        needed: As `estimate` gives it, of each rank of a place.
        room: Bytes that are left there, None where that is not known.
        held: What they have taken.
        place: What it is, in words.

    Raises:
        MemoryError: With the numbers.
    """
    more, has = _added(needed), _added(held)
    total = sum(more.values())
    if room is None or total <= room:
        return
    beside = f", beside {_listed(has)}" if has else ""
    raise MemoryError(
        f"the {len(needed)} rank(s) of this {place} need {_megabytes(total)} more ({_listed(more)}"
        f"{beside}), {_megabytes(room)} are available: give a smaller batch or model, more nodes, "
        "float32, or strategy zero1"
    )


def _added(each: Sequence[Mapping[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for sizes in each:
        found.update(sizes)
    return found


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {_megabytes(size)}" for what, size in sizes.items())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
