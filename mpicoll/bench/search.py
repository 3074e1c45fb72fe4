"""A search for the fastest choice of algorithm and parameters, by successive halving.

The best by prediction begin.  In each round all that are left are called by turns; then the slower
half of them is dropped, and the others have twice as many calls (K. Jamieson, A. Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016).  The MPI
library's own is never dropped, so that what the winners gain over it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from mpi4py import MPI

from mpicoll.bench.finalists import ByTurns
from mpicoll.bench.records import Point
from mpicoll.schedule.parameters import read_words
from mpicoll.tuning import NATIVE

#: Calls of each choice in the first round, and choices that are left in the last one.
FIRST_CALLS, LEFT = 4, 3
_WARM = 2


def halved(times: dict[str, list[float]]) -> list[str]:
    """The faster half of some choices, by the medians of their times; at least :data:`LEFT`."""
    ordered = sorted(times, key=lambda words: median(times[words]))
    return ordered[: max(LEFT, (len(ordered) + 1) // 2)]


def search(
    comm: MPI.Intracomm,
    collective: str,
    nbytes: int,
    choices: Sequence[str],
    run: str,
    crowded: bool,
    launch: int = 0,
    done: Callable[[str], object] = lambda what: None,
) -> list[Point]:
    """Measure choices until few are left; the points of these, and of the library's own.

    Collective.

    Args:
        comm: with methods that take ``algorithm=``.
        collective, nbytes: what is called; bytes of the whole vector.
        choices: which begin, in words.
        run: name of the run, for the points.
        crowded: whether there are more ranks than cores.
        launch: number of the launch.
        done: told of each round that has ended.

    Raises:
        RuntimeError: on all ranks, if a result is wrong.
    """
    dtype = np.dtype("f4")
    trial = ByTurns(comm, collective, nbytes, [*dict.fromkeys([*choices, NATIVE])], dtype=dtype)
    try:
        trial.try_all()
        left, calls = [words for words in trial.times if words != NATIVE], FIRST_CALLS
        trial.turn([*left, NATIVE], _WARM, counts=False)
        while True:
            trial.turn([*left, NATIVE], calls)
            done(f"{len(left)} choices, {len(trial.times[NATIVE])} calls of each")
            if len(left) <= LEFT:
                break
            left, calls = halved({words: trial.times[words] for words in left}), 2 * calls
    finally:
        trial.free()
    return [_point(trial, words, run, comm, crowded, launch) for words in (*left, NATIVE)]


def _point(
    trial: ByTurns, words: str, run: str, comm: MPI.Intracomm, crowded: bool, launch: int
) -> Point:
    work = trial.work
    algorithm, parameters = read_words(words)
    return Point(
        run=run,
        collective=work.collective,
        algorithm=algorithm,
        size=work.size,
        count=work.count,
        type=work.type,
        redop=work.redop,
        root=work.root,
        ranks=comm.Get_size(),
        batch=1,
        times=tuple(float(f"{seconds:.6g}") for seconds in trial.times[words]),
        slowest=tuple(trial.slowest[words]),
        first=trial.times[words][0],
        wrong=0,
        problem=None,
        stop="iterations",
        oversubscribed=crowded,
        parameters=parameters,
        launch=launch,
    )
