"""Data-parallel training: one model, each batch divided among the ranks.

    from mpicoll.train import threads
    threads.limit_blas_threads()                    # before anything loads NumPy

    from mpicoll.train import Config, main, run
    status = main(Config(model="mlp", hidden=(64,)), comm)      # trains, prints, compares
    result = run(Config(epochs=5), comm)                        # Result: parameters, history

`comm` is an `mpicoll.Intracomm`; `run(config)` without one trains in this process alone, without
MPI. `main(config, comm, *, as_json=False, progress=None)` returns the exit status, the same on all
ranks. Bring your own data and model with `run(config, comm, dataset=..., model=...)`.

Names are loaded when first used, so that importing this package (and `threads`) loads no NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpicoll.train.config import Config
    from mpicoll.train.data import Dataset
    from mpicoll.train.data.augment import Augmentation
    from mpicoll.train.data.batch import Batch
    from mpicoll.train.data.sampler import DistributedSampler, Sampler
    from mpicoll.train.distributed import (
        DistributedOptimizer,
        average_gradients,
        broadcast_parameters,
    )
    from mpicoll.train.driver.console import main
    from mpicoll.train.driver.failure_detector import failure_detector
    from mpicoll.train.driver.loop import run
    from mpicoll.train.models import MLP, Model, Sequential, convnet
    from mpicoll.train.ranks.health import RankLost, leave
    from mpicoll.train.ranks.workers import TrainingError
    from mpicoll.train.records import Epoch, Result, Step
    from mpicoll.train.servers.consistency import Consistency

__all__ = [
    "MLP",
    "Augmentation",
    "Batch",
    "Config",
    "Consistency",
    "Dataset",
    "DistributedOptimizer",
    "DistributedSampler",
    "Epoch",
    "Model",
    "RankLost",
    "Result",
    "Sampler",
    "Sequential",
    "Step",
    "TrainingError",
    "average_gradients",
    "broadcast_parameters",
    "convnet",
    "failure_detector",
    "leave",
    "main",
    "run",
]

_HOMES = {
    "MLP": "models",
    "Augmentation": "data.augment",
    "Batch": "data.batch",
    "Config": "config",
    "Consistency": "servers.consistency",
    "Dataset": "data",
    "DistributedOptimizer": "distributed",
    "DistributedSampler": "data.sampler",
    "Epoch": "records",
    "Model": "models",
    "RankLost": "ranks.health",
    "Result": "records",
    "Sampler": "data.sampler",
    "Sequential": "models",
    "Step": "records",
    "TrainingError": "ranks.workers",
    "average_gradients": "distributed",
    "broadcast_parameters": "distributed",
    "convnet": "models",
    "failure_detector": "driver.failure_detector",
    "leave": "ranks.health",
    "main": "driver.console",
    "run": "driver.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
