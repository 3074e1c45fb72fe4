"""A training run: data, model and ranks made ready, epochs of steps, measurements, stop rules."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base import arrays
from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train import optimizers
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, Inputs, load
from mpicoll.train.driver import bits, data_servers, memory, predicted
from mpicoll.train.driver.checkpointing import Checkpointing
from mpicoll.train.driver.metrics import described as described_run
from mpicoll.train.driver.observers import Observers
from mpicoll.train.exchange import tree
from mpicoll.train.models import (
    MLP,
    Model,
    Parameters,
    Sequential,
    buffers_of,
    convnet,
    resnet,
    sums_of,
)
from mpicoll.train.models.flat import Flat, described
from mpicoll.train.optimizers import Optimizer
from mpicoll.train.ranks import signals
from mpicoll.train.ranks.stacks import Stacks
from mpicoll.train.ranks.workers import (
    TrainingError,
    Workers,
    raise_together,
    require_equal,
    together,
)
from mpicoll.train.records import Beginning, Epoch, Result, Step
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.protocol import strategy_of
from mpicoll.train.strategies.training import Setup, Training

if TYPE_CHECKING:
    from mpi4py import MPI

OnBegin = Callable[[Beginning], object]
OnStep = Callable[[Step], "bool | None"]
OnEpoch = Callable[[Epoch], "bool | None"]

#: Samples evaluated at once: few, so that what layers hand on stays in the processor's caches.
_ROWS = 128


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
    if config.model == "resnet":
        return resnet(
            dataset.image,
            config.channels,
            dataset.classes,
            config.blocks,
            config.dtype,
            config.dropout,
            config.norm == "local",
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
    optimizer: Optimizer | None = None,
    on_begin: OnBegin | None = None,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
) -> Result:
    """Train; collective over `comm`.

    Args:
        config: What to do, equal on all ranks.
        comm: An `mpicoll.Intracomm`. None trains in this process alone, without MPI.
        dataset: Data to use instead of those `config` names.
        model: Model to use instead of the one `config` names.
        optimizer: What to make of a gradient, instead of what `config` names; servers call it too.
        on_begin: Called before the first step, with where the run begins or goes on.
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
    if comm is not None and config.data_servers:
        train = partial(
            run,
            model=model,
            optimizer=optimizer,
            on_begin=on_begin,
            on_step=on_step,
            on_epoch=on_epoch,
        )
        needed = memory.reading(config) if dataset is None else {}
        return data_servers.run(
            config, comm, needed, lambda: dataset or load(config.dataset, config.data), train
        )
    given = dataset, model, optimizer
    setup = _prepare(config, comm, *given)
    config, workers = setup.config, setup.workers
    training = strategy_of(config).make(setup)
    checkpoints = Checkpointing(config, workers, training)
    stacks = Stacks(workers, config.hang_after)
    observers: Observers | None = None
    try:
        beginning, history = checkpoints.restore()
        training.stamp = beginning.stamp
        with together(workers, "opening the metrics"):
            expected = predicted.seconds(comm, config.algorithm, training.collectives)
            words = described_run(config, *given)
            observers = Observers(config, workers, comm, expected, stacks, beginning, words)
            if on_begin is not None:
                on_begin(beginning)
        workers.begin()
        with signals.heard(partial(setattr, training, "signalled", True)):
            loop = _Run(setup, training, checkpoints, observers)
            result = loop.result(beginning, history, on_step, on_epoch)
        training.close()
    except TrainingError:  # on all ranks together; after any other, messages may be under way
        training.close(failed=True)
        if observers is not None:
            observers.free()
        raise
    finally:
        if observers is not None:
            observers.close()
        checkpoints.close()
        stacks.close()
    observers.free()
    return replace(result, communicated=observers.communicated, predicted=expected)


def _prepare(
    config: Config,
    comm: MPI.Intracomm | None,
    dataset: Dataset | None,
    model: Model | None,
    optimizer: Optimizer | None,
) -> Setup:
    """What the run is made of: fits into memory, and is the same on all ranks; collective."""
    workers = Workers() if comm is None else placement.members(config, comm)
    require_equal(workers, asdict(config), "give all ranks the same configuration")
    if dataset is None:
        memory.make_room(workers, memory.reading(config))
    with together(workers, "making data and model ready"):
        dataset = (dataset or load(config.dataset, config.data)).astype(config.dtype)
        model = model or make_model(config, dataset)
        dataset = _on(config.device, dataset)
        weights = _parameters(config, model)
        buffers = {n: arrays.on(config.device, a) for n, a in buffers_of(model).items()}
        sums = _sums(config, model)
        config.worker_count(workers.size)
        if config.invariant is not None:
            bits.require_one_thread()
        if config.deterministic and config.algorithm is not None:
            bits.require_fixed_order(config.algorithm, workers.size)
        needed = memory.estimate(config, workers.rank, workers.size, model, weights)
    memory.make_room(workers, needed, memory.taken(dataset, weights), config.device)
    require_equal(
        workers,
        {
            "number of training samples": len(dataset.train_labels),
            "number of test samples": len(dataset.test_labels),
            **described(weights.views),
            **described(buffers, "buffer"),
            "lengths of sums": sums,
        },
        "give all ranks the same data and the same model",
    )
    if config.invariant is not None:
        require_equal(workers, bits.machine(), "invariant bits are those of one kind of machine")
    workers.broadcast(weights.vector)
    if config.bucket == "model":
        bucket = predicted.bucket(comm, config.algorithm, weights.vector.nbytes)
        config = replace(config, bucket=bucket)
    optimizer = optimizer or optimizers.make(config.optimizer, config.momentum, config.weight_decay)
    return Setup(config, workers, comm, dataset, model, weights, optimizer, buffers)


def _parameters(config: Config, model: Model) -> Flat:
    """A model's first parameters on the run's device, in the type in which they are kept."""
    first = model.initial_parameters(config.seed)
    return Flat(
        {name: arrays.on(config.device, array) for name, array in first.items()},
        "float32" if config.dtype == "float16" else None,
    )


def _sums(config: Config, model: Model) -> tuple[int, ...]:
    """Lengths of the sums over the ranks that a model makes; refused where there can be none."""
    lengths = sums_of(model)
    if lengths and not strategy_of(config).in_lockstep:
        raise ValueError(
            f"strategy {config.strategy} has no step that all ranks compute together, and the "
            "model normalises over the batch of all: give norm local, or layers "
            "BatchNorm(local=True)"
        )
    return lengths


def _on(device: str, dataset: Dataset) -> Dataset:
    """A data set whose samples are on a device, all of them."""
    if device == "cpu":
        return dataset
    return replace(
        dataset,
        train_inputs=arrays.on(device, dataset.train_inputs[:]),
        train_labels=arrays.on(device, dataset.train_labels),
        test_inputs=arrays.on(device, dataset.test_inputs[:]),
        test_labels=arrays.on(device, dataset.test_labels),
    )


class _Run:
    """The epochs of a run."""

    def __init__(
        self, setup: Setup, training: Training, checkpoints: Checkpointing, observers: Observers
    ) -> None:
        self._setup, self._config, self._workers = setup, setup.config, setup.workers
        self._training, self._checkpoints, self._observers = training, checkpoints, observers

    def result(
        self,
        beginning: Beginning,
        history: list[Epoch],
        on_step: OnStep | None,
        on_epoch: OnEpoch | None,
    ) -> Result:
        """Train until a stop rule holds, from a place in an epoch on."""
        training, config = self._training, self._config
        self._history = history
        number, position = beginning.epoch, beginning.position
        stopped: str | None = None
        self._observers.compare_clocks()
        while stopped is None:
            if number > config.epochs:
                stopped = "epochs"
                break
            if config.steps is not None and training.number >= config.steps:
                stopped = "steps"
                break
            with np.errstate(over="ignore", invalid="ignore"):  # reported by rank and step instead
                epoch, position = self._epoch(number, position, on_step)
            if epoch is None:
                self._checkpoints.save(number, position, history)
                stopped = "signal"
                break
            history.append(epoch)
            self._note(on_epoch, epoch)
            self._observers.compare_clocks()
            stopped = self._reason(epoch)
            complete = position == training.sampler.steps
            if config.checkpoint_every is None or stopped is not None:
                self._checkpoints.save(number + complete, 0 if complete else position, history)
            number, position = number + 1, 0
        raise_together(self._workers, "a callback", training.failure)  # that of the last epoch
        return Result(
            arrays.hosted(training.weights.views),
            tuple(history),
            training.number,
            beginning,
            stopped,
            buffers=arrays.hosted(training.buffers.views),
        )

    def _reason(self, epoch: Epoch) -> str | None:
        config = self._config
        if self._training.stop:
            return "asked"
        if config.target_loss is not None and epoch.loss <= config.target_loss:
            return "target loss"
        if config.target_accuracy is not None and epoch.test_accuracy >= config.target_accuracy:
            return "target accuracy"
        return "steps" if self._training.number == config.steps else None

    def _note(self, callback: Callable[[Any], bool | None] | None, record: Step | Epoch) -> None:
        """Write a record down and show it to the user's function.

        What goes wrong is told to the other ranks with the next sum.
        """
        try:
            self._observers.add(record)
            if callback is not None:
                self._training.asked |= callback(record) is True
        except Exception as error:
            self._training.failure = error

    def _epoch(
        self, number: int, position: int, on_step: OnStep | None
    ) -> tuple[Epoch | None, int]:
        """Make the steps of an epoch (counted from 1) that are left, and measure where they led.

        Returns:
            The epoch, or None if a signal ended it; steps made in it.
        """
        training = self._training
        training.compute[:] = 0
        skipped, exposed = training.skipped, 0.0
        start = time.perf_counter()
        for step in training.steps(number, position):
            exposed += step.exposed + step.waiting
            self._note(on_step, step)
            if self._checkpoints.is_due() and not training.stop:
                self._checkpoints.save(number, training.position, self._history)
        position = training.position
        if training.interrupted:
            return None, position
        seconds = time.perf_counter() - start
        share = exposed / seconds
        return self._measure(number, seconds, share, training.skipped - skipped), position

    def _measure(self, number: int, seconds: float, communication: float, skipped: int) -> Epoch:
        data, training = self._setup.dataset, self._training
        failure = training.failure
        totals = np.zeros(4 + (self._config.invariant or self._workers.size))
        known = training.evaluated()
        try:
            losses, trained = self._evaluate(known, data.train_inputs, data.train_labels)
            _, correct = self._evaluate(known, data.test_inputs, data.test_labels)
            loss = sum(losses.values())
            if not (np.isfinite(loss) and np.isfinite(training.weights.vector).all()):
                raise FloatingPointError(
                    f"the loss is {loss}, with weights that are not finite: lower the learning "
                    f"rate (now {self._config.lr}) or check the data"
                )
            totals[1:4] = trained, correct, communication
            for index, own in losses.items():
                totals[4 + index] = own
        except Exception as error:
            failure = failure or error
        totals[0] = failure is not None
        self._workers.sum(totals)
        if totals[0]:
            raise_together(self._workers, f"measuring after epoch {number}", failure)
        return Epoch(
            number=number,
            loss=float(tree.total_of_shards(totals[4:])) / len(data.train_labels),
            train_accuracy=float(totals[1]) / len(data.train_labels),
            test_accuracy=float(totals[2]) / len(data.test_labels),
            seconds=seconds,
            communication=float(totals[3]) / self._workers.size,
            skipped=skipped,
            compute=tuple(training.compute.tolist()),
        )

    def _evaluate(
        self, known: Parameters, inputs: Inputs, labels: Array
    ) -> tuple[dict[int, float], int]:
        """Sum of losses of each of this rank's parts of the samples, and number of correct answers.

        Samples are cut as batches are.
        """
        losses, correct, step = {}, 0, self._rows()
        workers, shards = self._workers, self._config.invariant
        for index in tree.shards_of(workers.rank, workers.size, shards or workers.size):
            loss, samples = 0.0, len(labels)
            first, count = part(samples, shards, index) if shards else workers.share(samples)
            for start in range(first, first + count, step):
                rows = slice(start, min(start + step, first + count))
                found, scores = self._setup.model.losses_and_scores(
                    known, inputs[rows], labels[rows]
                )
                loss += float(found.sum(dtype=np.float64))
                correct += int(np.count_nonzero(scores.argmax(axis=1) == labels[rows]))
            losses[index] = loss
        return losses, correct

    def _rows(self) -> int:
        """Samples to evaluate at once; on a GPU as many as a step has room for keep it busy."""
        if self._config.device == "cpu":
            return _ROWS
        return max(_ROWS, self._config.global_batch(self._workers.size) // self._workers.size)
