"""The parts of a step on a report add up to the step, for every strategy."""

import time

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
    """Of each rank, within 2 % of what a callback's clock says; no part is counted twice."""
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
        whole = sum(row["seconds"] for row in parts[:-1])
        walls = comm.bcast(ends, root=rank)
        # From the beginning of the first step until that of the last one: a step later here.
        assert whole == pytest.approx(walls[-2] - walls[0] + parts[0]["seconds"], rel=0.02)
        made = sum(sum(row[part] for part in history.PARTS_OF_A_STEP) for row in parts[:-1])
        assert made == pytest.approx(steps[-1]["began"] - steps[0]["began"], rel=0.02)
        named = made - sum(row["other"] for row in parts[:-1])
        inside = sum(max(end for _, _, end in step["spans"]) for step in steps[:-1])
        assert named == pytest.approx(inside, rel=0.02)
        assert all(row[part] >= 0 for row in parts for part in history.PARTS_OF_A_STEP)
    served = STRATEGIES[name].get("strategy") == "parameter_server"
    mean = history.parts(found)[0]
    assert (mean["servers"] > 0) == served and (not served or mean["waiting"] == 0)
    assert len(found.shards) == (0 if not served else 1 if name == "servers" else comm.size)
    for trace in found.shards.values():
        did = history.granted(trace)
        assert did.pushes > 0 and did.pulls > 0
        assert 0 <= did.ahead <= did.bound[1]
