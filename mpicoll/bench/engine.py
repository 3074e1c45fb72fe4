"""The measuring: which repetition comes when, and when there are enough.

All algorithms of one (collective, size) are measured together. In every round each of them that
still needs repetitions gets a visit, in an order shuffled anew, so that whatever drifts on the
machine meets all of them alike. The (collective, size) groups come in shuffled order too; the seed
is stored.

One repetition is one call, begun together by all ranks (`start`), and lasts as long as on the
slowest rank. Calls of a few microseconds are too short for that: up to 4 KiB, for collectives that
end everywhere at about the same time, a repetition is a batch of calls directly after one another.

Rank 0 decides, everyone follows: the others hold no times and take no decision.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.bench.records import Point
from mpicoll.bench.sizes import format_size
from mpicoll.bench.start import Start
from mpicoll.bench.stats import summarise
from mpicoll.bench.watchdog import Watchdog
from mpicoll.bench.workload import SYMMETRIC, WORKLOADS, Call, Workload, elements
from mpicoll.registry import Value
from mpicoll.tuning import NATIVE

BATCH_LIMIT = 4096
BATCH_CALLS = 1000
LEAST_SAMPLES = 9
_VISIT_SAMPLES = 10
_VISIT_SECONDS = 0.02
_OVERDRAFT = 3

_clock = time.perf_counter


@dataclass(frozen=True)
class Settings:
    """What to measure and how well.

    Attributes:
        algorithms: Names of the algorithms for each collective, in the order of the report.
        sizes: Bytes of the total vector.
        dtype: Element type.
        op: Name of the operator for collectives that reduce.
        root: Root for collectives that have one.
        warmup: Calls before the first repetition of each point.
        precision: Wanted half width of the 95 % interval of the median, relative to it.
        iterations: Exact number of repetitions instead of stopping by precision and time.
        point_seconds: Time for one point.
        budget: Seconds for the whole sweep; a point gets its share of what is left.
        check: Whether outputs are checked before and after the repetitions.
        seed: Of the order.
        timeout: Seconds without progress after which the job is ended.
        parameters: Of all algorithms but the library's own.
    """

    algorithms: dict[str, tuple[str, ...]]
    sizes: tuple[int, ...]
    dtype: np.dtype[Any]
    op: str = "sum"
    root: int = 0
    warmup: int = 5
    precision: float = 0.025
    iterations: int | None = None
    point_seconds: float = 2.0
    budget: float | None = None
    check: bool = True
    seed: int = 0
    timeout: float = 120.0
    parameters: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """A point that could not be measured, and why."""

    collective: str
    algorithm: str
    size: int
    reason: str


Report = Callable[["Point | Skipped"], None]


@dataclass
class _Trial:
    """One algorithm of a group while it is measured; the times are on rank 0 only."""

    algorithm: str
    call: Call
    batch: int = 1
    visit: int = 1
    times: list[float] = field(default_factory=list)
    slowest: list[int] = field(default_factory=list)
    spent: float = 0.0
    first: float = 0.0
    wrong: int = 0
    problem: str | None = None
    stop: str | None = None
    look_at: int = LEAST_SAMPLES


def groups(settings: Settings, ranks: int) -> list[tuple[str, int]]:
    """The (collective, elements) pairs of a sweep, each once, in the order of a report."""
    itemsize = settings.dtype.itemsize
    return list(
        dict.fromkeys(
            (collective, elements(collective, size, itemsize, ranks))
            for collective in settings.algorithms
            for size in settings.sizes
        )
    )


def sweep(
    comm: MPI.Intracomm,
    settings: Settings,
    report: Report,
    *,
    run: str = "",
    oversubscribed: bool = False,
) -> None:
    """Measure every algorithm at every size. Collective.

    Args:
        comm: The communicator to measure, with methods that take ``algorithm=``.
        settings: The same on every rank.
        report: Called on rank 0 with each finished or skipped point.
        run: Name of the run, copied into the points.
        oversubscribed: Copied into the points.

    Raises:
        ValueError: on every rank alike, if the settings make no sense.
        RuntimeError: on every rank alike, if an algorithm refuses to run on some ranks only.
    """
    bench = _Bench(comm, settings, run, oversubscribed)
    todo = groups(settings, comm.Get_size())
    bench.order.shuffle(todo)
    deadline = None if settings.budget is None else _clock() + settings.budget
    try:
        while todo:
            collective, count = todo.pop()
            share = settings.point_seconds
            if deadline is not None:
                left = max(0.0, deadline - _clock()) / (len(todo) + 1)
                share = min(share, left / len(settings.algorithms[collective]))
            for outcome in bench.group(collective, count, share):
                report(outcome)
    finally:
        bench.watchdog.stop()
    bench.free()


class _Bench:
    """What all groups of a sweep share, and the measuring of one group."""

    def __init__(
        self, comm: MPI.Intracomm, settings: Settings, run: str, oversubscribed: bool
    ) -> None:
        self.comm, self.plain, self.settings = comm, MPI.Intracomm(comm), settings
        self.run, self.oversubscribed = run, oversubscribed
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.order = random.Random(settings.seed)
        # The dissemination barrier and the decisions of rank 0 travel beside the measured calls,
        # never among them; so do the words of the watchdog.
        self.control = MPI.Intracomm(comm).Dup()
        self.alarm = MPI.Intracomm(comm).Dup()
        self.start = Start(self.control)
        self.watchdog = Watchdog(self.alarm, settings.timeout)

    def free(self) -> None:
        """Free the communicators. Collective."""
        self.start.free()
        self.control.Free()
        self.alarm.Free()

    def group(self, collective: str, count: int, share: float) -> list[Point | Skipped]:
        """Measure all algorithms of a collective at one size; the outcomes, on rank 0.

        Args:
            collective: Name of the collective.
            count: Elements of the total vector.
            share: Seconds for one algorithm.
        """
        settings = self.settings
        work = WORKLOADS[collective](self.comm, count, settings.dtype, settings.op, settings.root)
        outcomes: list[Point | Skipped] = []
        trials = []
        algorithms = list(settings.algorithms[collective])
        self.order.shuffle(algorithms)
        for name in algorithms:
            # The library's own collective as a user without this package would call it.
            if name == NATIVE:
                call = work.bind(self.plain)
            else:
                call = work.bind(self.comm, algorithm=name, **settings.parameters)
            trial = _Trial(name, call)
            begin = _clock()
            refusal = self._first_call(work, trial)
            if refusal is not None:
                outcomes.append(Skipped(collective, name, work.size, refusal))
                continue
            self._warm_up(work, trial, share)
            trial.spent = _clock() - begin
            trials.append(trial)
        self._repeat(work, trials, share)
        if settings.check:
            for trial in trials:
                self._final_check(work, trial)
        if self.rank == 0:
            outcomes += [self._point(work, trial) for trial in trials]
        return outcomes if self.rank == 0 else []

    def _first_call(self, work: Workload, trial: _Trial) -> str | None:
        """Call once, checked; why the algorithm refuses to run, if it does."""
        self.watchdog.enter(f"the first call of {_name(work, trial)}")
        work.poison()
        refusal = None
        self.start()
        begin = _clock()
        try:
            trial.call()
        except (TypeError, ValueError, NotImplementedError) as error:
            refusal = str(error)
        seconds = _clock() - begin
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
        self.start()
        trial.call()
        self._count_wrong(work, trial)

    def _count_wrong(self, work: Workload, trial: _Trial) -> None:
        found = self.control.gather(work.check(self.rank))
        for wrong, where in found or ():
            trial.wrong += wrong
            if trial.problem is None and where is not None:
                trial.problem = str(where)

    def _warm_up(self, work: Workload, trial: _Trial, share: float) -> None:
        """Call untimed, and choose how many calls a repetition and a visit have."""
        self.watchdog.enter(f"the warm-up of {_name(work, trial)}")
        self.start()
        begin = _clock()
        for _ in range(self.settings.warmup):
            trial.call()
        seconds = self.control.reduce(_clock() - begin, op=MPI.MAX)
        if seconds is not None:
            estimate = seconds / self.settings.warmup if self.settings.warmup else trial.first
            trial.batch = _batch_calls(work, estimate, share)
            trial.visit = _visit_samples(estimate * trial.batch, self.settings.iterations)
        trial.batch, trial.visit = self.control.bcast((trial.batch, trial.visit))

    def _repeat(self, work: Workload, trials: list[_Trial], share: float) -> None:
        """Visit the trials in turn until rank 0 says of each that it has enough."""
        waiting = list(range(len(trials)))
        while waiting:
            self.order.shuffle(waiting)
            for index in waiting:
                self._visit(work, trials[index])
            if self.rank == 0:
                waiting = [index for index in waiting if not self._enough(trials[index], share)]
            waiting = self.control.bcast(waiting)

    def _visit(self, work: Workload, trial: _Trial) -> None:
        """Some repetitions of one algorithm, one after another."""
        self.watchdog.enter(_name(work, trial))
        begin = _clock()
        gc.disable()
        try:
            own = repetitions(trial.call, self.start, trial.batch, trial.visit)
        finally:
            gc.enable()
        times = self.control.gather(own)
        if times is None:
            return
        for repetition in zip(*times, strict=True):
            longest = max(repetition)
            trial.times.append(longest)
            trial.slowest.append(repetition.index(longest))
        trial.spent += _clock() - begin

    def _enough(self, trial: _Trial, share: float) -> bool:
        """Whether a trial is done, noting why; asked on rank 0, which holds the times."""
        n, settings = len(trial.times), self.settings
        if settings.iterations is not None:
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

    def _point(self, work: Workload, trial: _Trial) -> Point:
        assert trial.stop is not None
        return Point(
            run=self.run,
            collective=work.collective,
            algorithm=trial.algorithm,
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
            wrong=trial.wrong if self.settings.check else None,
            problem=trial.problem,
            stop=trial.stop,
            oversubscribed=self.oversubscribed,
            parameters={} if trial.algorithm == NATIVE else self.settings.parameters,
        )


def repetitions(call: Call, start: Callable[[], None], batch: int, count: int) -> Sequence[float]:
    """Seconds that one call took on this rank, in each of ``count`` repetitions.

    A repetition starts when all ranks are there and is ``batch`` calls; the start is not timed.
    """
    seconds = []
    for _ in range(count):
        calls = range(batch)
        start()
        begin = _clock()
        for _ in calls:
            call()
        seconds.append((_clock() - begin) / batch)
    return seconds


def _batch_calls(work: Workload, estimate: float, share: float) -> int:
    """Calls of a repetition: 1, or up to 1000 where calls are short and may be batched."""
    if work.collective not in SYMMETRIC or work.size > BATCH_LIMIT:
        return 1
    fitting = share / (LEAST_SAMPLES * estimate) if estimate > 0 else BATCH_CALLS
    return max(1, min(BATCH_CALLS, int(fitting)))


def _visit_samples(estimate: float, iterations: int | None) -> int:
    """Repetitions of a visit: as many as are short enough for others not to wait long."""
    fitting = int(_VISIT_SECONDS / estimate) if estimate > 0 else _VISIT_SAMPLES
    samples = max(1, min(_VISIT_SAMPLES, fitting))
    if iterations is None:
        return samples
    return max(divisor for divisor in range(1, samples + 1) if iterations % divisor == 0)


def _name(work: Workload, trial: _Trial) -> str:
    return f"{work.collective} {trial.algorithm} of {format_size(work.size)}"
