"""A few choices for one call by turns: which is fastest on these ranks.

In each round every one of them has one call, in an order shuffled anew, so that what drifts on the
machine meets all alike.  A call lasts as long as on its slowest rank.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.base.consensus import Problem, attempt
from mpicoll.bench.start import Barrier
from mpicoll.bench.workload import elements, prepare
from mpicoll.schedule.parameters import read_words

#: Rounds that count, and those before that do not.
_ROUNDS, _WARM = 7, 2


class ByTurns:
    """Calls of one collective at one size, by several choices.  All methods are collective.

    Args:
        comm: with methods that take ``algorithm=``.
        collective: its name.
        nbytes: bytes of the whole vector, of which whole elements are taken.
        choices: algorithms with their parameters, as a tuning file has them.
        root: of a rooted collective.
        dtype: type of the elements.

    Attributes:
        times: seconds of each call that counts on its slowest rank, by choice; equal on all ranks.
        slowest: the rank that it was, for each.
        refused: why a choice cannot run, by choice.
        work: what is called.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        collective: str,
        nbytes: int,
        choices: Sequence[str],
        root: int = 0,
        dtype: np.dtype[Any] = np.dtype("i4"),  # noqa: B008
    ) -> None:
        count = elements(collective, nbytes, dtype.itemsize, comm.Get_size())
        self.work = prepare(comm, collective, count, dtype, root=root)
        self.times: dict[str, list[float]] = {words: [] for words in choices}
        self.slowest: dict[str, list[int]] = {words: [] for words in choices}
        self.refused: dict[str, str] = {}
        self._rank = comm.Get_rank()
        self._calls = {}
        for words in choices:
            name, parameters = read_words(words)
            self._calls[words] = self.work.bind(comm, algorithm=name, **parameters)
        self._control = MPI.Intracomm(comm).Dup()
        self._start, self._dice = Barrier(self._control), random.Random(0)  # all ranks draw alike

    def try_all(self) -> None:
        """Call each choice once; those that refuse to run, on all ranks, are left out.

        Raises:
            RuntimeError: on all ranks, if a result is wrong.
        """
        for words, call in list(self._calls.items()):
            self.work.poison()
            done = attempt(self._control, call, ValueError)
            if isinstance(done, Problem):
                self.refused[words] = done.text
                del self._calls[words], self.times[words], self.slowest[words]
            else:
                self._check(words)

    def turn(self, choices: Sequence[str], rounds: int, counts: bool = True) -> None:
        """Call some choices so many times.

        Args:
            choices: which.
            rounds: how many times.
            counts: whether times are kept.

        Raises:
            RuntimeError: on all ranks, if a result is wrong.
        """
        for _ in range(rounds):
            order = list(choices)
            self._dice.shuffle(order)
            for words in order:
                self.work.poison()
                self._start()
                begun = time.perf_counter()
                self._calls[words]()
                every = self._control.allgather(time.perf_counter() - begun)
                self._check(words)
                if counts:
                    self.times[words].append(max(every))
                    self.slowest[words].append(every.index(max(every)))

    def _check(self, words: str) -> None:
        wrong = self._control.allreduce(self.work.check(self._rank)[0])
        if wrong:
            raise RuntimeError(f"{self.work.collective} by {words}: {wrong} elements wrong")

    def free(self) -> None:
        """Free what it has made."""
        self._start.free()
        self._control.Free()


def measure(
    comm: MPI.Intracomm, collective: str, nbytes: int, choices: Sequence[str], root: int = 0
) -> list[float]:
    """Median seconds of each choice, on all ranks.  Collective.

    The arguments are those of :class:`ByTurns`.

    Raises:
        RuntimeError: on all ranks, if a result is wrong.
    """
    trial = ByTurns(comm, collective, nbytes, choices, root)
    try:
        trial.turn(choices, _WARM, counts=False)
        trial.turn(choices, _ROUNDS)
    finally:
        trial.free()
    return [median(trial.times[words]) for words in choices]
