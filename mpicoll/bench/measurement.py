"""The measuring of one group: algorithms of one collective, size and number of ranks, by turns.

In every round each of them that still needs repetitions gets a visit, in an order shuffled anew, so
that whatever drifts on the machine meets all of them alike.

One repetition is one call, begun together by all ranks (`start`), and lasts as long as on the
slowest rank. Calls of a few microseconds are too short for that: up to 4 KiB, for collectives that
end everywhere at about the same time, a repetition is a batch of calls directly after one another.

Rank 0 decides, everyone follows: the others hold no times and take no decision.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import numpy as np
from mpi4py import MPI

from mpicoll.base.arrays import stopwatch
from mpicoll.base.sizes import format_size
from mpicoll.bench.records import Point
from mpicoll.bench.repetition import (
    LEAST_SAMPLES,
    batch_calls,
    in_turn,
    pool,
    repetitions,
    visit_samples,
)
from mpicoll.bench.settings import Group, SweepSettings
from mpicoll.bench.start import Barrier, Start, Window, next_window
from mpicoll.bench.stats import summarise
from mpicoll.bench.watchdog import CaseTimeout
from mpicoll.bench.workload import AUTO, BoundCall, Workload, prepare
from mpicoll.schedule.methods import VARIANTS
from mpicoll.schedule.parameters import read_words
from mpicoll.tuning import NATIVE

_OVERDRAFT = 3
_TOO_LATE = (
    "no repetition began in time on all ranks, so busy is the machine; take --start barrier, or "
    "fewer ranks than cores"
)
#: Length of a window over the time of a repetition, and seconds added to it.
_WINDOW, _WINDOW_MORE = 2.0, 1e-4

_clock = time.perf_counter

#: Errors by which a call says that it cannot be made; they come on all ranks.
_REFUSALS = (TypeError, ValueError, NotImplementedError, BufferError)


@dataclass(frozen=True)
class Skipped:
    """A point that could not be measured, and why."""

    collective: str
    algorithm: str
    size: int
    reason: str
    ranks: int = 0


@dataclass
class _Trial:
    """One choice of a group while it is measured; the times are on rank 0 only."""

    choice: str
    call_at: Callable[[int], BoundCall]
    batch: int = 1
    visit: int = 1
    shortest_window: float = 0.0
    window: float = 0.0
    times: list[float] = field(default_factory=list)
    slowest: list[int] = field(default_factory=list)
    late: int = 0
    spent: float = 0.0
    first: float = 0.0
    wrong: int = 0
    problem: str | None = None
    stop: str | None = None
    look_at: int = LEAST_SAMPLES


class Bench:
    """Measures groups on one communicator.

    Args:
        comm: The communicator to measure, with methods that take ``algorithm=``.
        settings: The same on every rank.
        run: Name of the run, copied into the points.
        oversubscribed: Copied into the points.
        beat: Called on rank 0 with what is measured, again and again.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        settings: SweepSettings,
        run: str = "",
        oversubscribed: bool = False,
        beat: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.comm, self.plain, self.settings = comm, MPI.Intracomm(comm), settings
        self.run, self.oversubscribed, self.beat = run, oversubscribed, beat
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        # All ranks draw from the first alike, rank 0 alone draws from the second.
        self.order, self.turns = random.Random(settings.seed), random.Random(settings.seed)
        # The dissemination barrier and the decisions of rank 0 travel beside the measured calls,
        # never among them; so do the words of the watchdog.
        self.control = MPI.Intracomm(comm).Dup()
        self.alarm = MPI.Intracomm(comm).Dup()
        self.barrier = Barrier(self.control)
        self.start: Start = self.barrier if settings.start == "barrier" else Window(self.control)
        self.pool = pool(self.control) if settings.cold else 0
        self.watch = stopwatch(settings.device)
        self.watchdog = CaseTimeout(self.alarm, settings.timeout)

    def free(self) -> None:
        """Free the communicators. Collective."""
        self.start.free()
        self.barrier.free()
        self.control.Free()
        self.alarm.Free()

    def measure(self, group: Group, share: float) -> list[Point | Skipped]:
        """Measure all algorithms of a group; the outcomes, on rank 0. Collective.

        Args:
            group: What to measure.
            share: Seconds for one algorithm.

        Raises:
            RuntimeError: on every rank alike, if an algorithm refuses to run on some ranks only.
        """
        settings = self.settings
        work = prepare(
            self.comm,
            group.collective,
            group.count,
            group.dtype,
            settings.op,
            settings.root,
            in_place=settings.in_place,
            skew=settings.skew,
            pool=self.pool,
            device=settings.device,
        )
        if self.pool:
            # What was filled last would still be in the caches.
            np.empty(self.pool, np.uint8).fill(1)
        places = in_turn(work.places)
        outcomes: list[Point | Skipped] = []
        trials = []
        algorithms = list(group.algorithms)
        self.order.shuffle(algorithms)
        for name in algorithms:
            trial = _Trial(name, self._caller(work, name))
            begin = _clock()
            refusal = self._first_call(work, trial)
            if refusal is not None:
                outcomes.append(Skipped(group.collective, name, work.size, refusal, self.size))
                continue
            self._warm_up(work, trial, places, share)
            trial.spent = _clock() - begin
            trials.append(trial)
        self._repeat(work, trials, places, share)
        if settings.check:
            for trial in trials:
                self._final_check(work, trial)
        if self.rank == 0:
            outcomes += [self._outcome(work, trial) for trial in trials]
        return outcomes if self.rank == 0 else []

    def _caller(self, work: Workload, words: str) -> Callable[[int], BoundCall]:
        """Gives the call in each of the places for its buffers."""
        algorithm, parameters = read_words(words)
        # The library's own collective as a user without this package would call it.
        if algorithm == NATIVE:
            # Without this package it would be given addresses that it may not know.
            on_host = self.settings.device == "cpu"
            plain = {} if on_host else {"algorithm": NATIVE}
            return partial(work.bind, self.plain if on_host else self.comm, **plain)
        if algorithm == AUTO:
            return partial(work.bind, self.comm)
        return partial(work.bind, self.comm, algorithm=algorithm, **parameters)

    def _first_call(self, work: Workload, trial: _Trial) -> str | None:
        """Call once, checked; why the algorithm refuses to run, if it does."""
        self.watchdog.enter(f"the first call of {_name(work, trial)}")
        work.poison()
        call, refusal = trial.call_at(0), None
        self.barrier()
        begin = self.watch.mark()
        try:
            call()
        except _REFUSALS as error:
            refusal = str(error)
        seconds = self.watch.seconds(begin, self.watch.mark())
        refusals = self.control.allgather(refusal)
        if refusal is not None and None not in refusals:
            return refusal
        for rank, reason in enumerate(refusals):
            if reason is not None:
                raise RuntimeError(
                    f"{_name(work, trial)} runs on some ranks and not on rank {rank}: {reason}"
                )
        trial.first = self.control.reduce(seconds, op=MPI.MAX) or 0.0
        if self.settings.check:
            self._count_wrong(work, trial)
        return None

    def _final_check(self, work: Workload, trial: _Trial) -> None:
        """Call once more after all repetitions, checked."""
        self.watchdog.enter(f"the last call of {_name(work, trial)}")
        work.poison()
        self.barrier()
        trial.call_at(0)()
        self._count_wrong(work, trial)

    def _count_wrong(self, work: Workload, trial: _Trial) -> None:
        found = self.control.gather(work.check(self.rank))
        for wrong, where in found or ():
            trial.wrong += wrong
            if trial.problem is None and where is not None:
                trial.problem = str(where)

    def _warm_up(self, work: Workload, trial: _Trial, places: Iterator[int], share: float) -> None:
        """Call untimed, and choose how many calls a repetition and a visit have."""
        self.watchdog.enter(f"the warm-up of {_name(work, trial)}")
        calls = [trial.call_at(next(places)) for _ in range(self.settings.warmup)]
        self.barrier()
        begin = self.watch.mark()
        for call in calls:
            call()
        taken = self.watch.seconds(begin, self.watch.mark())
        seconds = self.control.reduce(taken, op=MPI.MAX)
        if seconds is not None:
            estimate = seconds / self.settings.warmup if self.settings.warmup else trial.first
            # Cold calls are measured one by one: each needs buffers that no other has touched.
            samples = max(LEAST_SAMPLES, self.settings.iterations or 0)
            trial.batch = 1 if self.pool else batch_calls(work, estimate, share, samples)
            trial.visit = visit_samples(estimate, trial.batch)
            trial.shortest_window = _WINDOW * estimate * trial.batch + _WINDOW_MORE
            trial.window = trial.shortest_window
        trial.batch = self.control.bcast(trial.batch)

    def _repeat(
        self, work: Workload, trials: list[_Trial], places: Iterator[int], share: float
    ) -> None:
        """Visit the trials in turn until rank 0 says of each that it has enough."""
        supplies: list[Iterator[BoundCall]]
        if work.places == 1:
            supplies = [repeat(trial.call_at(0)) for trial in trials]
        else:
            # One turn of all places for all trials: none finds what another has used before it.
            supplies = [map(trial.call_at, places) for trial in trials]
        while visits := self.control.bcast(self._next_visits(trials, share)):
            if self.rank == 0:
                self.beat(f"{work.collective} {format_size(work.size)}, P = {self.size}")
            for index, count, window in visits:
                self._visit(work, trials[index], supplies[index], count, window)

    def _next_visits(self, trials: list[_Trial], share: float) -> list[tuple[int, int, float]]:
        """Of each trial that has not enough: its index, repetitions and window; on rank 0."""
        if self.rank:
            return []
        most, visits = self.settings.iterations, []
        for index, trial in enumerate(trials):
            if not self._enough(trial, share):
                count = trial.visit if most is None else min(trial.visit, most - len(trial.times))
                visits.append((index, count, trial.window))
        self.turns.shuffle(visits)
        return visits

    def _visit(
        self, work: Workload, trial: _Trial, calls: Iterator[BoundCall], count: int, window: float
    ) -> None:
        """Some repetitions of one algorithm, one after another."""
        self.watchdog.enter(_name(work, trial))
        begin = _clock()
        self.start.name_moments(window)
        gc.disable()
        try:
            own = repetitions(calls, self.start, trial.batch, count, self.watch)
        finally:
            gc.enable()
        measured = self.control.gather(own)
        if measured is None:
            return
        late = 0
        for repetition in zip(*measured, strict=True):
            if any(was_late for _, was_late in repetition):
                late += 1
                continue
            seconds = [each for each, _ in repetition]
            longest = max(seconds)
            trial.times.append(longest)
            trial.slowest.append(seconds.index(longest))
        trial.late += late
        longest_window = self.settings.point_seconds / LEAST_SAMPLES
        trial.window = next_window(window, trial.shortest_window, longest_window, late / count)
        trial.spent += _clock() - begin

    def _enough(self, trial: _Trial, share: float) -> bool:
        """Whether a trial is done, noting why; asked on rank 0, which holds the times."""
        n, settings = len(trial.times), self.settings
        if trial.late and trial.spent >= _OVERDRAFT * share:
            trial.stop = "time"
        elif n == 0:
            return False
        elif settings.iterations is not None:
            if n >= settings.iterations:
                trial.stop = "iterations"
        elif n >= trial.look_at and summarise(trial.times).half_width <= settings.precision:
            trial.stop = "interval"
        elif trial.spent >= share and (n >= LEAST_SAMPLES or trial.spent >= _OVERDRAFT * share):
            trial.stop = "time"
        if n >= trial.look_at:
            # Looking after every visit would make it likelier to stop at a lucky moment.
            trial.look_at = n + max(1, n // 4)
        return trial.stop is not None

    def _outcome(self, work: Workload, trial: _Trial) -> Point | Skipped:
        assert trial.stop is not None
        settings = self.settings
        if not trial.times:
            return Skipped(work.collective, trial.choice, work.size, _TOO_LATE, self.size)
        algorithm, parameters = read_words(trial.choice)
        return Point(
            run=self.run,
            collective=work.collective,
            algorithm=algorithm,
            size=work.size,
            count=work.count,
            type=work.type,
            redop=work.redop,
            root=work.root,
            ranks=self.size,
            batch=trial.batch,
            times=tuple(float(f"{t:.6g}") for t in trial.times),
            slowest=tuple(trial.slowest),
            first=trial.first,
            wrong=trial.wrong if settings.check else None,
            problem=trial.problem,
            stop=trial.stop,
            oversubscribed=self.oversubscribed,
            parameters=parameters,
            cache="cold" if settings.cold else "warm",
            launch=settings.launch,
            start=settings.start,
            late=trial.late,
            in_place=work.in_place,
            skew=settings.skew if VARIANTS[work.collective].varies else 0.0,
            device=settings.device,
        )


def _name(work: Workload, trial: _Trial) -> str:
    return f"{work.collective} {trial.choice} of {format_size(work.size)}"
