"""What to train next: machines that are asked for a job and told what came of it.

    method = Rungs(27, lambda trial: space.drawn(0, trial), rungs=(1, 3, 9), eta=3)
    while (job := method.ask()) is not None:
        method.tell(job, score)                # None: it has failed

A machine knows no clock, no ranks and no files. What it answers depends on its arguments and on the
order of calls alone, so the same calls give the same jobs again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space, Values

#: Of pbt: the share of the population that copies, and that is copied; factors of a value.
_SHARE, _FACTORS = 0.25, (0.8, 1.2)
#: What pbt may change of a run that goes on: a checkpoint is of any of these.
CHANGEABLE = ("lr", "momentum", "weight_decay", "dropout", "clip", "warmup")


@dataclass(frozen=True)
class Job:
    """A part of a trial's training.

    Attributes:
        trial: Number of the trial, from 0.
        values: Its keys of `Config`.
        epochs: Train until this number of epochs is complete.
        source: Trial and epochs of the checkpoint to continue from; None to begin.
    """

    trial: int
    values: Values
    epochs: int
    source: tuple[int, int] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Trial and epochs, which no other job of a search has."""
        return self.trial, self.epochs


class Method(ABC):
    """A search method: `ask` it for jobs, `tell` it their scores.

    Args:
        trials: Number of trials.
        drawn: Function from a trial to its values.

    Attributes:
        waiting: Jobs that were asked for and have no score yet.
        scores: Scores by trial and epochs; higher is better, minus infinity if it failed.
    """

    def __init__(self, trials: int, drawn: Callable[[int], Values]) -> None:
        self._trials, self._drawn = trials, drawn
        self.waiting: dict[tuple[int, int], Job] = {}
        self.scores: dict[tuple[int, int], float] = {}

    def ask(self) -> Job | None:
        """The next job, or None if there is none now; the search has ended if none is waiting."""
        job = self._next()
        if job is not None:
            self.waiting[job.place] = job
        return job

    def tell(self, job: Job, score: float | None) -> None:
        """A job is done.

        Args:
            job: One that was asked for.
            score: The score of its trial after these epochs, higher is better; None if it failed.

        Raises:
            KeyError: It was not asked for, or has a score already.
        """
        del self.waiting[job.place]
        self.scores[job.place] = -math.inf if score is None or math.isnan(score) else score
        self._told(job)

    def last(self) -> dict[int, int]:
        """The most epochs of each trial that has a score."""
        return dict(sorted(self.scores))

    @abstractmethod
    def _next(self) -> Job | None:
        """The next job, if there is one."""

    @abstractmethod
    def _told(self, job: Job) -> None:
        """A job has a score now."""


class Rungs(Method):
    """Asynchronous successive halving; with one rung, each trial is trained to the end.

    A trial that is in the top 1/eta of those that have been trained to a rung is promoted to the
    next, the highest rung first; where none can be, a new trial begins (L. Li et al. 2020,
    algorithm 2). No more than 1/eta of a rung are ever promoted: those that were among the best of
    a few and no longer are would otherwise add up (Y. Li et al., "Hyper-Tune", 2022: delayed).

    Args:
        trials, drawn: As of `Method`.
        rungs: Epochs of each, ascending.
        eta: One of `eta` trials is promoted.
    """

    def __init__(
        self, trials: int, drawn: Callable[[int], Values], rungs: Iterable[int], eta: int = 3
    ) -> None:
        super().__init__(trials, drawn)
        self._rungs, self._eta = tuple(rungs), eta
        self._begun = 0
        #: Of each rung: trials that were trained to it, and those of them that were promoted.
        self._reached: list[list[int]] = [[] for _ in self._rungs]
        self._promoted: list[set[int]] = [set() for _ in self._rungs]

    def _next(self) -> Job | None:
        for rung in reversed(range(len(self._rungs) - 1)):
            trial = self._promotable(rung)
            if trial is not None:
                self._promoted[rung].add(trial)
                source = trial, self._rungs[rung]
                return Job(trial, self._drawn(trial), self._rungs[rung + 1], source)
        if self._begun == self._trials:
            return None
        self._begun += 1
        return Job(self._begun - 1, self._drawn(self._begun - 1), self._rungs[0])

    def _promotable(self, rung: int) -> int | None:
        """The best trial that is in the top of a rung and was not promoted from it."""
        if len(self._promoted[rung]) >= len(self._reached[rung]) // self._eta:
            return None
        for trial in self.top(rung):
            if trial not in self._promoted[rung]:
                return trial
        return None

    def top(self, rung: int) -> list[int]:
        """The best 1/eta of the trials that have reached a rung; none that failed there."""
        epochs = self._rungs[rung]
        ranked = sorted(self._reached[rung], key=lambda t: (-self.scores[t, epochs], t))
        best = ranked[: len(ranked) // self._eta]
        return [trial for trial in best if self.scores[trial, epochs] > -math.inf]

    def _told(self, job: Job) -> None:
        self._reached[self._rungs.index(job.epochs)].append(job.trial)


class Population(Method):
    """Population based training, in which members do not wait for each other.

    A member that is among the worst quarter copies, after some epochs, the checkpoint of one of the
    best quarter that has trained at least as long, and changes its values by a factor
    (M. Jaderberg et al. 2017: truncation selection, and perturbation). A member that has failed
    copies, too, or ends. No member goes back, so that each trains at most a whole run. The member
    with the fewest epochs is next, so that members can be compared if there are more than groups.

    Args:
        trials, drawn: Size of the population; first values of each member.
        epochs: Epochs of a whole run.
        interval: Epochs between two comparisons.
        change: Function from copied values and a random generator to the new values.
        seed: Seed of the choice of members and of changes.
    """

    def __init__(
        self,
        trials: int,
        drawn: Callable[[int], Values],
        epochs: int,
        interval: int,
        change: Callable[[Values, np.random.Generator], Values],
        seed: int = 0,
    ) -> None:
        super().__init__(trials, drawn)
        self._epochs, self._interval, self._change, self._seed = epochs, interval, change, seed
        #: The last job of each member; and the last that was told of.
        self._asked: dict[int, Job] = {}
        self._complete: dict[int, Job] = {}

    def _next(self) -> Job | None:
        for member in sorted(range(self._trials), key=self._epochs_of):
            job = self._next_of(member)
            if job is not None:
                self._asked[member] = job
                return job
        return None

    def _epochs_of(self, member: int) -> int:
        return self._asked[member].epochs if member in self._asked else 0

    def _next_of(self, member: int) -> Job | None:
        last = self._asked.get(member)
        if last is None:
            return Job(member, self._drawn(member), min(self._interval, self._epochs))
        if last.place in self.waiting or last.epochs == self._epochs:
            return None
        failed = self.scores[last.place] == -math.inf
        if failed or self._is_among_worst(member):
            generator = np.random.default_rng((self._seed, member, last.epochs))
            donors = [job for job in self._best() if self._may_give(job, last)]
            if donors:
                donor = donors[int(generator.integers(len(donors)))]
                return self._going_on(member, self._change(donor.values, generator), donor.place)
        return None if failed else self._going_on(member, last.values, last.place)

    def _ranked(self) -> list[Job]:
        """The last complete job of each member, best first."""
        jobs = self._complete.values()
        return sorted(jobs, key=lambda job: (-self.scores[job.place], job.trial))

    def _quarter(self) -> int:
        return max(1, math.floor(_SHARE * len(self._complete)))

    def _is_among_worst(self, member: int) -> bool:
        return member in [job.trial for job in self._ranked()[-self._quarter() :]]

    def _best(self) -> list[Job]:
        return [job for job in self._ranked()[: self._quarter()] if self._is_sound(job)]

    def _is_sound(self, job: Job) -> bool:
        return self.scores[job.place] > -math.inf

    def _may_give(self, job: Job, last: Job) -> bool:
        """Whether a member may copy what a job has left: no less far, and not at the end."""
        return job.trial != last.trial and last.epochs <= job.epochs < self._epochs

    def _going_on(self, member: int, values: Values, source: tuple[int, int]) -> Job:
        return Job(member, values, min(source[1] + self._interval, self._epochs), source)

    def _told(self, job: Job) -> None:
        self._complete[job.trial] = job


def rungs(least: int, most: int, eta: int) -> tuple[int, ...]:
    """Epochs of each rung: `least`, each eta times the one before, and `most`.

    Raises:
        ValueError: `least` is above `most`.
    """
    if least > most:
        raise ValueError(
            f"min_epochs is {least} and a whole run has {most} epochs: give fewer, or more epochs "
            "in [run]"
        )
    found = [least]
    while found[-1] * eta < most:
        found.append(found[-1] * eta)
    return (*found, most) if found[-1] < most else tuple(found)


def make_method(space: Space, options: SearchOptions) -> Method:
    """The method that options name.

    Raises:
        ValueError: They do not fit the space; with the remedy.
    """
    epochs, seed = space.config({}).epochs, options.seed

    def drawn(trial: int) -> Values:
        return space.drawn(seed, trial)

    trials = options.trials or 16
    if options.method == "grid":
        size = space.grid_size()
        if options.trials not in (None, size):
            raise ValueError(
                f"the grid has {size} points and trials is {options.trials}: leave trials out, or "
                "give other points"
            )
        return Rungs(size, space.grid_point, [epochs])
    if options.method == "random":
        return Rungs(trials, drawn, [epochs])
    if options.method == "asha":
        return Rungs(trials, drawn, rungs(options.min_epochs, epochs, options.eta), options.eta)
    rungs(options.min_epochs, epochs, options.eta)  # refuses an interval that is too long
    if not set(space.dimensions) & set(CHANGEABLE):
        raise ValueError(
            f"pbt changes {', '.join(CHANGEABLE)} while it trains, and the space has none of them: "
            "add one, or give another method"
        )

    def change(values: Values, generator: np.random.Generator) -> Values:
        changed = dict(values)
        for name, dimension in space.dimensions.items():
            if name in CHANGEABLE:
                factor = _FACTORS[int(generator.integers(2))]
                changed[name] = dimension.near(values[name], factor)
        return changed

    return Population(trials, drawn, epochs, options.min_epochs, change, seed)
