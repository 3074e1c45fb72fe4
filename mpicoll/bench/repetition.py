"""Repetitions: their calls, how many are one, and where each finds its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count as counting
from itertools import islice
from math import gcd

from mpi4py import MPI

from mpicoll.base.arrays import Stopwatch
from mpicoll.bench import environment
from mpicoll.bench.workload import BoundCall, Workload, symmetric

#: Largest size in bytes of which several calls are one repetition, and how many they are.
BATCH_LIMIT, BATCH_CALLS = 4096, 1000
#: Repetitions of a point at least, unless they take several times its time.
LEAST_SAMPLES = 9
_VISIT_SAMPLES = 10
_VISIT_SECONDS = 0.02
#: Assumed where the system does not tell how large the last-level cache is.
_LARGE_CACHE = 64 << 20


def repetitions(
    calls: Iterator[BoundCall], start: Callable[[], bool], batch: int, count: int, watch: Stopwatch
) -> Sequence[tuple[float, bool]]:
    """Seconds that one call took on this rank, and whether the rank began late, ``count`` times.

    A repetition starts when all ranks are there and is ``batch`` calls; the start is not timed.
    """
    found = []
    for _ in range(count):
        these = list(islice(calls, batch))
        late = start()
        begin = watch.mark()
        for call in these:
            call()
        end = watch.mark()
        found.append((watch.seconds(begin, end) / batch, late))
    return found


def in_turn(places: int) -> Iterator[int]:
    """The places, over and over, neighbours in memory never after one another.

    A processor fetches ahead what follows, but not what lies a golden section of all further on.
    """
    stride = max(1, round(places * 0.618))
    while gcd(stride, places) > 1:
        stride += 1
    return (turn * stride % places for turn in counting())


def pool(comm: MPI.Intracomm) -> int:
    """Bytes of buffers on a rank with which those of all ranks of a host are beyond its caches.

    Collective; the same on all ranks.
    """
    near = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cache = environment.last_level_cache() or _LARGE_CACHE
    pool = -(-2 * cache // near.Get_size())
    near.Free()
    return int(comm.allreduce(pool, op=MPI.MAX))


def batch_calls(work: Workload, estimate: float, share: float, samples: int) -> int:
    """Calls of a repetition: 1, or up to 1000 where calls are short and may be batched.

    So many that the wanted samples fit into the time for the point.
    """
    if not symmetric(work.collective) or work.size > BATCH_LIMIT:
        return 1
    fitting = share / (samples * estimate) if estimate > 0 else BATCH_CALLS
    return max(1, min(BATCH_CALLS, int(fitting)))


def visit_samples(estimate: float, batch: int) -> int:
    """Repetitions of a visit: as many as are short enough for others not to wait long.

    Batches come one at a time: few of them are made, and algorithms must alternate.
    """
    if batch > 1:
        return 1
    fitting = int(_VISIT_SECONDS / estimate) if estimate > 0 else _VISIT_SAMPLES
    return max(1, min(_VISIT_SAMPLES, fitting))
