"""Who trains, who sleeps until it is needed, and who has died."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mpicoll.base.deaths import dead
from mpicoll.errors import RankLost
from mpicoll.train.ranks.guarded import GuardedWorkers
from mpicoll.train.ranks.waiting import breakable
from mpicoll.train.ranks.workers import AllReduceWorkers, TrainingError

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
        raise TrainingError(f"survive cannot be had: {reason}; or leave survive out")


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
            except RankLost as error:
                if error.given_up is not None:
                    raise
                continue
            return tuple(name for name in before if name not in self.names)

    def sleep(self) -> Any:
        """Wait until this rank is needed, or the run is over.

        Returns:
            None where it is needed; what `dismiss` has told.
        """
        first = self._working[0]
        while not any(rank in self._working for rank in dead(self._everyone)):
            if self._everyone.Iprobe(source=first, tag=_OVER):
                return self._everyone.recv(source=first, tag=_OVER)
            time.sleep(_NAP)
        return None

    def dismiss(self, told: T) -> T:
        """The run is over: tell those that sleep, something that all others know; collective."""
        sleeping = set(range(self._everyone.Get_size())) - set(self._working)
        if self.is_first:
            for rank in sleeping:
                with suppress(Exception):  # it has died
                    self._everyone.send(told, rank, _OVER)
        return told

    def tell(self, fact: T) -> T:
        """What the first rank says, on all that train; each rank's own where one dies meanwhile."""
        try:
            return self.workers.gather(fact)[0]
        except RankLost:
            self.regroup()
            return fact

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
