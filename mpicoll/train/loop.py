"""Data-parallel SGD: all ranks in lockstep, one all-reduce of the gradients a step.

Every rank holds all parameters. In a step each computes the gradients of its part of the global
batch, already divided by the size of the whole batch; their sum over the ranks is the gradient of
the global batch, and all ranks make the same update. That is the same method as SGD in one process
with the same global batches, and differs from it by rounding alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.train.config import Config
from mpicoll.train.data import DATASETS, Dataset
from mpicoll.train.models import MODELS, Batch, Model
from mpicoll.train.sampler import Sampler, shared
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


@dataclass(frozen=True)
class Epoch:
    """What was measured in one epoch. Equal on all ranks, except `seconds`.

    Attributes:
        number: 1 for the first.
        loss: Mean loss over the training set, with the parameters at the end of the epoch.
        train_accuracy, test_accuracy: Share of samples classified correctly, at the end.
        seconds: Time of the epoch's steps on this rank; measuring the rest comes on top.
        communication: Share of that time spent in the all-reduce, waiting included; mean of the
            ranks.
    """

    number: int
    loss: float
    train_accuracy: float
    test_accuracy: float
    seconds: float
    communication: float


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a run.

    Attributes:
        parameters: Final parameters by name.
        history: One entry an epoch.
    """

    parameters: dict[str, Array]
    history: tuple[Epoch, ...]


class Flat:
    """Named arrays as views of one vector, so that one all-reduce or one update serves them all.

    Args:
        arrays: The arrays; their values are copied.
        spare: Elements to append to the vector, outside all views.

    Raises:
        TypeError: The arrays are not all of one floating type.
        ValueError: There are none.
    """

    def __init__(self, arrays: Mapping[str, Array], spare: int = 0) -> None:
        if not arrays:
            raise ValueError("the model has no parameters: return at least one array")
        dtypes = {name: array.dtype for name, array in arrays.items()}
        dtype = next(iter(dtypes.values()))
        for name, other in dtypes.items():
            if other != dtype or other.kind != "f":
                raise TypeError(
                    f"parameter {name} is {other}, the first is {dtype}: "
                    "give all parameters the same floating type"
                )
        length = sum(array.size for array in arrays.values())
        self.vector: Array = np.zeros(length + spare, dtype)
        self.views: dict[str, Array] = {}
        start = 0
        for name, array in arrays.items():
            self.views[name] = self.vector[start : start + array.size].reshape(array.shape)
            start += array.size
        self.assign(arrays)

    def assign(self, arrays: Mapping[str, Array]) -> None:
        """Copy values of arrays with the same names and shapes.

        Raises:
            ValueError: Names or shapes differ.
        """
        if arrays.keys() != self.views.keys():
            raise ValueError(
                f"arrays are {', '.join(arrays)}, parameters are {', '.join(self.views)}: "
                "return one gradient for each parameter"
            )
        for name, view in self.views.items():
            if arrays[name].shape != view.shape:
                raise ValueError(
                    f"array {name} has shape {arrays[name].shape}, its parameter {view.shape}: "
                    "return gradients in the shapes of the parameters"
                )
            view[...] = arrays[name]


def run(
    config: Config,
    comm: MPI.Intracomm | None = None,
    *,
    dataset: Dataset | None = None,
    model: Model | None = None,
    on_step: Callable[[int, int, int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Result:
    """Train; collective over `comm`.

    Args:
        config: What to do, equal on all ranks.
        comm: An `mpicoll.Intracomm`. None trains in this process alone, without MPI.
        dataset: Data to use instead of those `config` names.
        model: Model to use instead of the one `config` names.
        on_step: Called after each step with epoch, step and steps an epoch, counted from 1.
        on_epoch: Called after each epoch.

    Returns:
        Parameters and history, on every rank.

    Raises:
        TrainingError: Data missing, ranks that disagree, a loss or gradient that is not finite, or
            any exception of a model; on all ranks together, also where one rank alone is concerned.
    """
    workers = OneProcess() if comm is None else AllReduceWorkers(comm, config.algorithm)
    require_equal(workers, asdict(config), "give all ranks the same configuration")
    with together(workers, "making data and model ready"):
        dataset = (dataset or DATASETS[config.dataset]()).astype(config.dtype)
        if model is None:
            make = MODELS[config.model]
            model = make(dataset.features, dataset.classes, config.hidden, config.dtype)
        weights = Flat(model.initial_parameters(config.seed))
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
    trainer = _Trainer(config, workers, dataset, model, weights)
    history = []
    for number in range(1, config.epochs + 1):
        with np.errstate(over="ignore", invalid="ignore"):  # reported by rank and step instead
            history.append(trainer.epoch(number, on_step))
        if on_epoch is not None:
            on_epoch(history[-1])
    return Result(weights.views, tuple(history))


class _Trainer:
    """The state of a run: weights and velocity, and the buffer that is all-reduced."""

    def __init__(
        self, config: Config, workers: Workers, dataset: Dataset, model: Model, weights: Flat
    ) -> None:
        self._config = config
        self._workers = workers
        self._dataset = dataset
        self._model = model
        self._weights = weights
        self._velocity = np.zeros_like(weights.vector)
        self._gradients = Flat(weights.views, spare=1)
        self._sampler = Sampler(len(dataset.train_labels), config.batch, config.seed)
        self._communication = 0.0

    def epoch(self, number: int, on_step: Callable[[int, int, int], None] | None) -> Epoch:
        """Make the steps of an epoch (counted from 1) and measure where they led."""
        self._communication = 0.0
        start = time.perf_counter()
        for step, samples in enumerate(self._sampler.batches(number), 1):
            self._step(samples, f"step {step} of epoch {number}")
            if on_step is not None:
                on_step(number, step, self._sampler.steps)
        seconds = time.perf_counter() - start
        return self._measure(number, seconds)

    def _step(self, samples: NDArray[np.int64], where: str) -> None:
        mine = self._mine(samples)
        data = self._dataset
        batch = Batch(data.train_inputs[mine], data.train_labels[mine], len(samples))
        failure: Exception | None = None
        try:
            loss, gradients = self._model.loss_and_gradients(self._weights.views, batch)
            self._gradients.assign(gradients)
            self._require_finite(loss, self._gradients.vector)
        except Exception as error:
            failure = error
        self._sum(self._gradients.vector, failure, where)

        gradient = self._gradients.vector[:-1]
        self._velocity *= self._config.momentum
        self._velocity += gradient
        np.multiply(self._velocity, self._config.lr, out=gradient)
        self._weights.vector -= gradient

    def _measure(self, number: int, seconds: float) -> Epoch:
        data = self._dataset
        failure: Exception | None = None
        totals = np.zeros(5)
        try:
            loss, trained = self._evaluate(data.train_inputs, data.train_labels)
            _, correct = self._evaluate(data.test_inputs, data.test_labels)
            self._require_finite(loss, self._weights.vector)
            totals[:4] = loss, trained, correct, self._communication / seconds
        except Exception as error:
            failure = error
        self._sum(totals, failure, f"measuring after epoch {number}")
        return Epoch(
            number=number,
            loss=float(totals[0]) / len(data.train_labels),
            train_accuracy=float(totals[1]) / len(data.train_labels),
            test_accuracy=float(totals[2]) / len(data.test_labels),
            seconds=seconds,
            communication=float(totals[3]) / self._workers.size,
        )

    def _evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Sum of losses and number of correct answers over this rank's part of the samples."""
        inputs, labels = self._mine(inputs), self._mine(labels)
        losses, scores = self._model.losses_and_scores(self._weights.views, inputs, labels)
        return float(losses.sum()), int(np.count_nonzero(scores.argmax(axis=1) == labels))

    def _mine(self, items: Array) -> Array:
        return shared(items, self._workers.size, self._workers.rank)

    def _require_finite(self, loss: float, values: Array) -> None:
        if not np.isfinite(loss) or not np.isfinite(values).all():
            raise FloatingPointError(
                f"the loss is {loss}, with values that are not finite: lower the learning rate "
                f"(now {self._config.lr}) or check the data"
            )

    def _sum(self, values: Array, failure: Exception | None, where: str) -> None:
        """All-reduce `values`, whose last element is set to count the ranks that failed.

        A count is a sum of ones, exact in any order: all ranks see a failure or none does, without
        a message of its own.
        """
        values[-1] = failure is not None
        start = time.perf_counter()
        self._workers.sum(values)
        self._communication += time.perf_counter() - start
        if values[-1]:
            raise_together(self._workers, where, failure)
