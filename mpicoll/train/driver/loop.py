"""A training run: data, model and ranks made ready, and trained until it is finished.

Where ranks may die, those that are left make another attempt, from where the last one ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpicoll.errors import RankLost
from mpicoll.train import optimizers
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, load
from mpicoll.train.driver import data_servers, memory, recovery, seating
from mpicoll.train.driver.attempt import Attempt, Callbacks, Death
from mpicoll.train.driver.callbacks import OnBegin, OnEpoch, OnStep
from mpicoll.train.driver.metrics import class_name, described
from mpicoll.train.driver.preparation import Given, prepare, reseated
from mpicoll.train.driver.printer import Printer
from mpicoll.train.driver.progress import shown
from mpicoll.train.models import Measure, Model
from mpicoll.train.optimizers import Optimizer, Update
from mpicoll.train.ranks import signals
from mpicoll.train.ranks.guarded import GuardedWorkers
from mpicoll.train.ranks.members import Members, Wanted
from mpicoll.train.ranks.survivors import Survivors
from mpicoll.train.ranks.workers import AllReduceWorkers, TrainingError, together
from mpicoll.train.records import Result
from mpicoll.train.schedules import Schedule
from mpicoll.train.strategies import placement
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
    quiet: bool = False,
) -> Result:
    """Train; collective over `comm`.

    Args:
        config: The configuration, equal on all ranks.
        comm: An `mpicoll.Intracomm`. None trains in this process alone, without MPI.
        dataset: Data to use instead of those in `config`.
        model: Model to use instead of the one in `config`.
        optimizer: Optimizer to use instead of the one in `config`, also on parameter servers. A
            function is called like `optimizers.Optimizer.update` and keeps no arrays.
        schedule: Function from the number of a step, counted from 1, to its learning rate, instead
            of `lr`, `schedule` and `warmup` in `config`; called for all steps before the first.
        measures: Measures of held-out samples beside the loss. None: accuracy, or R² for squared
            errors.
        on_begin: Called before the first step, with a `Beginning`.
        on_step: Called after each step, with a `Step`. If it returns True on any rank, all ranks
            stop after the next step. A function with two arguments also gets the parameters:
            read-only views by name, which the next step changes.
        on_epoch: Called after each epoch, with an `Epoch`; otherwise as `on_step`.
        quiet: Print nothing. Otherwise rank 0 prints what `mpicoll train` prints: what is trained,
            where it resumes, a line for each epoch, and the result.

    Returns:
        Parameters and history, on every rank. If ranks share the model, each has its own parts. A
        spare rank that did not train returns what rank 0 returns.

    With `config.survive` ranks may die, and the others continue.

    Raises:
        RankLost: Ranks have died and the others cannot continue; or the others have given up this
            process, because it was stopped for too long.
        TrainingError: Data are missing, ranks disagree, too many steps are not finite, or a model
            or a callback raised an exception. Raised on all ranks, even if only one has failed.
    """
    given = Given(dataset, model, None if optimizer is None else optimizers.wrapped(optimizer))
    callbacks = Callbacks(schedule, on_begin, on_step, on_epoch)
    if quiet:
        return train(config, comm, given, measures, callbacks)
    with shown() as progress:
        brought = {
            "model": class_name(model),
            "optimizer": class_name(given.optimizer),
            "schedule": None if schedule is None else "its own learning rates",
        }
        printer = Printer(config, comm, progress, brought)
        result = train(config, comm, given, measures, replace(callbacks, printer=printer))
    printer.end(result)
    return result


def train(
    config: Config,
    comm: MPI.Intracomm | None,
    given: Given,
    measures: Sequence[Measure] | None,
    callbacks: Callbacks,
) -> Result:
    """Train as `run` does; collective.

    Args:
        config, comm: As of `run`.
        given: Data, model and optimizer that the program brings.
        measures, callbacks: As of `run`.

    Raises:
        RankLost, TrainingError: As `run`.
    """
    if comm is not None and config.data_servers:
        needed = memory.reading(config) if given.dataset is None else {}
        return data_servers.run(
            config,
            comm,
            needed,
            lambda: given.dataset or load(config.dataset, config.data, config.context),
            lambda alone, group, dataset: train(
                alone, group, given._replace(dataset=dataset), measures, callbacks
            ),
        )
    if config.survive:
        members = members_of(config, comm)
        return run_on(members, config, given, measures, callbacks)
    setup, measuring = prepare(config, comm, given, measures)
    attempt = Attempt(setup, measuring, callbacks, _described(setup, given))
    with signals.heard(attempt.hear):
        return attempt.run()


def _described(setup: Setup, given: Given) -> dict[str, Any]:
    """A run's configuration, and which data they are, for the metrics."""
    about = setup.dataset.about
    return described(setup.config, *given) | ({"about": about} if about else {})


def members_of(config: Config, comm: MPI.Intracomm | None) -> Members:
    """The ranks of a run that outlives some of them; collective.

    Raises:
        TrainingError: It cannot; with the reason and the remedy, the same on all ranks.
        RankLost: A rank has died.
    """
    if comm is None:
        raise TrainingError(
            "survive is of the ranks of a communicator, and there is none: give comm, or leave "
            "survive out"
        )

    def make(among: MPI.Intracomm) -> AllReduceWorkers:
        if strategy_of(config).notices_deaths:
            return Survivors(among, placement.titles(config, among.Get_size()))
        return GuardedWorkers(among, config.algorithm)

    return Members(comm, make, config.spares)


def run_on(
    members: Members,
    config: Config,
    given: Given,
    measures: Sequence[Measure] | None,
    callbacks: Callbacks,
) -> Result:
    """Train as `run` does, also when some of the members die; collective.

    Args:
        members: The ranks.
        config: What to do.
        given: Data, model and optimizer that the program brings.
        measures, callbacks: As of `run`.

    Raises:
        RankLost, TrainingError: As `run`.
    """
    workers = None if members.sleeps else members.workers
    comm = None if members.sleeps else members.comm
    # What depends on the number of ranks stays as it is with those that there are at the start.
    with together(members.workers, "sharing out the ranks"):
        count = config.worker_count(members.places)
    config = config.for_ranks(count)
    if config.has_parts:
        config = seating.counted(config, count)
    waits = members.sleeps and config.has_parts
    failed: TrainingError | None = None
    try:
        setup, measuring = prepare(config, comm, given, measures, workers, waits)
        words = _described(setup, given)
    except RankLost:
        raise
    except TrainingError as error:
        failed = error
    members.hear_all()  # before, the run could not go on
    attempt: Attempt | None = None

    def hear() -> None:
        if attempt is not None:
            attempt.hear()

    def kept() -> Training | None:
        return None if attempt is None else attempt.kept

    with signals.heard(hear):
        death: Death | None = None
        unheard: tuple[int, ...] = ()  # died before those that are left could begin an attempt
        while True:
            ended: Result | TrainingError | None = None
            try:
                failed = ended = members.failure(failed)
                if failed is None and members.sleeps:
                    unheard = ()
                    if callbacks.printer is not None:
                        callbacks.printer.pause()
                    told = members.sleep()
                    while isinstance(told, Wanted):
                        recovery.recover(members.everyone, None, kept())
                        told = members.sleep()
                    ended = told
                elif failed is None:
                    if death is not None:
                        setup = _regrouped(setup, members, config, given.optimizer)
                        measuring = measuring.on(members.workers)
                    attempt, unheard = Attempt(setup, measuring, callbacks, words, death), ()
                    ended = attempt.run()
                    if not members.tell_sleepers(ended):
                        ended = None
            except RankLost as error:
                if error.given_up is not None:
                    raise
                ended = None
            except TrainingError as error:
                ended = error
                members.tell_sleepers(error)
            noticed = time.perf_counter()
            if isinstance(ended, TrainingError):
                failed = ended  # also where a death is to be seen to first
            if members.all_finished(ended is not None):
                if attempt is not None:
                    attempt.close()
                if failed is not None:
                    raise failed
                assert isinstance(ended, Result)
                return ended
            if config.has_parts:
                before = kept()
                seats = [] if before is None else before.seats()
                lost = members.regroup(seats, partial(seating.chosen, config))
            else:
                lost = members.regroup()
            unheard = (*unheard, *lost)
            wake = members.wake if config.has_parts else None
            death = Death(unheard, noticed, attempt, members.sleeping, wake)


def _regrouped(setup: Setup, members: Members, began: Config, optimizer: Optimizer | None) -> Setup:
    """The same run on other ranks; collective.

    Args:
        setup: The run until now.
        members: The ranks.
        began: What was to be done at the start.
        optimizer: That of the program, if it brings one.
    """
    workers = members.workers
    if began.has_parts:
        # Spare ranks do not know where the model was cut by the times of its layers.
        cuts = [cut for cut in workers.gather(setup.config.cut) if cut != "auto"]
        with together(workers, "going on with the ranks that are left"):
            config = seating.fitted(replace(began, cut=cuts[0] if cuts else "auto"), workers.size)
        return reseated(setup, config, workers, members.comm, optimizer)
    config = workers.gather(setup.config)[0]
    with together(workers, "going on with the ranks that are left"):
        config.worker_count(workers.size)
    holding = setup.holding.on(workers)
    changed: dict[str, Any] = {"config": config, "workers": workers, "comm": members.comm}
    return replace(setup, holding=holding, **changed)
