"""Where the model of a run is cut into stages, if the times of its layers are to say it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.driver import checkpoints
from mpicoll.train.models import Model, Sequential
from mpicoll.train.models.networks import is_chain
from mpicoll.train.parallel import measured, stages
from mpicoll.train.parallel.mesh import count_replicas
from mpicoll.train.ranks.workers import Workers, together


def resolved(config: Config, workers: Workers, dataset: Dataset, model: Model) -> Config:
    """The configuration with a cut that is no longer left to measurements; collective.

    A run that is resumed keeps the cut of its checkpoint, where that is of as many chunks.

    Raises:
        TrainingError: A layer fails, or the model has too few; on all ranks.
    """
    if config.cut != "auto":
        return config
    found: str | None = None
    with together(workers, "looking for a checkpoint"):
        if workers.rank == 0 and config.resume is not None:
            found = _kept(config, model)
    found = workers.gather(found)[0]
    if found is None:
        found = _measured(config, workers, dataset, model)
    return replace(config, cut=found)


def _measured(config: Config, workers: Workers, dataset: Dataset, model: Model) -> str:
    """The cut whose slowest chunk takes least, by the mean of the times on all ranks."""
    if not is_chain(model):
        return "even"  # which is refused where layers are shared out
    own: list[float] = []
    with together(workers, "measuring the layers of the model"):  # all ranks at once
        _starts(config, model, "even")
        samples = _microbatch(config, workers.size, len(dataset.train_targets))
        inputs = np.asarray(dataset.train_inputs[:samples])
        if inputs.dtype.kind not in "iub":
            inputs = inputs.astype(model.dtype, copy=False)
        own = measured(model, inputs)
    means = np.mean(workers.gather(own), axis=0)
    cut = stages.balanced([float(mean) for mean in means], config.step_schedule.chunks)
    return workers.gather(",".join(map(str, cut)))[0]


def _starts(config: Config, model: Sequential, cut: str) -> tuple[int, ...]:
    """As `stages.starts`."""
    pipe = config.axes["pipe"]
    return stages.starts(len(model.layers), pipe, config.step_schedule.chunks // pipe, cut)


def _microbatch(config: Config, ranks: int, samples: int) -> int:
    """Samples of the largest microbatch."""
    axes = config.axes
    replicas = count_replicas(ranks, axes["data"] or None, axes["pipe"], axes["tensor"])
    parts = replicas * config.step_schedule.microbatches // config.accumulate
    return -(-min(config.batch, samples) // parts)


def _kept(config: Config, model: Model) -> str | None:
    """The cut of the checkpoint that the run goes on from; None, with a word, where it has none."""
    path = checkpoints.resumed(config.resume, config.checkpoint)
    if path is None or not is_chain(model):
        return None
    _, facts = checkpoints.read(path)
    before: Mapping[str, Any] = facts.get("config", {})
    cut = before.get("cut", "even")
    try:
        if before.get("mesh") is None or cut == "even":
            raise ValueError("it was not cut by the times of layers")
        _starts(config, model, cut)
    except ValueError as error:
        warnings.warn(
            f"the layers are measured again, and not cut as in {path}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return str(cut)
