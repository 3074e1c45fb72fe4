"""What `mpicoll bench --device gpu` and `mpicoll doctor` do, on as many ranks as there are."""

import numpy as np
import pytest
import sharing
from mpi4py import MPI

import mpicoll
from mpicoll.bench import sweep
from mpicoll.bench.settings import SweepSettings
from mpicoll.bench.workload import AUTO
from mpicoll.cli import gpus

pytestmark = pytest.mark.mpi

COLLECTIVES = ("allreduce", "reduce", "bcast", "allgather", "reduce_scatter", "alltoall", "gather")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_sweep(world, collective):
    with sharing.allowed():
        comm = mpicoll.Intracomm(world.Dup())
    settings = SweepSettings(
        {collective: (AUTO, "native")},
        (64, 100_000),
        (np.dtype("f4"),),
        iterations=3,
        point_seconds=0.2,
        device="gpu",
    )
    points = []
    sweep.sweep(comm, settings, points.append)
    if world.Get_rank() == 0:
        assert {(point.device, point.wrong) for point in points} == {("gpu", 0)}
        assert sorted(point.algorithm for point in points) == [AUTO] * 2 + ["native"] * 2
        assert all(min(point.times) > 0 for point in points)
    comm.Free()


def test_what_doctor_says(world):
    facts = gpus.examine(world)
    assert facts["problem"] == ""
    (devices,) = {*map(len, facts["hosts"].values())} if len(facts["hosts"]) == 1 else (1,)
    found = dict(gpus.lines(facts))
    host = MPI.Get_processor_name()
    for number in range(devices):
        assert "(GPU-" in found[f"GPU {number} of {host}"]
    assert found["GPU transport"].startswith(("cuda_ipc", "aware", "staged ("))
