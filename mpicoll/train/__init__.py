"""Data-parallel training: one model, each batch divided among the ranks.

    from mpicoll.train import threads
    threads.limit_blas_threads()                    # before anything loads NumPy

    from mpicoll.train import Config, main, run
    status = main(Config(model="mlp", hidden=(64,)), comm)      # trains, prints
    result = run(Config(epochs=5), comm)                        # Result: parameters, history

`comm` is an `mpicoll.Intracomm`; `run(config)` without one trains in this process alone, without
MPI. `main(config, comm, *, as_json=False, progress=None, compare=False)` returns the exit status,
the same on all ranks. Bring your own data and model with `run(config, comm, dataset=...,
model=...)`. `load_model` takes a trained model out of a checkpoint.

Names are loaded when first used, so that importing this package (and `threads`) loads no NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpicoll.errors import RankLost as RankLost
    from mpicoll.train.config import Config as Config
    from mpicoll.train.data import Dataset as Dataset
    from mpicoll.train.data.augment import Augmentation as Augmentation
    from mpicoll.train.data.batch import Batch as Batch
    from mpicoll.train.data.sampler import DistributedSampler as DistributedSampler
    from mpicoll.train.data.sampler import Sampler as Sampler
    from mpicoll.train.distributed import DistributedOptimizer as DistributedOptimizer
    from mpicoll.train.distributed import average_gradients as average_gradients
    from mpicoll.train.distributed import broadcast_parameters as broadcast_parameters
    from mpicoll.train.driver.console import main as main
    from mpicoll.train.driver.evaluation import Evaluation as Evaluation
    from mpicoll.train.driver.evaluation import evaluate as evaluate
    from mpicoll.train.driver.failure_detector import failure_detector as failure_detector
    from mpicoll.train.driver.loop import run as run
    from mpicoll.train.driver.trained import Trained as Trained
    from mpicoll.train.driver.trained import export_model as export_model
    from mpicoll.train.driver.trained import load_model as load_model
    from mpicoll.train.models import MLP as MLP
    from mpicoll.train.models import Model as Model
    from mpicoll.train.models import Sequential as Sequential
    from mpicoll.train.models import convnet as convnet
    from mpicoll.train.models.generation import generate as generate
    from mpicoll.train.ranks.health import leave as leave
    from mpicoll.train.ranks.workers import TrainingError as TrainingError
    from mpicoll.train.records import Beginning as Beginning
    from mpicoll.train.records import Epoch as Epoch
    from mpicoll.train.records import Result as Result
    from mpicoll.train.records import Step as Step
    from mpicoll.train.servers.consistency import Consistency as Consistency

_HOMES = {
    "MLP": "models",
    "Augmentation": "data.augment",
    "Beginning": "records",
    "Batch": "data.batch",
    "Config": "config",
    "Consistency": "servers.consistency",
    "Dataset": "data",
    "DistributedOptimizer": "distributed",
    "DistributedSampler": "data.sampler",
    "Epoch": "records",
    "Evaluation": "driver.evaluation",
    "Model": "models",
    "RankLost": "ranks.health",
    "Result": "records",
    "Sampler": "data.sampler",
    "Sequential": "models",
    "Step": "records",
    "Trained": "driver.trained",
    "TrainingError": "ranks.workers",
    "average_gradients": "distributed",
    "broadcast_parameters": "distributed",
    "convnet": "models",
    "evaluate": "driver.evaluation",
    "export_model": "driver.trained",
    "failure_detector": "driver.failure_detector",
    "generate": "models.generation",
    "leave": "ranks.health",
    "load_model": "driver.trained",
    "main": "driver.console",
    "run": "driver.loop",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
