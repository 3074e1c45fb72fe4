"""A training run: data, model and ranks made ready, epochs of steps, measurements, stop rules."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.train.config import Config
from mpicoll.train.data import DATASETS, Dataset
from mpicoll.train.flat import Flat
from mpicoll.train.models import MLP, Model, Sequential, convnet
from mpicoll.train.records import Epoch, Result, Step
from mpicoll.train.sampler import shared
from mpicoll.train.trainer import Trainer
from mpicoll.train.workers import (
    AllReduceWorkers,
    OneProcess,
    Workers,
    raise_together,
    require_equal,
    together,
)

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]
OnStep = Callable[[Step], "bool | None"]
OnEpoch = Callable[[Epoch], "bool | None"]

#: Samples evaluated at once.
_ROWS = 1000


def make_model(config: Config, dataset: Dataset) -> Sequential:
    """The model that a configuration names, for a data set.

    Raises:
        ValueError: They do not fit.
    """
    if config.model == "conv":
        return convnet(
            dataset.image,
            config.channels,
            config.hidden,
            dataset.classes,
            config.dtype,
            config.dropout,
        )
    hidden = config.hidden if config.model == "mlp" else ()
    sizes = (dataset.features, *hidden, dataset.classes)
    return MLP(sizes, config.dtype, config.dropout)


def run(
    config: Config,
    comm: MPI.Intracomm | None = None,
    *,
    dataset: Dataset | None = None,
    model: Model | None = None,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
) -> Result:
    """Train; collective over `comm`.

    Args:
        config: What to do, equal on all ranks.
        comm: An `mpicoll.Intracomm`. None trains in this process alone, without MPI.
        dataset: Data to use instead of those `config` names.
        model: Model to use instead of the one `config` names.
        on_step: Called after each step; all ranks stop after the next step if it returns True on
            any rank.
        on_epoch: Called after each epoch; as `on_step`.

    Returns:
        Parameters and history, on every rank.

    Raises:
        TrainingError: Data missing, ranks that disagree, gradients that are not finite in too many
            steps, or any exception of a model or of a callback; on all ranks together, also where
            one rank alone is concerned.
    """
    workers = OneProcess() if comm is None else AllReduceWorkers(comm, config.algorithm)
    require_equal(workers, asdict(config), "give all ranks the same configuration")
    with together(workers, "making data and model ready"):
        dataset = (dataset or DATASETS[config.dataset]()).astype(config.dtype)
        model = model or make_model(config, dataset)
        initial = model.initial_parameters(config.seed)
        weights = Flat(initial, "float32" if config.dtype == "float16" else None)
    require_equal(
        workers,
        {
            "number of training samples": len(dataset.train_labels),
            "number of test samples": len(dataset.test_labels),
            **{
                f"parameter {name}": f"{view.dtype} of shape {view.shape}"
                for name, view in weights.views.items()
            },
        },
        "give all ranks the same data and the same model",
    )
    workers.broadcast(weights.vector)
    trainer = Trainer(config, workers, dataset, model, weights)
    try:
        return _Run(config, workers, dataset, model, trainer, on_step, on_epoch).result()
    finally:
        trainer.free()


class _Run:
    """The epochs of a run."""

    def __init__(
        self,
        config: Config,
        workers: Workers,
        dataset: Dataset,
        model: Model,
        trainer: Trainer,
        on_step: OnStep | None,
        on_epoch: OnEpoch | None,
    ) -> None:
        self._config = config
        self._workers = workers
        self._dataset = dataset
        self._model = model
        self._trainer = trainer
        self._on_step, self._on_epoch = on_step, on_epoch

    def result(self) -> Result:
        """Train until a stop rule holds."""
        history: list[Epoch] = []
        stopped = "epochs"
        for number in range(1, self._config.epochs + 1):
            with np.errstate(over="ignore", invalid="ignore"):  # reported by rank and step instead
                history.append(self._epoch(number))
            self._call(self._on_epoch, history[-1])
            reason = self._reason(history[-1])
            if reason is not None:
                stopped = reason
                break
        trainer = self._trainer
        raise_together(self._workers, "a callback", trainer.failure)  # that of the last epoch
        return Result(trainer.weights.views, tuple(history), trainer.number, stopped)

    def _reason(self, epoch: Epoch) -> str | None:
        config = self._config
        if self._trainer.stop:
            return "asked"
        if config.target_loss is not None and epoch.loss <= config.target_loss:
            return "target loss"
        if config.target_accuracy is not None and epoch.test_accuracy >= config.target_accuracy:
            return "target accuracy"
        return "steps" if self._trainer.number == config.steps else None

    def _call(self, callback: Callable[[Any], bool | None] | None, record: Step | Epoch) -> None:
        """Call the user's function; what it raises is told to the other ranks with the next sum."""
        if callback is None:
            return
        try:
            self._trainer.asked |= callback(record) is True
        except Exception as error:
            self._trainer.failure = error

    def _epoch(self, number: int) -> Epoch:
        """Make the steps of an epoch (counted from 1) and measure where they led."""
        trainer = self._trainer
        trainer.compute[:] = 0
        skipped, exposed = trainer.skipped, 0.0
        start = time.perf_counter()
        for position, samples in enumerate(trainer.sampler.batches(number), 1):
            step = trainer.step(samples, number, position)
            exposed += step.exposed + step.waiting
            self._call(self._on_step, step)
            if trainer.stop or trainer.number == self._config.steps:
                break
        seconds = time.perf_counter() - start
        return self._measure(number, seconds, exposed / seconds, trainer.skipped - skipped)

    def _measure(self, number: int, seconds: float, communication: float, skipped: int) -> Epoch:
        data = self._dataset
        failure = self._trainer.failure
        totals = np.zeros(5)
        try:
            loss, trained = self._evaluate(data.train_inputs, data.train_labels)
            _, correct = self._evaluate(data.test_inputs, data.test_labels)
            if not (np.isfinite(loss) and np.isfinite(self._trainer.weights.vector).all()):
                raise FloatingPointError(
                    f"the loss is {loss}, with weights that are not finite: lower the learning "
                    f"rate (now {self._config.lr}) or check the data"
                )
            totals[:4] = loss, trained, correct, communication
        except Exception as error:
            failure = failure or error
        totals[4] = failure is not None
        self._workers.sum(totals)
        if totals[4]:
            raise_together(self._workers, f"measuring after epoch {number}", failure)
        return Epoch(
            number=number,
            loss=float(totals[0]) / len(data.train_labels),
            train_accuracy=float(totals[1]) / len(data.train_labels),
            test_accuracy=float(totals[2]) / len(data.test_labels),
            seconds=seconds,
            communication=float(totals[3]) / self._workers.size,
            skipped=skipped,
            compute=tuple(self._trainer.compute.tolist()),
        )

    def _evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Sum of losses and number of correct answers over this rank's part of the samples."""
        inputs = shared(inputs, self._workers.size, self._workers.rank)
        labels = shared(labels, self._workers.size, self._workers.rank)
        loss, correct = 0.0, 0
        for start in range(0, len(labels), _ROWS):
            rows = slice(start, start + _ROWS)
            losses, scores = self._model.losses_and_scores(
                self._trainer.views, inputs[rows], labels[rows]
            )
            loss += float(losses.sum(dtype=np.float64))
            correct += int(np.count_nonzero(scores.argmax(axis=1) == labels[rows]))
        return loss, correct
