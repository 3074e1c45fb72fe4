"""The epochs of a run: steps, measurements, checkpoints, stop rules."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from mpicoll.base import arrays
from mpicoll.train.driver.callbacks import Callback
from mpicoll.train.driver.checkpointing import Checkpointing
from mpicoll.train.driver.measuring import Measuring
from mpicoll.train.driver.observers import Observers
from mpicoll.train.ranks.workers import raise_together
from mpicoll.train.records import Beginning, Epoch, Measures, Result, Step
from mpicoll.train.strategies.training import Setup, Training


class Epochs:
    """The epochs of a run that are left.

    Args:
        setup, training, checkpoints, observers, measuring: The run.
    """

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
        on_step: Callback | None,
        on_epoch: Callback | None,
        missed: Sequence[Step | Epoch] | None = None,
    ) -> Result:
        """Train until a stop rule holds.

        Args:
            beginning: Where the run began.
            on_step, on_epoch: Called with each record.
            missed: Records that others have made before a rank died, and this one has not; None
                where none has died.
        """
        training, config = self._training, self._config
        stopped: str | None = None
        for record in missed or ():
            self._note(on_step if isinstance(record, Step) else on_epoch, record)
        if missed is not None:
            stopped = self._repeat()
        self._observers.compare_clocks()
        while stopped is None:
            if training.epoch > config.epochs:
                stopped = "epochs"
                break
            if config.pause_after is not None and training.epoch > config.pause_after:
                stopped = "pause"
                break
            if config.steps is not None and training.number >= config.steps:
                stopped = "steps"
                break
            number = training.epoch
            with np.errstate(over="ignore", invalid="ignore"):  # reported by rank and step instead
                epoch = self._epoch(number, on_step)
            if epoch is None:
                self._save()
                stopped = "signal"
                break
            training.history.append(epoch)
            if training.position == training.sampler.steps:
                training.epoch, training.position = number + 1, 0
            self._note(on_epoch, epoch)
            self._observers.compare_clocks()
            stopped = self._end_epoch(epoch)
        raise_together(self._workers, "a callback", training.failure)  # that of the last epoch
        return Result(
            arrays.hosted(training.weights.views),
            tuple(training.history),
            training.number,
            beginning,
            stopped,
            {} if stopped in ("signal", "pause") else self._test(training.history),
            buffers=arrays.hosted(training.buffers.views),
        )

    def _end_epoch(self, epoch: Epoch) -> str | None:
        """Keep a checkpoint after an epoch; why the run ends with it, if it does."""
        stopped = self._reason(epoch)
        if self._config.checkpoint_every is None or stopped is not None:
            self._save()
        return stopped

    def _repeat(self) -> str | None:
        """Do what a death may have kept the ranks from, after a step or an epoch."""
        training = self._training
        over = training.stop or training.number == self._config.steps
        measured = training.history[-1].number if training.history else 0
        if measured and (not training.position or (over and measured == training.epoch)):
            return self._end_epoch(training.history[-1])
        if training.number and self._checkpoints.is_due() and not training.stop:
            self._save()
        return None

    def _save(self) -> None:
        training = self._training
        self._checkpoints.save(training.epoch, training.position, training.history)

    def _test(self, history: list[Epoch]) -> Measures:
        """Measures of the test set at the end; those of the last epoch, where it has them."""
        if history and history[-1].test:
            return history[-1].test
        evaluated = self._training.evaluated()
        found, _ = self._measuring.measure(("test",), evaluated, "measuring the test set")
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
        if isinstance(record, Step):
            self._training.told = record.number
        try:
            self._observers.add(record)
            if callback is not None:
                self._training.asked |= callback(record) is True
        except Exception as error:
            self._training.failure = error

    def _epoch(self, number: int, on_step: Callback | None) -> Epoch | None:
        """Make the steps of an epoch (counted from 1) that are left, and measure where they led.

        Returns:
            The epoch, or None if a signal ended it.
        """
        training = self._training
        training.compute[:] = 0
        if not training.position:
            training.losses[:] = 0
        skipped, exposed = training.skipped, 0.0
        start = time.perf_counter()
        for step in training.steps(number, training.position):
            exposed += step.exposed + step.waiting
            self._note(on_step, step)
            if self._checkpoints.is_due() and not training.stop:
                self._save()
        if training.interrupted:
            return None
        seconds = time.perf_counter() - start
        share = exposed / seconds
        return self._measure(number, seconds, share, training.skipped - skipped)

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
