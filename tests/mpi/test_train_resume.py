"""A run goes on with another number of ranks; metrics of all ranks; memory refused by all."""

import json
import os
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from mpi4py import MPI

from mpicoll.train import TrainingError, run
from mpicoll.train.driver import checkpoints, memory, parity

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size not in (2, 4), reason="2 and 4 ranks show it"),
]


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "zero1", "optimizer": "adam", "lr": 0.01, "bucket": 100},
        {"optimizer": "momentum", "clip": 0.5, "accumulate": 2},
    ],
    ids=["zero1", "allreduce"],
)
def test_a_run_goes_on_with_any_number_of_ranks(comm, folder, changes):
    config = {"batch": 8, "epochs": 3, "checkpoint_every": 1000, **changes}

    def halt(step):
        if step.number == 9 and comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    saved = Config(checkpoint=str(folder), **config)
    stopped = run(saved, comm, dataset=clouds(), on_step=halt)
    assert (stopped.stopped, stopped.steps) == ("signal", 10)
    reference = run(Config(**config), dataset=clouds()).parameters
    path = checkpoints.find(folder)
    for size in range(1, comm.size + 1):
        group = comm.Split(comm.rank < size, comm.rank)
        if comm.rank < size:
            resumed = run(Config(resume=str(path), **config), group, dataset=clouds())
            differences = parity.differences(resumed.parameters, reference)
            assert max(differences.values()) <= 1e-12
            assert len(resumed.history) == 3
        group.Free()


def test_what_narrow_gradients_have_lost_is_kept_for_another_number_of_ranks(comm, folder):
    config = Config(batch=8, epochs=1, wire="topk:0.2", checkpoint=str(folder))
    run(config, comm, dataset=clouds())
    arrays, _ = checkpoints.load(checkpoints.find(folder))
    assert arrays["residual/layer1.weight"].shape == (12, 4)
    assert arrays["residual/layer1.weight"].any()
    alone = Config(**{**vars(config), "checkpoint": None, "resume": str(folder), "epochs": 2})
    assert run(alone, dataset=clouds()).steps == 26


@pytest.mark.mpi(min_size=2)
def test_a_folder_that_cannot_be_made_ends_the_run_on_all_ranks(comm, folder):
    blocked = folder / "file"
    if comm.rank == 0:
        blocked.write_text("no folder")
    comm.Barrier()
    config = Config(batch=32, epochs=1, checkpoint=str(blocked))
    with pytest.raises(TrainingError, match="looking for a checkpoint failed on rank 0: FileEx"):
        run(config, comm, dataset=clouds())


def test_every_rank_writes_its_steps_and_rank_0_the_rest(comm, folder):
    result = run(Config(batch=32, epochs=2, metrics=str(folder / "m")), comm, dataset=clouds())
    text = Path(folder, "m", f"rank-{comm.rank}.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    assert [step["number"] for step in steps] == list(range(1, 9))
    assert {"compute", "exposed", "hidden", "waiting", "slowest"} <= steps[0].keys()
    assert all(steps[0][name] >= 0 for name in ("compute", "exposed", "hidden", "waiting"))
    clocks = [line for line in lines if line["event"] == "clock"]
    assert len(clocks) == 3 and all(abs(line["ahead"]) < 1 for line in clocks)  # of one node
    others = [line for line in lines if line["event"] not in ("step", "clock")]
    if comm.rank:
        assert others == []
    else:
        assert others[0]["ranks"] == comm.size and others[0]["config"]["batch"] == 32
        assert [line["loss"] for line in others[1:]] == [epoch.loss for epoch in result.history]


class Wide:
    """A model of one large array that computes next to nothing."""

    def initial_parameters(self, seed):
        return {"w": np.zeros(100_000)}

    def loss_and_gradients(self, parameters, batch):
        return 0.0, {"w": np.full(100_000, len(batch.targets) / batch.total)}

    def losses_and_outputs(self, parameters, inputs, labels):
        return np.zeros(len(labels)), np.zeros((len(labels), 4))


SERVERS = {"strategy": "parameter_server"}


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam"},
        {"strategy": "zero1", "optimizer": "adam"},
        {"strategy": "gossip"},
        {"wire": "bf16"},
        {"dtype": "float16", "optimizer": "adam"},
        {**SERVERS, "dtype": "float16"},
        {"wire": "int8", "dtype": "float32"},
        {"wire": "topk:0.1"},
        {"invariant": 8},
        {**SERVERS, "servers": "1", "optimizer": "adam"},
        {**SERVERS, "consistency": "async", "send_every": 1},
        {**SERVERS, "servers": "decentralized", "consistency": "ssp:2"},
    ],
    ids=lambda changes: ", ".join(str(value) for value in changes.values()),
)
def test_an_estimate_is_what_is_allocated(comm, monkeypatch, changes):
    """But for the parameters, a copy of them at the start, and what is small."""
    make_room, seen = memory.make_room, []

    def noted(workers, needed, *more):
        seen.append(sum(needed.values()))
        make_room(workers, needed, *more)

    monkeypatch.setattr(memory, "make_room", noted)
    config = Config(**{"batch": 8, "epochs": 1, "steps": 6, "optimizer": "sgd", **changes})
    tracemalloc.start()
    try:
        run(config, comm, dataset=clouds(), model=Wide())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = 100_000 * np.dtype("float64").itemsize
    assert 0 <= peak - seen[-1] <= 3 * size


def test_what_cannot_fit_on_one_node_is_refused_by_all(comm, monkeypatch):
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(TrainingError, match=f"making room failed on rank {comm.size - 1}: Memory"):
        run(Config(batch=32), comm, dataset=clouds())
