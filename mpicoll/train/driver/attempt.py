"""One attempt to finish a run, by the ranks that are there: from where the last one ended, on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpicoll.errors import RankLost
from mpicoll.train import schedules
from mpicoll.train.driver import predicted, recovery
from mpicoll.train.driver.callbacks import OnBegin, OnEpoch, OnStep, read_only, seeing
from mpicoll.train.driver.checkpointing import Checkpointing
from mpicoll.train.driver.epochs import Epochs
from mpicoll.train.driver.fence import Fence
from mpicoll.train.driver.measuring import Measuring
from mpicoll.train.driver.metrics import locked
from mpicoll.train.driver.observers import Observers
from mpicoll.train.driver.printer import Printer
from mpicoll.train.ranks.stacks import Stacks
from mpicoll.train.ranks.workers import TrainingError, Workers, together
from mpicoll.train.records import Beginning, Epoch, Loss, Result, Step
from mpicoll.train.schedules import Schedule
from mpicoll.train.strategies.protocol import strategy_of
from mpicoll.train.strategies.training import Setup, Training


@dataclass(frozen=True)
class Callbacks:
    """Functions of the user, as `mpicoll.train.run` takes them, and what prints the run."""

    schedule: Schedule | None = None
    on_begin: OnBegin | None = None
    on_step: OnStep | None = None
    on_epoch: OnEpoch | None = None
    printer: Printer | None = None


@dataclass(frozen=True)
class Death:
    """Ranks have died, and the others are to go on.

    Attributes:
        ranks: Those, by their numbers at the start.
        noticed: When this rank heard of it, by `time.perf_counter`.
        before: The attempt that they ended; None on a rank that slept.
        spare: So many of those that are left wait until they are needed.
        wake: Gives the ranks that put the state together, where those that sleep are to help;
            None: those that train.
    """

    ranks: tuple[int, ...]
    noticed: float
    before: Attempt | None
    spare: int = 0
    wake: Callable[[], Workers] | None = None


class Attempt:
    """What this rank does in an attempt; all ranks of `setup` make one together.

    Args:
        setup, measuring: The run, as `preparation.prepare` gives it.
        callbacks: Functions of the user.
        described: The configuration, for the metrics.
        death: Why it is not the first one.

    Attributes:
        kept: What this rank holds of the run; None where it slept until now.
        beginning: Where the run began; likewise.
        fence: That of the files; likewise.
        losses: Deaths so far, of which the others have gone on.
        dead: Ranks whose death the others have not gone on from.
        signalled: A signal has asked the run to stop.
    """

    def __init__(
        self,
        setup: Setup,
        measuring: Measuring,
        callbacks: Callbacks,
        described: Mapping[str, Any],
        death: Death | None = None,
    ) -> None:
        self._setup, self._measuring, self._death = setup, measuring, death
        self._callbacks, self._described = callbacks, described
        self._open: list[Checkpointing | Observers] = []
        self._training: Training | None = None
        self.kept: Training | None = None
        self.beginning: Beginning | None = None
        self.fence: Fence | None = None
        self.losses: tuple[Loss, ...] = ()
        self.signalled = False
        self.dead: tuple[int, ...] = () if death is None else death.ranks
        before = self._before = None if death is None else death.before
        if before is not None:
            self.losses, self.signalled = before.losses, before.signalled
            self.dead = (*before.dead, *self.dead)
            if before.kept is None:  # nothing was begun
                before.close()
            else:
                self.kept, self.beginning, self.fence = before.kept, before.beginning, before.fence

    def hear(self) -> None:
        """A signal asks the run to stop."""
        self.signalled = True
        if self._training is not None:
            self._training.signalled = True

    def run(self) -> Result:
        """Until a stop rule holds.

        Where ranks may die, files then stay open, and locked, until `close`: others may have to
        make another attempt.

        Raises:
            TrainingError: As `mpicoll.train.run`.
            RankLost: A rank has died; files stay open until the next attempt is ready.
        """
        setup, config, workers = self._setup, self._setup.config, self._setup.workers
        training = self._training = strategy_of(config).make(setup)
        checkpoints = Checkpointing(setup, training, self.fence)
        self._open.append(checkpoints)
        stacks = Stacks(workers, config.hang_after, lambda: training.doing)
        observers: Observers | None = None
        goes_on = False
        try:
            if self._callbacks.schedule is not None:
                with together(workers, "asking the schedule"):
                    training.rates = schedules.table(self._callbacks.schedule, training.total)
            beginning, loss, missed = self._state(training, checkpoints)
            training.stamp = beginning.stamp
            with together(workers, "opening the metrics"):
                expected = predicted.seconds(setup.comm, config.algorithm, training.collectives)
                facts = self._described
                observers = Observers(
                    config, workers, setup.comm, expected, stacks, beginning, facts, self.fence
                )
                self._open.append(observers)
                if self._callbacks.printer is not None:
                    new = beginning if self._death is None else None
                    self._callbacks.printer.begin(setup.dataset, new, workers.rank == 0)
                    observers.watch(self._callbacks.printer)
                if self._callbacks.on_begin is not None and self._death is None:
                    self._callbacks.on_begin(beginning)
            if config.survive:
                self._raise_fence(checkpoints, observers)
            workers.begin()
            training.begin()
            training.signalled |= self.signalled
            if loss is not None:
                self._go_on(training, observers, loss)
            training.told = training.number
            self.kept = training
            epochs = Epochs(setup, training, checkpoints, observers, self._measuring)
            views = read_only(training.weights)
            assert self.beginning is not None
            result = epochs.result(
                self.beginning,
                seeing(self._callbacks.on_step, views),
                seeing(self._callbacks.on_epoch, views),
                missed,
            )
            training.close()
            goes_on = config.survive
        except RankLost:
            goes_on = config.survive
            raise
        except TrainingError:  # on all ranks together; after any other, messages may be under way
            training.close(failed=True)
            if observers is not None:
                observers.free()
            raise
        except BaseException:
            # It ends alone. Until the others take over its locks, these are to stay: who finds
            # none would think that the run has ended without it.
            goes_on = config.survive
            raise
        finally:
            stacks.close()
            if not goes_on:
                self.close()
        observers.free()
        return replace(
            result,
            communicated=observers.communicated,
            predicted=expected,
            lost=self.losses,
        )

    def close(self) -> None:
        """Close the files of this attempt, and of the one before."""
        while self._open:
            self._open.pop().close()
        if self._before is not None:
            self._before.close()
            self._before = None

    def _state(
        self, training: Training, checkpoints: Checkpointing
    ) -> tuple[Beginning, Loss | None, list[Step | Epoch] | None]:
        """Give the training the state to begin with, or to go on from; collective.

        Returns:
            Where it begins; what a death has cost; records that this rank has missed by it.
        """
        if self._death is None:
            self.beginning, training.history = checkpoints.restore()
            training.epoch, training.position = self.beginning.epoch, self.beginning.position
            return self.beginning, None, None
        workers, before = self._setup.workers, self.kept
        facts = self.beginning, self.losses, self.dead, self._before is not None
        known = workers.gather(facts)
        self.beginning, self.losses, self.dead, _ = known[0]
        everyone = workers if self._death.wake is None else self._death.wake()
        source, missed = recovery.recover(everyone, training, before)
        checkpoint = None
        if source is None:
            if not any(trained for *_, trained in known):
                raise TrainingError(
                    "all ranks that trained have died, and only spare ranks are left: resume from "
                    "the last checkpoint, or start again if there is none"
                )
            beginning, training.history = checkpoints.restore()
            training.epoch, training.position = beginning.epoch, beginning.position
            checkpoint = beginning.checkpoint
        else:
            with together(workers, "taking over the checkpoints"):
                if workers.rank == 0:
                    checkpoints.hold()
            run, attempt = training.stamp
            place = training.number, training.epoch, training.position
            beginning = Beginning(run, attempt + 1, *place)
        made = max(workers.gather(0 if before is None else before.made))
        repeated = max(0, made - beginning.step)
        self.beginning = self.beginning or beginning
        loss = Loss(
            self.dead, beginning.step, repeated, 0.0, checkpoint, workers.size, self._death.spare
        )
        return beginning, loss, missed

    def _go_on(self, training: Training, observers: Observers, loss: Loss) -> None:
        """The ranks that are left are ready for the next step."""
        assert self._death is not None
        seconds = time.perf_counter() - self._death.noticed
        loss = replace(loss, seconds=seconds)
        self.losses, self.dead = (*self.losses, loss), ()
        observers.add_loss(loss)
        if self.kept is not None:
            training.asked |= self.kept.asked
            training.failure = self.kept.failure
            training.before = self.kept
        if self._before is not None:
            self._before.close()
            self._before = None

    def _raise_fence(self, checkpoints: Checkpointing, observers: Observers) -> None:
        """See, from now on, whether others have taken the files that the first rank has locked."""
        config = self._setup.config
        paths = []
        if config.metrics is not None:
            paths.append(locked(Path(config.metrics)))
        if config.checkpoint is not None:
            paths.append(Path(config.checkpoint))
        if self.fence is not None:
            self.fence.close()
        self.fence = Fence(paths)
        checkpoints.heed(self.fence)
        observers.heed(self.fence)
