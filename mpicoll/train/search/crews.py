"""Who carries jobs out: groups of ranks that are told by messages, or the process itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.errors import RankLost
from mpicoll.train.data import Dataset
from mpicoll.train.ranks.mail import Mail
from mpicoll.train.records import Epoch
from mpicoll.train.search import jobs
from mpicoll.train.search.methods import Job
from mpicoll.train.search.space import Space
from mpicoll.train.search.trials import job_of

if TYPE_CHECKING:
    from mpi4py import MPI

#: Called with the number of a group and what it says.
Hear = Callable[[int, dict[str, Any]], object]
#: Seconds after which a table may be drawn again though there is no news.
_LOOK = 0.25


class Trainer:
    """A group of ranks that carries jobs out.

    Args:
        space: The space.
        out: Folder of checkpoints.
        comm: The group; None for this process alone.
        dataset: The data.
        measure: What of the validation set to judge by.
    """

    def __init__(
        self, space: Space, out: Path, comm: MPI.Intracomm | None, dataset: Dataset, measure: str
    ) -> None:
        self._space, self._out, self._comm = space, out, comm
        self._dataset, self._measure = dataset, measure

    def beginning(self, job: Job) -> str | None:
        """What a job goes on from; asked on one rank, told to all."""
        return jobs.beginning(self._out, job)

    def outcome(self, job: Job, resume: str | None, tell: jobs.Tell) -> dict[str, Any]:
        """What came of a job, as `jobs.carry_out`; collective over the group."""
        try:
            config = jobs.config_of(self._space, self._out, job, resume)
        except ValueError as error:
            return {"score": None, "validation": {}, "failed": str(error)}
        return jobs.carry_out(config, self._comm, self._dataset, self._measure, tell)


class Crew(ABC):
    """Groups that are handed jobs.

    Attributes:
        groups: Numbers of those that there are.
    """

    groups: list[int]

    @abstractmethod
    def start(self, group: int, job: Job) -> None:
        """Hand a job to a group that has none."""

    @abstractmethod
    def poll(self, hear: Hear) -> None:
        """Hand on what groups say, or wait a moment for it.

        A group says `{"is": "epoch", ...}` of each epoch, and `{"is": "done", ...}` at the end,
        with nothing more where the job was stopped, and with `ended` where it can go on later. Of
        one that has lost a rank and is no more `{"is": "lost"}` is said.
        """

    @abstractmethod
    def stop(self) -> None:
        """Let groups stop after the epoch in which they are."""


class Alone(Crew):
    """This process, which trains when it is polled.

    Args:
        trainer: What does it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.groups = [0]
        self._trainer = trainer
        self._job: Job | None = None
        self._stopping = False

    def start(self, group: int, job: Job) -> None:
        self._job = job

    def poll(self, hear: Hear) -> None:
        job, self._job = self._job, None
        failures: list[Exception] = []

        def tell(epoch: Epoch) -> bool:
            try:
                hear(0, said_of(epoch))
            except Exception as error:  # of who listens, not of the trial
                failures.append(error)
            return self._stopping or bool(failures)

        found = {}
        if job is not None and not self._stopping:
            found = self._trainer.outcome(job, self._trainer.beginning(job), tell)
        if failures:
            raise failures[0]
        hear(0, {"is": "done", **found})

    def stop(self) -> None:
        self._stopping = True


class Groups(Crew):
    """Groups of ranks, each told by its first one.

    Args:
        mail: Messages between all ranks.
        members: The ranks of each group.
    """

    def __init__(self, mail: Mail, members: list[list[int]]) -> None:
        self._mail, self._members = mail, members
        self.groups = [*range(len(members))]
        #: Ranks that have given up their job, since another one of their group has died.
        self._gave_up: set[int] = set()

    def start(self, group: int, job: Job) -> None:
        _send(self._mail, self._members[group][0], do="job", job=asdict(job))

    def poll(self, hear: Hear) -> None:
        letter = self._mail.wait(_LOOK)
        if letter is not None:
            news = json.loads(letter.content)
            group = next(g for g, ranks in enumerate(self._members) if letter.rank in ranks)
            if news["is"] == "given up":
                self._gave_up.add(letter.rank)
            elif group in self.groups:
                hear(group, news)
        # Only then does nobody of the group write its checkpoints any more.
        gone = self._mail.lost() | self._gave_up
        for group in [g for g in self.groups if gone.issuperset(self._members[g])]:
            self.groups.remove(group)
            hear(group, {"is": "lost"})

    def stop(self) -> None:
        for group in self.groups:
            _send(self._mail, self._members[group][0], do="stop")

    def end(self) -> None:
        """No more jobs will come."""
        for members in self._members:
            for rank in members:
                _send(self._mail, rank, do="end")


def serve(trainer: Trainer, mail: Mail, members: list[int], coordinator: int) -> None:
    """Carry out the jobs that come, until there are no more; called on each rank of a group.

    Where a rank of the group has died, the others carry out nothing more, and wait for the end; it
    is the end, too, when the coordinator has died.

    Args:
        trainer: The group.
        mail: Messages between all ranks.
        members: The ranks of the group; the first hears the coordinator and tells the others.
        coordinator: The rank that hands jobs out.
    """
    leads, whole = mail.rank == members[0], True

    def tell(epoch: Epoch) -> bool:
        _send(mail, coordinator, **said_of(epoch))
        # A message can only say to stop.
        return mail.look() is not None or coordinator in mail.lost()

    while coordinator not in mail.lost():
        if whole and not mail.lost().isdisjoint(members):
            whole = False
            _send(mail, coordinator, **{"is": "given up"})
        letter = mail.wait(_LOOK)
        order: dict[str, Any] = {"do": "wait"} if letter is None else json.loads(letter.content)
        if order["do"] == "end":
            return
        if order["do"] != "job" or not whole:  # asked to stop, nothing is under way
            continue
        job = job_of(order["job"])
        if leads:
            order["resume"] = trainer.beginning(job)
            for member in members[1:]:
                _send(mail, member, **order)
        try:
            found = trainer.outcome(job, order["resume"], tell)
        except RankLost:  # seen above, as soon as it is known who that is
            continue
        if leads:
            _send(mail, coordinator, **{"is": "done"}, **found)


def said_of(epoch: Epoch) -> dict[str, Any]:
    """What is told of an epoch."""
    return {
        "is": "epoch",
        "number": epoch.number,
        "validation": epoch.validation,
        "took": epoch.seconds,
    }


def _send(mail: Mail, rank: int, **content: Any) -> None:
    """Send a message of JSON."""
    mail.send(rank, json.dumps(content).encode())
