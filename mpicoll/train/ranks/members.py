"""Who trains, who sleeps until it is needed, and who has died."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mpicoll.base.deaths import dead
from mpicoll.errors import RankLost
from mpicoll.train.ranks.guarded import GuardedWorkers
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
        self._form()

    @property
    def sleeps(self) -> bool:
        """Whether this rank waits until it is needed."""
        return bool(self._everyone.Get_rank() >= self.places)

    @property
    def is_first(self) -> bool:
        """Whether this rank prints, and writes what one rank writes for all."""
        return bool(self._everyone.Get_rank() == 0)

    def regroup(self) -> tuple[int, ...]:
        """Go on with the ranks that are left; collective over these, those that sleep included.

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
                self._form()
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
        working = range(min(self.places, self._everyone.Get_size()))
        while not any(rank in working for rank in dead(self._everyone)):
            if self._everyone.Iprobe(source=0, tag=_OVER):
                return self._everyone.recv(source=0, tag=_OVER)
            time.sleep(_NAP)
        return None

    def dismiss(self, told: T) -> T:
        """The run is over: tell those that sleep, something that all others know; collective."""
        sleeping = range(self.places, self._everyone.Get_size())
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

    def _form(self) -> None:
        """Give those that train a communicator; collective."""
        asleep = self._everyone.Get_size() > self.places
        self.comm: MPI.Intracomm = (
            self._everyone.Split(int(self.sleeps), self._everyone.Get_rank())
            if asleep
            else self._everyone
        )
        self.workers = GuardedWorkers(self.comm, None) if self.sleeps else self._make(self.comm)
