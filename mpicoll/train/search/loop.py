"""A search on all ranks: one hands jobs out, groups of the others carry them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.base import arrays
from mpicoll.base.deaths import dead
from mpicoll.base.locks import Lock
from mpicoll.base.sleeping import meet
from mpicoll.errors import RankLost
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, load
from mpicoll.train.driver import checkpoints, memory
from mpicoll.train.driver.evaluation import evaluate
from mpicoll.train.ranks import signals
from mpicoll.train.ranks.guarded import GuardedWorkers
from mpicoll.train.ranks.mail import Mail, SurvivingMail
from mpicoll.train.ranks.members import require_survival
from mpicoll.train.ranks.workers import (
    AllReduceWorkers,
    TrainingError,
    Workers,
    raise_together,
    together,
)
from mpicoll.train.records import Measures
from mpicoll.train.search import jobs, trials
from mpicoll.train.search.coordinator import Coordinator, Watch
from mpicoll.train.search.crews import Alone, Crew, Groups, Trainer, serve
from mpicoll.train.search.data import without_test
from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space
from mpicoll.train.search.trials import Trials

if TYPE_CHECKING:
    from mpi4py import MPI

#: The rank that hands jobs out.
_FIRST = 0


@dataclass(frozen=True)
class Found:
    """The result of a search; equal on all ranks.

    Attributes:
        complete: Whether the search has ended; otherwise a signal stopped it.
        trials: Number of trials that have a score or have failed.
        failed: Failed trials: number and error.
        epochs: Trained epochs of all trials together.
        seconds: Time of the search.
        trial: Number of the best trial, None if no trial has a score.
        values: Its values.
        trained: Epochs after which it was best.
        validation: Measures of the validation set at that time.
        checkpoint: Its checkpoint.
        test: Measures of the test set, which is used for nothing else; empty if there is none, or
            if the search is not complete.
        lost: Ranks that died during the search.
    """

    complete: bool
    trials: int
    failed: dict[int, str]
    epochs: int
    seconds: float
    trial: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    trained: int = 0
    validation: Measures = field(default_factory=dict)
    checkpoint: str = ""
    test: Measures = field(default_factory=dict)
    lost: tuple[int, ...] = ()


def search(
    space: Space,
    options: SearchOptions,
    comm: MPI.Intracomm | None = None,
    *,
    resume: bool = False,
    watch: Watch | None = None,
) -> Found:
    """Search; collective over `comm`.

    Rank 0 distributes jobs and trains nothing, unless it is alone.

    Args:
        space, options: The space and the options; equal on all ranks.
        comm: An `mpicoll.Intracomm`; None searches in this process, without MPI.
        resume: Whether to resume the search in the folder `options.out`.
        watch: Called on rank 0 when there may be something new to show.

    Raises:
        ValueError: The ranks do not form whole groups, or the run does not fit a group.
        TrainingError: The folder is of another search, or data or folder cannot be read; on all
            ranks. With `options.survive` also: rank 0 has died, or a rank of each group; or this
            launch ends when a rank dies.
        mpicoll.RankLost: A rank died before the search began, or the others have given up this one.
    """
    ranks = 1 if comm is None else comm.Get_size()
    groups_of(space, options, ranks)  # refuses what does not divide
    base = space.config({})
    if options.survive:
        comm = _surviving(comm, base)
    out, workers = Path(options.out), _workers(comm, options)
    # First, so that data that cannot be read leave no file, which only --resume would go on from.
    data = _data(workers, base, options, trains=workers.rank > 0 or ranks == 1)
    with _opened(workers, out, space, options, resume) as found:
        failure = None
        if comm is None or ranks == 1:
            assert data is not None and found is not None
            _hand_out(found, Alone(Trainer(space, out, None, *data)), out, watch)
        else:
            failure = _in_groups(comm, space, options, data, found, watch)
        end = _End(found, out, failure)
        if not options.survive:
            return end.told(comm, workers)
        assert comm is not None
        return _by_those_left(comm, options, end)


def groups_of(space: Space, options: SearchOptions, ranks: int) -> int:
    """How many trials are trained at a time on so many ranks.

    Raises:
        ValueError: The ranks do not divide into groups, or the run is none of a group's ranks.
    """
    groups, each = options.groups(ranks), options.ranks_per_trial
    try:
        space.config({}).worker_count(each)
    except ValueError as error:
        raise ValueError(f"ranks_per_trial is {each}, and the run is refused: {error}") from None
    return groups


def _workers(comm: MPI.Intracomm | None, options: SearchOptions) -> Workers:
    if comm is None:
        return Workers()
    return GuardedWorkers(comm, None) if options.survive else AllReduceWorkers(comm, None)


def _surviving(comm: MPI.Intracomm | None, base: Config) -> MPI.Intracomm:
    """A communicator that outlives its ranks; collective.

    Raises:
        TrainingError: There is none in this launch; with the remedy.
        ValueError: The runs of the space cannot hear of deaths.
    """
    replace(base, survive=True)
    if comm is None:
        raise TrainingError(
            "survive needs several processes, and this is one: start more, or leave survive out"
        )
    from mpicoll.comm import Intracomm  # starts MPI

    require_survival()
    return Intracomm(comm.Dup(), survive=True)


def _by_those_left(comm: MPI.Intracomm, options: SearchOptions, end: _End) -> Found:
    """The end of a search, by the ranks that are left; collective over these."""
    left: Any = comm
    while True:
        try:
            workers = _workers(left, options)
            found = end.told(left, workers)
            return replace(found, lost=workers.gather(dead(comm))[0])
        except RankLost as error:
            if error.given_up is not None:
                raise
            left = left.survivors()


class _End:
    """How a search ends: all hear what went wrong, or what was found.

    Args:
        found: The file and the method, on the rank that handed jobs out.
        out: Folder of checkpoints.
        failure: What went wrong on this rank.
    """

    def __init__(self, found: Trials | None, out: Path, failure: Exception | None) -> None:
        self._found, self._out, self._failure = found, out, failure
        self._result: Found | None = None

    def told(self, comm: MPI.Intracomm | None, workers: Workers) -> Found:
        """What was found; collective, again by those that are left where a rank dies meanwhile.

        Raises:
            TrainingError: A rank has failed, or nobody is left that knows.
        """
        raise_together(workers, "the search", self._failure)
        failure = None
        try:
            if self._found is not None and self._result is None:
                self._result = _conclude(self._found, self._out)
        except Exception as error:
            failure = error
        if comm is not None:
            meet(comm)  # rank 0 has measured the best trial meanwhile
        raise_together(workers, "measuring the best trial", failure)
        told: Found | None = workers.gather(self._result)[0]
        if told is None:
            raise TrainingError(
                f"rank {_FIRST}, which hands trials out, has died: go on with resume"
            )
        return told


@contextmanager
def _opened(
    workers: Workers, out: Path, space: Space, options: SearchOptions, resume: bool
) -> Iterator[Trials | None]:
    """The file of the search on rank 0, and nobody else's meanwhile; collective."""
    lock, found = None, None
    try:
        with together(workers, "opening the search"):
            if workers.rank == _FIRST:
                out.mkdir(parents=True, exist_ok=True)
                lock = Lock(out)
                found = Trials(out, space, options, resume)
        yield found
    finally:
        if found is not None:
            found.close()
        if lock is not None:
            lock.release()


def _data(
    workers: Workers, base: Config, options: SearchOptions, trains: bool
) -> tuple[Dataset, str] | None:
    """The data of trials and what to judge by, on ranks that train; collective."""
    memory.make_room(workers, memory.reading(base) if trains else {})
    found: tuple[Dataset, str] | None = None
    with together(workers, f"reading {base.dataset}"):
        if trains:
            dataset = load(base.dataset, base.data, base.context)
            dataset = without_test(dataset.astype(arrays.dtype_of(base.dtype)), options.hold_out)
            found = dataset, judged_by(dataset, options.measure)
    return found


def judged_by(dataset: Dataset, measure: str | None) -> str:
    """What of the validation set says how good a trial is.

    Raises:
        ValueError: The measure is none that runs on this data have.
    """
    known = ("r2" if dataset.classes is None else "accuracy", "loss")
    if measure is None:
        return known[0]
    if measure not in known:
        raise ValueError(
            f"measure is {measure!r}, and runs on {dataset.name} measure {' and '.join(known)}: "
            "give one of them"
        )
    return measure


def _hand_out(found: Trials, crew: Crew, out: Path, watch: Watch | None) -> None:
    """Hand jobs out until there are no more, or a signal comes."""
    coordinator = Coordinator(found, crew, out, watch or (lambda _: None))
    with signals.heard(partial(setattr, coordinator, "stopping", True)):
        coordinator.run()


def _in_groups(
    comm: MPI.Intracomm,
    space: Space,
    options: SearchOptions,
    data: tuple[Dataset, str] | None,
    found: Trials | None,
    watch: Watch | None,
) -> Exception | None:
    """Search on all ranks; what went wrong on this one. Collective."""
    each = options.ranks_per_trial
    members = [list(range(first, first + each)) for first in range(1, comm.Get_size(), each)]
    own = (comm.Get_rank() - 1) // each if comm.Get_rank() else len(members)
    out, mail = Path(options.out), (SurvivingMail if options.survive else Mail)(comm)
    group: Any = comm.Split(own, comm.Get_rank())
    failure = None
    if found is not None:
        crew = Groups(mail, members)
        try:
            _hand_out(found, crew, out, watch)
        except Exception as error:
            failure = error
        crew.end()
    else:
        assert data is not None
        # Signals end no rank that waits for a job: the search is stopped by those that train.
        with signals.heard(lambda: None):
            serve(Trainer(space, out, group, *data), mail, members[own], _FIRST)
    mail.close()
    if not options.survive:  # who has died cannot take part in that
        group.Free()
    return failure


def _conclude(found: Trials, out: Path) -> Found:
    """What was found; the best trial of a search that is complete is measured on the test set."""
    records, method = found.records, found.method
    best = trials.best(records)
    # What this asks for is not written down, and nothing comes after it.
    complete = not method.waiting and method.ask() is None
    failed = {record["trial"]: record["failed"] for record in trials.failures(records)}
    told = {trial for trial, _ in method.scores}
    facts = Found(complete, len(told), failed, trials.epochs_spent(records), found.seconds)
    if best is None:
        return facts
    folder = jobs.folder_of(out, (best["trial"], best["epochs"]))
    winner = next((record for record in records if record["event"] == "winner"), None)
    if complete and winner is None:
        winner = {"trial": best["trial"], "epochs": best["epochs"], "test": _tested(folder)}
        found.note("winner", **winner)
    return replace(
        facts,
        trial=best["trial"],
        values=best["values"],
        trained=best["epochs"],
        validation=best["validation"],
        checkpoint=str(folder),
        test=winner["test"] if winner is not None else {},
    )


def _tested(folder: Path) -> Measures:
    """Measures of the test set, if there is one."""
    facts = checkpoints.read(checkpoints.find(folder))[1]["config"]
    if "test" not in load(facts["dataset"], facts["data"], facts["context"]).parts:
        return {}
    return evaluate(folder, part="test").measures
