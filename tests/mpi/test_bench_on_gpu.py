"""Measuring buffers on GPUs: calls, contents and what is written down."""

import sys
from itertools import repeat

import fake_cupy
import numpy as np
import pytest

from mpicoll.base.arrays import stopwatch
from mpicoll.bench import sweep
from mpicoll.bench.repetition import repetitions
from mpicoll.bench.settings import SweepSettings
from mpicoll.bench.workload import AUTO, prepare, serving
from mpicoll.schedule.methods import VARIANTS

pytestmark = pytest.mark.mpi


class Event:
    """An event; all of them write down what is done to them."""

    def __init__(self, seen):
        self.seen, self.moment = seen, 0

    def record(self):
        self.seen.append("record")
        self.moment = len(self.seen)

    def synchronize(self):
        self.seen.append("wait")


@pytest.fixture
def seen(monkeypatch):
    """CuPy without a GPU, whose time is how many calls and events there were: what these were."""
    made, seen = fake_cupy.module(), []
    made.cuda.Event = lambda: Event(seen)
    made.cuda.get_elapsed_time = lambda begin, end: 1e3 * (end.moment - begin.moment)
    monkeypatch.setitem(sys.modules, "cupy", made)
    return seen


@pytest.mark.parametrize("collective", VARIANTS)
@pytest.mark.parametrize("in_place", [False, True])
def test_buffers_are_on_the_gpu_and_checked(comm, seen, collective, in_place):
    count = 4 * comm.size
    work = prepare(comm, collective, count, np.dtype("f4"), in_place=in_place, device="gpu")
    if work.outputs is not None:
        assert isinstance(work.outputs, fake_cupy.ndarray)
        work.poison()
        if work.expected is not None:
            assert work.check(comm.rank)[0] == len(work.expected) or work.before is not None
    work.bind(comm)()
    assert work.check(comm.rank) == (0, None)
    assert not seen  # whoever calls takes the time


def test_the_host_does_not_wait_between_the_events(seen):
    """Calls of a repetition follow one another; only behind the second event does it wait."""
    calls = repeat(lambda: seen.append("call"))
    own = repetitions(calls, lambda: False, 3, 2, stopwatch("gpu"))
    assert seen == ["record", "call", "call", "call", "record", "wait"] * 2
    assert own == [(4 / 3, False)] * 2


def test_a_sweep(comm, seen):
    named = {"gpu": (AUTO, "native", serving("allreduce")[0]), "cpu": (AUTO,)}
    for device, algorithms in named.items():
        points = []
        settings = SweepSettings(
            {"allreduce": algorithms}, (64,), (np.dtype("f4"),), iterations=2, device=device
        )
        sweep.sweep(comm, settings, points.append)
        if comm.rank == 0:
            assert {point.algorithm for point in points} == {*algorithms}
            assert {(point.device, point.wrong) for point in points} == {(device, 0)}
            # An event follows the other: the fake's time is whole.
            whole = all(t * point.batch >= 1 for point in points for t in point.times)
            assert whole is (device == "gpu")
