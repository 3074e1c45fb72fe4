"""Measuring buffers on GPUs: calls, contents and what is written down."""

import sys
import types

import fake_cupy
import numpy as np
import pytest

from mpicoll.bench import engine
from mpicoll.bench.settings import Settings
from mpicoll.bench.workload import AUTO, METHODS, prepare, serving

pytestmark = pytest.mark.mpi


@pytest.fixture
def waits(monkeypatch):
    """CuPy without a GPU; how often somebody waited for a stream."""
    made, waits = fake_cupy.module(), []
    stream = types.SimpleNamespace(synchronize=lambda: waits.append(1))
    made.cuda.get_current_stream = lambda: stream
    monkeypatch.setitem(sys.modules, "cupy", made)
    return waits


@pytest.mark.parametrize("collective", METHODS)
@pytest.mark.parametrize("in_place", [False, True])
def test_buffers_are_on_the_gpu_and_checked(comm, waits, collective, in_place):
    count = 4 * comm.size
    work = prepare(comm, collective, count, np.dtype("f4"), in_place=in_place, device="gpu")
    if work.outputs is not None:
        assert isinstance(work.outputs, fake_cupy.ndarray)
        work.poison()
        if work.expected is not None:
            assert work.check(comm.rank)[0] == len(work.expected) or work.before is not None
    work.bind(comm)()
    assert work.check(comm.rank) == (0, None)
    assert collective == "barrier" or len(waits) == 1


def test_a_sweep(comm, waits):
    named = {"gpu": (AUTO, "native", serving("allreduce")[0]), "cpu": (AUTO,)}
    for device, algorithms in named.items():
        points = []
        settings = Settings(
            {"allreduce": algorithms}, (64,), (np.dtype("f4"),), iterations=2, device=device
        )
        engine.sweep(comm, settings, points.append)
        if comm.rank == 0:
            assert {point.algorithm for point in points} == {*algorithms}
            assert {(point.device, point.wrong) for point in points} == {(device, 0)}
