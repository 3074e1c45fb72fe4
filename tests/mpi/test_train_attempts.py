"""A run that ended early and goes on: metrics count once, damage and other jobs are told to all."""

import json
import os
from functools import partial

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from kept import rewrite
from mpi4py import MPI

from mpicoll.base.json_lines import Attempt
from mpicoll.base.locks import Lock
from mpicoll.train import TrainingError, history, run
from mpicoll.train.driver import checkpointing, checkpoints

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="3 ranks and fewer show it"),
]


def kept(folder, **changes):
    places = {"checkpoint": str(folder / "c"), "metrics": str(folder / "m")}
    return Config(**{"batch": 6, "epochs": 2, "checkpoint_every": 10, **places, **changes})


def ended_at(number):
    def fails(step):
        if step.number == number:
            raise OSError("the disk is on fire")

    return fails


@pytest.mark.parametrize("changes", [{}, {"strategy": "parameter_server"}])
def test_steps_of_all_ranks_count_once(comm, folder, changes):
    changes = {**changes, "checkpoint_every": None} if changes else {}
    total = 2 * 17
    with pytest.raises(TrainingError, match="the disk is on fire"):
        run(kept(folder, **changes), comm, dataset=clouds(), on_step=ended_at(23))
    result = run(kept(folder, resume="auto", **changes), comm, dataset=clouds())
    assert result.beginning.step == (17 if changes else 20)
    assert {result.beginning} == set(comm.allgather(result.beginning))
    assert result.beginning.attempt == 2
    found = history.read(folder / "m")
    assert (found.run, found.attempt, found.ranks) == (result.beginning.run, 2, comm.size)
    assert sorted(found.steps) == list(range(comm.size))
    for steps in found.steps.values():
        assert [step["number"] for step in steps] == list(range(1, total + 1))
    assert [epoch["number"] for epoch in found.epochs] == [1, 2]


def test_another_job_is_named_on_all_ranks(comm, folder, monkeypatch):
    monkeypatch.setattr(checkpointing, "Lock", partial(Lock, patience=0))
    held = Lock(folder) if comm.rank == 0 else None
    holder = comm.bcast(os.getpid())
    said = rf"checkpoint failed on rank 0: OSError: .*process {holder} on .* writes to it; wait"
    with pytest.raises(TrainingError, match=said):
        run(Config(checkpoint=str(folder)), comm, dataset=clouds())
    if held is not None:
        held.release()


@pytest.mark.parametrize("strategy", ["allreduce", "zero1", "parameter_server"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda arrays: arrays.pop("parameter/layer1.bias"),
            r"has no array parameter/layer1\.bias, and the run needs it: take another",
        ),
        (
            lambda arrays: arrays.update({"parameter/layer1.bias": np.zeros(7)}),
            r"parameter/layer1\.bias is float64 of shape \(7,\), and the run needs .* \(4,\)",
        ),
        (
            lambda arrays: arrays.pop("state/velocity/layer1.bias"),
            "has no array state/velocity/lay",
        ),
        (
            lambda arrays: arrays.update({"state/velocity/layer1.bias": np.zeros(4, int)}),
            r"state/velocity/layer1\.bias is int64 of shape \(4,\), and the run needs floating",
        ),
    ],
    ids=["parameter", "shape", "state", "type"],
)
def test_arrays_that_do_not_fit_are_named_on_all_ranks(comm, folder, strategy, change, message):
    config = {"batch": 16, "strategy": strategy, "checkpoint": str(folder)}
    run(Config(epochs=1, **config), comm, dataset=clouds())
    if comm.rank == 0:
        rewrite(checkpoints.find(folder), lambda _, arrays: change(arrays))
    comm.Barrier()
    with pytest.raises(TrainingError, match=message) as caught:
        run(Config(epochs=2, resume="auto", **config), comm, dataset=clouds())
    assert len(set(comm.allgather(str(caught.value)))) == 1
    assert "\n" not in str(caught.value)


@pytest.mark.mpi(min_size=2)
def test_what_data_servers_did_is_of_the_run(comm, folder):
    config = Config(batch=8, epochs=1, data_servers=1, metrics=str(folder))
    result = run(config, comm, dataset=clouds())
    if comm.rank == comm.size - 1:
        line = json.loads((folder / f"data-{comm.rank}.jsonl").read_text())
        assert Attempt(line["run"], line["attempt"]) == result.beginning.stamp
