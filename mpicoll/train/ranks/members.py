"""Who trains, who sleeps until it is needed, and who has died."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mpicoll.base.deaths import dead
from mpicoll.errors import RankLost
from mpicoll.train.ranks.guarded import GuardedWorkers
from mpicoll.train.ranks.waiting import (
    breakable,
    is_complete,
    is_death,
    require_place,
    share_deaths,
)
from mpicoll.train.ranks.workers import AllReduceWorkers, TrainingError, Workers

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

#: Seconds between two looks of a rank that sleeps, and the tag of the message that wakes it up.
_NAP, _OVER = 2e-3, 1


def require_survival() -> None:
    """Refuse a launch in which no rank can outlive another.

    Raises:
        TrainingError: With the remedy.
    """
    from mpicoll.comm import survival_obstacle  # starts MPI

    reason = survival_obstacle()
    if reason:
        raise TrainingError(f"survive is not available: {reason}; or leave survive out")


class Wanted:
    """Tells ranks that sleep: help to restore the state, then sleep again."""


class Members:
    """The ranks of a run that goes on when some of them die.

    Args:
        comm: All ranks; collective.
        make: Makes what those that train wait in, of their communicator; collective.
        spares: So many, the last, sleep until another rank has died, and take a place then.

    Attributes:
        comm: Those that train; of a rank that sleeps, those that sleep.
        workers: The same.
        places: So many ranks train, as long as there are.
        names: Numbers that all ranks that are left had at the start.

    Raises:
        TrainingError: No rank can outlive another in this launch, or all would sleep.
        RankLost: A rank has died.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        make: Callable[[MPI.Intracomm], AllReduceWorkers],
        spares: int,
    ) -> None:
        from mpicoll.comm import Intracomm  # starts MPI

        require_survival()
        size = comm.Get_size()
        if spares >= size:
            raise TrainingError(
                f"{spares} spare rank(s) of {size} leave none to train: start at least "
                f"{spares + 1} ranks, or give fewer spares"
            )
        self._started, self.names = size, tuple(range(size))
        self._make, self.places = make, size - spares
        # Sends to dead ranks never complete, so their requests are kept.
        self._telling: list[list[MPI.Request]] = []
        self._everyone: Any = Intracomm(comm.Dup(), survive=True)
        self._form(range(self.places))

    @property
    def sleeps(self) -> bool:
        """Whether this rank waits until it is needed."""
        return self._everyone.Get_rank() not in self._working

    @property
    def is_first(self) -> bool:
        """Whether this rank prints, and writes what one rank writes for all."""
        return bool(self._everyone.Get_rank() == self._working[0])

    @property
    def sleeping(self) -> int:
        """How many ranks wait until they are needed."""
        return self._everyone.Get_size() - len(self._working)

    def hear_all(self) -> None:
        """Let those that train hear of the deaths of ranks that sleep, too, from now on."""
        if self.comm is not self._everyone:
            share_deaths(self.comm, self._everyone)

    def regroup(
        self, fact: object = None, choose: Callable[[list[Any]], Sequence[int]] | None = None
    ) -> tuple[int, ...]:
        """Go on with the ranks that are left; collective over these, those that sleep included.

        Args:
            fact: What this rank has to say for the choice.
            choose: Of the facts of all ranks that are left, the numbers of those that train, in
                order; the same on all. None: the first, as many as there are places.

        Returns:
            The ranks that have died since the last time, by the numbers they had at the start.

        Raises:
            RankLost: The others have given this rank up, and go on without it.
        """
        before = self.names
        while True:
            old = self._everyone
            self._everyone = old.survivors()
            lost = old.lost_ranks()
            self.names = tuple(n for rank, n in enumerate(self.names) if rank not in lost)
            try:
                if choose is None:
                    working: Sequence[int] = range(min(self.places, self._everyone.Get_size()))
                else:
                    working = choose(self._everyone.allgather(fact))
                with breakable(self._everyone):
                    self._form(working)
                self.hear_all()
            except RankLost as error:
                if error.given_up is not None:
                    raise
                continue
            return tuple(name for name in before if name not in self.names)

    def sleep(self) -> Any:
        """Wait until a rank dies, or the run is over.

        Returns:
            None after a death; what `tell_sleepers` has told; `Wanted` where `wake` was called.
        """
        first = self._working[0]
        while not dead(self._everyone):
            try:
                if self._everyone.Iprobe(source=first, tag=_OVER):
                    return self._everyone.recv(source=first, tag=_OVER)
            except Exception as error:
                if not is_death(error):
                    raise
                return None
            time.sleep(_NAP)
        return None

    def tell_sleepers(self, told: object) -> bool:
        """The first rank tells those that sleep something, such as the result of the run.

        Returns:
            Whether all of them know, as far as this rank has to tell them.
        """
        if not self.is_first:
            return True
        asleep = [rank for rank in range(self._everyone.Get_size()) if rank not in self._working]
        sent: list[MPI.Request] = []
        self._telling.append(sent)
        for rank in asleep:
            try:
                sent.append(self._everyone.isend(told, rank, _OVER))
            except Exception as error:
                if not is_death(error):
                    raise
                return False
        while not all(is_complete(request) for request in sent):
            if dead(self._everyone):  # those that sleep have seen it, and wait for no message
                return False
            time.sleep(_NAP)
        return True

    def wake(self) -> Workers:
        """All ranks that are left, for what those that sleep take part in, too; collective."""
        self.tell_sleepers(Wanted())
        return self.everyone

    @property
    def everyone(self) -> Workers:
        """All ranks that are left."""
        return GuardedWorkers(self._everyone, None)

    def failure(self, own: TrainingError | None) -> TrainingError | None:
        """The error that ends the run, if it has failed on a rank; collective over all ranks.

        Args:
            own: The error that this rank has raised or been told of, if there is one.

        Returns:
            The same; on ranks that have none, that of the first rank that has one.

        Raises:
            RankLost: A rank has died.
        """
        errors = self.everyone.gather(own)
        return own or next((error for error in errors if error is not None), None)

    def all_finished(self, finished: bool) -> bool:
        """Whether all ranks have finished and none has died; the same on all that are left.

        A rank may finish, although another one that waited with it hears of a death. Collective
        over all ranks, those that sleep included; where it is False, they are to `regroup`.

        Raises:
            RankLost: The others have given this rank up, and go on without it.
        """
        require_place(self._everyone)
        try:
            return bool(self._everyone.Agree(int(finished)))
        except Exception as error:
            if not is_death(error):
                raise
            return False

    def tell(self, fact: T) -> T:
        """What the first rank says, on all ranks; each rank's own where one dies meanwhile."""
        try:
            facts = self._everyone.allgather(fact)
        except RankLost:
            facts = []
        if not self.all_finished(bool(facts)):
            self.regroup()
            return fact
        told: T = facts[self._working[0]]
        return told

    def leave(self, status: int) -> NoReturn:
        """End this process with those that are left, where one has died; collective."""
        leave: Callable[[int], NoReturn] = self._everyone.leave
        leave(status)

    def missing(self) -> tuple[int, ...]:
        """All ranks that have died, as far as this rank knows, by their first numbers."""
        lost = dead(self._everyone)
        alive = {name for rank, name in enumerate(self.names) if rank not in lost}
        return tuple(name for name in range(self._started) if name not in alive)

    def _form(self, working: Sequence[int]) -> None:
        """Give those that train a communicator, in this order; collective."""
        self._working, rank = tuple(working), self._everyone.Get_rank()
        self.comm: MPI.Intracomm = self._everyone
        if self._working != tuple(range(self._everyone.Get_size())):
            key = rank if self.sleeps else self._working.index(rank)
            self.comm = self._everyone.Split(int(self.sleeps), key)
        self.workers = GuardedWorkers(self.comm, None) if self.sleeps else self._make(self.comm)
