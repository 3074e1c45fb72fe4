"""Ranks that read data for others: the same training, to the bit."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from mpi4py import MPI

from mpicoll.train import Dataset, TrainingError, run
from mpicoll.train.data.rows import Rows
from mpicoll.train.driver import parity

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(MPI.COMM_WORLD.size not in (2, 3, 5), reason="fewer show the same"),
]


def pictures(samples=60):
    generator = np.random.default_rng(3)
    labels = np.arange(samples + 12) % 3
    inputs = generator.integers(0, 256, (samples + 12, 5, 4)) // (1 + labels[:, None, None])
    rows = Rows([inputs[:20].astype(np.uint8), inputs[20:].astype(np.uint8)]).numbers()
    return Dataset(
        "pictures",
        3,
        rows.astype("float64"),
        labels[: samples + 12],
        rows[samples:],
        labels[samples:],
    )


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 7, "augment": "shift:1,flip", "accumulate": 2},
        {"batch": 64, "dtype": "float32", "strategy": "local_sgd", "average_every": 1},
        {"batch": 20, "dtype": "bfloat16"},
        {"batch": 8, "strategy": "parameter_server"},
        {"batch": 2, "strategy": "parameter_server", "servers": "1", "augment": "shift:2"},
    ],
    ids=["augmented", "few batches", "narrow", "colocated", "servers of both kinds"],
)
def test_served_data_train_as_data_read(comm, servers, changes):
    if changes.get("dtype") == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    config = Config(epochs=2, data_servers=servers, lr=0.01, **changes)
    if comm.size <= servers + (changes.get("servers") == "1"):
        pytest.skip("more ranks")
    ours = run(config, comm, dataset=pictures())
    reference = run(config.alone(config.worker_count(comm.size)), dataset=pictures())
    assert (ours.steps, len(ours.history)) == (reference.steps, 2)
    limit = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.01}[config.dtype]
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= limit


def test_servers_say_what_they_did_and_steps_how_long_they_waited(comm, folder):
    config = Config(epochs=2, batch=8, data_servers=1, metrics=str(folder))
    run(config, comm, dataset=clouds())
    comm.Barrier()
    (line,) = Path(folder, f"data-{comm.size - 1}.jsonl").read_text().splitlines()
    said = json.loads(line)
    assert said["samples"] == 2 * 101
    assert 0 < said["preparing"] < said["seconds"]
    steps = [json.loads(line) for line in Path(folder, "rank-0.jsonl").read_text().splitlines()]
    loading = [step["loading"] for step in steps if step["event"] == "step"]
    assert len(loading) == 26 and min(loading) > 0


def test_a_run_that_stops_forgets_what_it_asked_for(comm):
    config = Config(epochs=3, steps=17, batch=8, data_servers=1)
    stopped = run(config, comm, dataset=clouds(), on_epoch=lambda _: False)
    assert stopped.steps == 17
    stopped = run(config, comm, dataset=clouds(), on_step=lambda step: step.number == 4)
    assert (stopped.steps, stopped.stopped) == (5, "asked")


def test_data_that_cannot_be_read_end_the_run_on_all_ranks(comm):
    class Broken(Rows):
        def __getitem__(self, index):
            if 13 in np.asarray(index):
                raise OSError("disk on fire")
            return super().__getitem__(index)

        def astype(self, dtype):
            return self

    whole = clouds()
    broken = replace(whole, train_inputs=Broken([whole.train_inputs]))
    config = Config(epochs=1, batch=8, data_servers=1)
    with pytest.raises(TrainingError, match=rf"rank {comm.size - 1}: OSError: disk on fire"):
        run(config, comm, dataset=broken)


def test_no_worker_left(comm):
    with pytest.raises(TrainingError, match=r"data server\(s\) on \d rank\(s\) leave no worker"):
        run(Config(data_servers=comm.size), comm, dataset=clouds())


def test_a_signal_to_a_data_server_stops_all(comm):
    class Signalled(Rows):
        def __getitem__(self, index):
            if 13 in np.asarray(index) and comm.rank == comm.size - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__getitem__(index)

        def astype(self, dtype):
            return self

    whole = clouds()
    data = replace(whole, train_inputs=Signalled([whole.train_inputs]))
    stopped = run(Config(epochs=3, batch=8, data_servers=1), comm, dataset=data)
    assert stopped.stopped == "signal" and stopped.steps < 39
