"""A few algorithms of one call by turns: which is fastest on these ranks.

In each round every finalist has one call, in an order shuffled anew, so that what drifts on the
machine meets all alike.  A call lasts as long as on its slowest rank.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median

import numpy as np
from mpi4py import MPI

from mpicoll.bench.start import Barrier
from mpicoll.bench.workload import elements, prepare
from mpicoll.schedule.parameters import read_value

#: Rounds that count, and those before that do not.
_ROUNDS, _WARM = 7, 2


def measure(
    comm: MPI.Intracomm, collective: str, nbytes: int, choices: Sequence[str], root: int = 0
) -> list[float]:
    """Median seconds of each choice, on all ranks.  Collective.

    Args:
        comm: with methods that take ``algorithm=``.
        collective: its name.
        nbytes: bytes of the whole vector, of which whole integers are taken.
        choices: algorithms with their parameters, as a tuning file has them.
        root: of a rooted collective.

    Raises:
        RuntimeError: on all ranks, if a result is wrong.
    """
    dtype = np.dtype("i4")
    count = elements(collective, nbytes, dtype.itemsize, comm.Get_size())
    work = prepare(comm, collective, count, dtype, root=root)
    calls = [work.bind(comm, **_named(words)) for words in choices]
    control = MPI.Intracomm(comm).Dup()
    start, dice = Barrier(control), random.Random(0)  # all ranks draw alike
    times: list[list[float]] = [[] for _ in choices]
    try:
        for turn in range(_WARM + _ROUNDS):
            order = list(range(len(choices)))
            dice.shuffle(order)
            for number in order:
                work.poison()
                start()
                begun = time.perf_counter()
                calls[number]()
                slowest = control.allreduce(time.perf_counter() - begun, MPI.MAX)
                wrong = control.allreduce(work.check(comm.Get_rank())[0])
                if wrong:
                    raise RuntimeError(f"{collective} by {choices[number]}: {wrong} elements wrong")
                if turn >= _WARM:
                    times[number].append(slowest)
    finally:
        start.free()
        control.Free()
    return [median(each) for each in times]


def _named(words: str) -> dict[str, object]:
    name, *rest = words.split()
    parameters = {key: read_value(value) for key, value in (word.split("=", 1) for word in rest)}
    return {"algorithm": name, **parameters}
