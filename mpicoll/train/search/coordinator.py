"""The rank that hands jobs out: it asks the method, tells it, and writes all down first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpicoll.train.ranks.workers import TrainingError
from mpicoll.train.search import jobs, trials
from mpicoll.train.search.crews import Crew
from mpicoll.train.search.methods import Job
from mpicoll.train.search.trials import Trials

#: Called whenever there may be something new to show.
Watch = Callable[["Coordinator"], object]


class Coordinator:
    """A search under way.

    Args:
        found: Its file and its method.
        crew: Who carries jobs out.
        out: Folder of checkpoints.
        watch: Called after each message, and some times a second.

    Attributes:
        trials: The file and the method.
        running: The job of each group that has one.
        stopping: Set where no more jobs shall be handed out; those under way stop.
    """

    def __init__(self, found: Trials, crew: Crew, out: Path, watch: Watch) -> None:
        self.trials, self._crew, self._out, self._watch = found, crew, out, watch
        self.running: dict[int, Job] = {}
        self.stopping = False
        self._told_to_stop = self._news = False
        #: Places of checkpoints that are there.
        self._there = set(found.method.scores)

    def run(self) -> None:
        """Hand jobs out until there are no more, or it is stopped."""
        try:
            while self._hand_out():
                self._news = False
                self._crew.poll(self._hear)
                if not self._news:  # otherwise it was shown as it came
                    self._watch(self)
        except Exception:
            self._finish()
            raise

    def _finish(self) -> None:
        """Let what is under way stop, and wait for it; nothing is written down."""
        self._crew.stop()
        while self.running:
            self._crew.poll(
                lambda group, news: news["is"] != "epoch" and self.running.pop(group, None)
            )

    def _hand_out(self) -> bool:
        """Give all free groups jobs; whether any group has one.

        Raises:
            TrainingError: There are jobs, and no groups.
        """
        if not (self._crew.groups or self.stopping) and self.trials.ask() is not None:
            raise TrainingError(
                "every group has lost a rank, and nobody is left to train: go on with resume"
            )
        for group in self._crew.groups:
            job = None
            if group not in self.running and not self.stopping:
                job = self.trials.ask()
            if job is not None:
                self.running[group] = job
                self._crew.start(group, job)
        if self.stopping and not self._told_to_stop:
            self._told_to_stop = True
            self._crew.stop()
        return bool(self.running)

    def _hear(self, group: int, news: dict[str, Any]) -> None:
        """Write down what a group says, and tell the method; then show it.

        Raises:
            TrainingError: The group cannot go on, and others could neither.
        """
        kind = news.pop("is")
        if kind == "epoch":
            self.trials.note("epoch", trial=self.running[group].trial, **news)
        elif kind == "lost":
            self._lose(group)
        elif "ended" in news:  # which is no fault of the trial: it is not told of
            job = self.running.pop(group)
            raise TrainingError(
                f"trial {job.trial}: {news['ended']}: mend that, and go on with resume"
            )
        elif news:
            self._tell(group, news)
        else:  # a signal has stopped it: its checkpoint is where it goes on
            del self.running[group]
            self.stopping = True
        self._news = True
        self._watch(self)

    def _lose(self, group: int) -> None:
        """A group is no more: its job is asked for again."""
        job = self.running.pop(group, None)
        self.trials.note("lost", group=group, trial=None if job is None else job.trial)
        if job is not None:
            self.trials.again(job)

    def _tell(self, group: int, found: dict[str, Any]) -> None:
        """A group has done its job."""
        job = self.running.pop(group)
        self.trials.tell(job, group=group, **found)
        self._there.add(job.place)
        self._tidy()

    def _tidy(self) -> None:
        """Remove checkpoints that no job will go on from, but for the best."""
        method, best = self.trials.method, trials.best(self.trials.records)
        kept = {job.source for job in method.waiting.values()}
        kept |= set(method.last().items())
        if best is not None:
            kept.add((best["trial"], best["epochs"]))
        for place in self._there - kept:
            shutil.rmtree(jobs.folder_of(self._out, place), ignore_errors=True)
        self._there &= kept
