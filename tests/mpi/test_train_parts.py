"""The parts of a step on a report add up to the step, for every strategy."""

import time

import numpy as np
import pytest
from clouds import clouds
from mpi4py import MPI

from mpicoll.train import Config, history, run

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size != 3, reason="3 ranks show it"),
]

STRATEGIES = {
    "allreduce": {},
    "zero1": {"bucket": 256},
    "local_sgd": {"average_every": 2},
    "gossip": {},
    "servers": {"strategy": "parameter_server", "servers": "1", "consistency": "ssp:2"},
    "servers on workers": {"strategy": "parameter_server", "servers": "decentralized"},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_parts_add_up_to_the_step(comm, folder, name):
    """Of each rank; a callback after each step shows between which two steps it was called."""
    ends = []

    def look(step):
        ends.append(time.perf_counter())

    config = {"strategy": name, "batch": 120, "epochs": 1, "model": "mlp", "hidden": (128, 128)}
    config |= {"metrics": str(folder), **STRATEGIES[name]}
    run(Config(**config), comm, dataset=clouds(2400), on_step=look)
    comm.Barrier()
    found = history.read(folder)
    for rank, steps in found.steps.items():
        parts = history.in_parts(steps)
        walls = comm.bcast(ends, root=rank)
        begins = [step["began"] for step in steps]
        assert len(begins) == len(walls) == 20
        moments = [moment for both in zip(begins, walls, strict=True) for moment in both]
        assert moments == sorted(moments)
        took = [row["seconds"] for row in parts[:-1]]
        assert took == pytest.approx(np.diff(begins), rel=1e-3)
        made = [sum(row[part] for part in history.PARTS_OF_A_STEP) for row in parts[:-1]]
        assert made == pytest.approx(took, rel=1e-9)
        # Nothing that a step has named is counted twice, and little has no name: the median,
        # since a rank may lose its processor between two looks at the clock.
        named = np.subtract(made, [row["other"] for row in parts[:-1]])
        inside = [max(end for _, _, end in step["spans"]) for step in steps[:-1]]
        assert np.median(named / inside) == pytest.approx(1, rel=0.02)
        assert all(row[part] >= 0 for row in parts for part in history.PARTS_OF_A_STEP)
    served = STRATEGIES[name].get("strategy") == "parameter_server"
    mean = history.parts(found)[0]
    assert (mean["servers"] > 0) == served and (not served or mean["waiting"] == 0)
    assert len(found.shards) == (0 if not served else 1 if name == "servers" else comm.size)
    for trace in found.shards.values():
        did = history.granted(trace)
        assert did.pushes > 0 and did.pulls > 0
        assert 0 <= did.ahead <= did.bound[1]
