"""The sweep: which group of points comes when, and on which ranks.

The groups come in shuffled order, of all collectives, sizes, types and numbers of ranks; the seed
is stored. A group of P ranks is measured by the first P of those launched, on a communicator of
their own, while the others sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from mpi4py import MPI

from mpicoll.base.sleeping import meet
from mpicoll.bench.measurement import Bench, Skipped
from mpicoll.bench.records import Point
from mpicoll.bench.settings import Group, Key, SweepSettings, groups, shuffled
from mpicoll.bench.watchdog import CaseTimeout

Report = Callable[["Point | Skipped"], None]

_clock = time.perf_counter


def sweep(
    comm: MPI.Intracomm,
    settings: SweepSettings,
    report: Report,
    *,
    run: str = "",
    oversubscribed: Collection[int] = (),
    done: frozenset[Key] = frozenset(),
    beat: Callable[[str], None] = lambda what: None,
) -> None:
    """Measure every algorithm at every size, type and number of ranks. Collective.

    Args:
        comm: The communicator to measure, with methods that take ``algorithm=``.
        settings: The same on every rank.
        report: Called on rank 0 with each finished or skipped point.
        run: Name of the run, copied into the points.
        oversubscribed: Numbers of ranks with which some host has more ranks than cores.
        done: Points that are measured already; the same on every rank.
        beat: Called on rank 0 with what is measured, again and again.

    Raises:
        ValueError: on every rank alike, if the settings make no sense.
        RuntimeError: on every rank alike, if an algorithm refuses to run on some ranks only.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    everything = groups(settings, size)
    todo = shuffled(groups(settings, size, done), settings.seed)
    world, alarm = MPI.Intracomm(comm).Dup(), MPI.Intracomm(comm).Dup()
    watchdog = CaseTimeout(alarm, settings.timeout)
    watchdog.rest()
    benches: dict[int, Bench] = {}
    for ranks in sorted({group.ranks for group in todo}):
        part = comm if ranks == size else comm.Split(0 if rank < ranks else MPI.UNDEFINED, rank)
        if rank < ranks:
            assert isinstance(part, MPI.Intracomm)
            benches[ranks] = Bench(part, settings, run, ranks in oversubscribed, beat)
    deadline = None
    if settings.budget is not None:
        # What a killed sweep has measured is not paid for again.
        deadline = _clock() + settings.budget * _points(todo) / max(1, _points(everything))
    try:
        while todo:
            group = todo.pop()
            if group.ranks in benches:
                share = settings.point_seconds
                if deadline is not None:
                    left = max(0.0, deadline - _clock()) / (len(todo) + 1)
                    share = min(share, left / len(group.algorithms))
                bench = benches[group.ranks]
                for outcome in bench.measure(group, share):
                    report(outcome)
                bench.watchdog.rest()
            if group.ranks < size:
                # Who has slept must be there at once; who sleeps may have to wait long.
                watchdog.enter(f"waiting for all after {group.collective} at P = {group.ranks}")
                if group.ranks not in benches:
                    watchdog.rest(listen=True)
                meet(world)
                watchdog.rest()
    finally:
        for each in (watchdog, *(bench.watchdog for bench in benches.values())):
            each.stop()
    for bench in benches.values():
        bench.free()
        if bench.size < size:
            bench.comm.Free()
    world.Free()
    alarm.Free()


def _points(todo: list[Group]) -> int:
    return sum(len(group.algorithms) for group in todo)
