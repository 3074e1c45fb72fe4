"""A training run: data, model and ranks made ready, epochs of steps, measurements, stop rules."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base import arrays
from mpicoll.train import optimizers, schedules
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, load
from mpicoll.train.driver import data_servers, memory, predicted
from mpicoll.train.driver.callbacks import (
    Callback,
    OnBegin,
    OnEpoch,
    OnStep,
    read_only,
    seeing,
)
from mpicoll.train.driver.checkpointing import Checkpointing
from mpicoll.train.driver.measuring import Measuring
from mpicoll.train.driver.metrics import described as described_run
from mpicoll.train.driver.observers import Observers
from mpicoll.train.driver.preparation import prepare
from mpicoll.train.models import Measure, Model
from mpicoll.train.optimizers import Optimizer, Update
from mpicoll.train.ranks import signals
from mpicoll.train.ranks.stacks import Stacks
from mpicoll.train.ranks.workers import (
    TrainingError,
    raise_together,
    together,
)
from mpicoll.train.records import Beginning, Epoch, Measures, Result, Step
from mpicoll.train.schedules import Schedule
from mpicoll.train.strategies.protocol import strategy_of
from mpicoll.train.strategies.training import Setup, Training

if TYPE_CHECKING:
    from mpi4py import MPI


def run(
    config: Config,
    comm: MPI.Intracomm | None = None,
    *,
    dataset: Dataset | None = None,
    model: Model | None = None,
    optimizer: Optimizer | Update | None = None,
    schedule: Schedule | None = None,
    measures: Sequence[Measure] | None = None,
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
            A function is called as `optimizers.Optimizer.update`, without arrays of its own.
        schedule: Learning rate of a step, counted from 1, instead of what `config` says of it;
            asked once for each step, before the first.
        measures: What to tell of held-out samples beside the loss; None for what goes with the
            model's loss: accuracy, or R² of squared errors.
        on_begin: Called before the first step, with where the run begins or goes on.
        on_step: Called after each step; all ranks stop after the next step if it returns True on
            any rank. A function of two arguments is given the parameters, too: views by name that
            may not be written to, of what the next step changes.
        on_epoch: Called after each epoch; as `on_step`.

    Returns:
        Parameters and history, on every rank.

    Raises:
        TrainingError: Data missing, ranks that disagree, gradients that are not finite in too many
            steps, or any exception of a model or of a callback; on all ranks together, also where
            one rank alone is concerned.
    """
    own = None if optimizer is None else optimizers.wrapped(optimizer)
    if comm is not None and config.data_servers:
        train = partial(
            run,
            model=model,
            optimizer=own,
            schedule=schedule,
            measures=measures,
            on_begin=on_begin,
            on_step=on_step,
            on_epoch=on_epoch,
        )
        needed = memory.reading(config) if dataset is None else {}
        return data_servers.run(
            config,
            comm,
            needed,
            lambda: dataset or load(config.dataset, config.data, config.context),
            train,
        )
    given = dataset, model, own
    setup, measuring = prepare(config, comm, *given, measures)
    config, workers = setup.config, setup.workers
    training = strategy_of(config).make(setup)
    checkpoints = Checkpointing(setup, training)
    stacks = Stacks(workers, config.hang_after)
    observers: Observers | None = None
    try:
        if schedule is not None:
            with together(workers, "asking the schedule"):
                training.rates = schedules.table(schedule, training.total)
        beginning, history = checkpoints.restore()
        training.stamp = beginning.stamp
        with together(workers, "opening the metrics"):
            expected = predicted.seconds(comm, config.algorithm, training.collectives)
            words = described_run(config, *given)
            if setup.dataset.about:
                words["about"] = setup.dataset.about
            observers = Observers(config, workers, comm, expected, stacks, beginning, words)
            if on_begin is not None:
                on_begin(beginning)
        workers.begin()
        with signals.heard(partial(setattr, training, "signalled", True)):
            loop = _Run(setup, training, checkpoints, observers, measuring)
            views = read_only(training.weights)
            result = loop.result(
                beginning, history, seeing(on_step, views), seeing(on_epoch, views)
            )
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


class _Run:
    """The epochs of a run."""

    def __init__(
        self,
        setup: Setup,
        training: Training,
        checkpoints: Checkpointing,
        observers: Observers,
        measuring: Measuring,
    ) -> None:
        self._config, self._workers, self._measuring = setup.config, setup.workers, measuring
        self._training, self._checkpoints, self._observers = training, checkpoints, observers
        self._after_epochs = ["train"] if self._config.evaluate_train else []
        if setup.dataset.held_out is not None:
            self._after_epochs.append(setup.dataset.held_out)

    def result(
        self,
        beginning: Beginning,
        history: list[Epoch],
        on_step: Callback | None,
        on_epoch: Callback | None,
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
            if config.pause_after is not None and number > config.pause_after:
                stopped = "pause"
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
            {} if stopped in ("signal", "pause") else self._test(history),
            buffers=arrays.hosted(training.buffers.views),
        )

    def _test(self, history: list[Epoch]) -> Measures:
        """Measures of the test set at the end; those of the last epoch, where it has them."""
        if history and history[-1].test:
            return history[-1].test
        views = self._training.evaluated()
        found, _ = self._measuring.measure(("test",), views, "measuring the test set")
        return found.get("test", {})

    def _reason(self, epoch: Epoch) -> str | None:
        config = self._config
        if self._training.stop:
            return "asked"
        found = epoch.held_out
        if config.target_loss is not None and found["loss"] <= config.target_loss:
            return "target loss"
        if config.target_accuracy is not None and found["accuracy"] >= config.target_accuracy:
            return "target accuracy"
        return "steps" if self._training.number == config.steps else None

    def _note(self, callback: Callback | None, record: Step | Epoch) -> None:
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
        self, number: int, position: int, on_step: Callback | None
    ) -> tuple[Epoch | None, int]:
        """Make the steps of an epoch (counted from 1) that are left, and measure where they led.

        Returns:
            The epoch, or None if a signal ended it; steps made in it.
        """
        training = self._training
        training.compute[:] = 0
        if not position:
            training.losses[:] = 0
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
        training = self._training
        found, share = self._measuring.measure(
            self._after_epochs,
            training.evaluated(),
            f"measuring after epoch {number}",
            training.failure,
            communication,
        )
        total, samples = training.losses.tolist()
        return Epoch(
            number=number,
            loss=total / samples if samples else math.nan,
            train=found.get("train", {}),
            validation=found.get("validation", {}),
            test=found.get("test", {}),
            seconds=seconds,
            communication=share,
            skipped=skipped,
            compute=tuple(training.compute.tolist()),
        )
