"""Checkpoints of which every rank keeps a part, and models out of them on any number of ranks."""

import json
import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from clouds import clouds, write_samples
from mpi4py import MPI

from mpicoll.train import Config, TrainingError, evaluate, load_model, run
from mpicoll.train.driver import array_files, checkpointing, checkpoints, parity

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 5, reason="5 ranks and fewer show it"),
]

#: 12 * 6 + 6 + 6 * 4 + 4 parameters, in buckets of 10.
SHARDED = {
    "strategy": "zero1",
    "model": "mlp",
    "hidden": (6,),
    "optimizer": "adam",
    "lr": 0.01,
    "bucket": 80,
    "batch": 16,
    "dtype": "float64",
}
COUNT = 12 * 6 + 6 + 6 * 4 + 4


def test_each_rank_writes_what_it_alone_keeps(comm, folder):
    run(Config(epochs=1, checkpoint=str(folder), **SHARDED), comm, dataset=clouds())
    path = checkpoints.find(folder)
    manifest = json.loads((path / "manifest.json").read_text())
    assert sorted(manifest["files"]) == [f"rank-{rank}.arrays" for rank in range(comm.size)]
    sizes = [(path / name).stat().st_size for name in sorted(manifest["files"])]
    assert sum(sizes) == 3 * 8 * COUNT  # parameters, means and squares, once each
    buckets = -(-COUNT // 10)
    assert max(sizes) <= 3 * 8 * buckets * -(-10 // comm.size)
    assert min(sizes) >= 3 * 8 * (buckets - 1) * (10 // comm.size)


def test_ranks_that_keep_the_same_write_it_once(comm, folder):
    changes = {**SHARDED, "strategy": "allreduce"}
    run(Config(epochs=1, checkpoint=str(folder), **changes), comm, dataset=clouds())
    assert sorted(os.listdir(checkpoints.find(folder))) == ["manifest.json", "rank-0.arrays"]


@pytest.mark.parametrize("there", ["zero1", "allreduce"])
def test_it_goes_on_with_any_number_of_ranks_and_another_strategy(comm, folder, there):
    changes = {**SHARDED, "epochs": 2}
    saved = Config(**{**changes, "epochs": 1, "strategy": there, "checkpoint": str(folder)})
    run(saved, comm, dataset=clouds())
    reference = run(Config(**{**changes, "strategy": "allreduce"}), dataset=clouds()).parameters
    path, results = checkpoints.find(folder), []
    for size in range(1, comm.size + 1):
        group = comm.Split(comm.rank < size, comm.rank)
        if comm.rank < size:
            for strategy in ("zero1", "allreduce", "parameter_server"):
                bucket = None if strategy == "parameter_server" else 64
                on = {**changes, "strategy": strategy, "resume": str(path), "bucket": bucket}
                resumed = run(Config(**on), group, dataset=clouds())
                assert (resumed.beginning.step, resumed.steps) == (7, 14)
                differences = parity.differences(resumed.parameters, reference)
                assert max(differences.values()) <= 1e-12, (size, strategy)
                results.append(resumed)
        group.Free()
    assert comm.rank or len(results) == 3 * comm.size


def test_a_disk_that_is_full_on_one_rank_ends_the_run_on_all(comm, folder, monkeypatch):
    config = Config(epochs=1, checkpoint=str(folder), **SHARDED)
    run(config, comm, dataset=clouds())

    def full(values):
        raise OSError(28, "No space left on device")

    on = Config(**{**vars(config), "epochs": 2, "resume": "auto"})
    for rank in range(comm.size):
        with monkeypatch.context() as patch:
            if comm.rank == rank:
                patch.setattr(array_files, "host", full)
            said = f"saving a checkpoint failed on rank {rank}: OSError: .* No space left on device"
            with pytest.raises(TrainingError, match=said) as caught:
                run(on, comm, dataset=clouds())
        assert len(set(comm.allgather(str(caught.value)))) == 1
        assert sorted(os.listdir(folder)) == ["best", "step-00000007"]
    assert run(on, comm, dataset=clouds()).steps == 14


def test_a_damaged_part_of_one_rank_is_named_on_all(comm, folder):
    config = Config(epochs=1, checkpoint=str(folder), **SHARDED)
    run(config, comm, dataset=clouds())
    path = checkpoints.find(folder) / f"rank-{comm.size - 1}.arrays"
    if comm.rank == 0:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    comm.Barrier()
    on = Config(**{**vars(config), "epochs": 2, "resume": "auto"})
    for strategy in ("zero1", "allreduce"):
        again = Config(**{**vars(on), "strategy": strategy})
        with pytest.raises(
            TrainingError, match=rf"rank-{comm.size - 1}\.arrays is damaged"
        ) as caught:
            run(again, comm, dataset=clouds())
        assert len(set(comm.allgather(str(caught.value)))) == 1


def test_a_model_is_measured_by_all_ranks_as_by_one(comm, folder):
    if comm.rank == 0:
        write_samples(folder / "data.npz")
    comm.Barrier()
    data, runs = str(folder / "data.npz"), folder / "runs"
    config = Config(**{**SHARDED, "dataset": data, "epochs": 2, "checkpoint": str(runs)})
    result = run(config, comm)
    found = evaluate(runs, comm)
    assert found.accuracy == result.history[-1].test_accuracy
    assert (found.step, found.epoch, found.samples, found.part) == (result.steps, 2, 60, "test")
    alone = evaluate(runs)
    assert found.loss == pytest.approx(alone.loss, rel=1e-12)
    assert found.accuracy == alone.accuracy
    assert comm.allgather(found) == [found] * comm.size
    model, parameters, buffers = load_model(runs)
    assert [layer.outputs for layer in model.layers[::2]] == [6, 4] and not buffers
    for name, array in result.parameters.items():
        assert np.array_equal(parameters[name], array)


def test_what_cannot_be_measured_is_said_on_all_ranks(comm, folder):
    run(Config(epochs=1, checkpoint=str(folder), **SHARDED), comm, dataset=clouds())
    if comm.rank == 0:
        write_samples(folder / "data.npz")
    comm.Barrier()
    data = str(folder / "data.npz")
    for words, changes in {
        "the run was given its data, clouds, in Python: name data": {},
        r"samples of data have shape \(16,\), and the model takes \(12,\)": {"data": data},
        "data set data has no validation set": {"data": data, "part": "validation"},
    }.items():
        with pytest.raises(TrainingError, match=words) as caught:
            evaluate(folder, comm, **changes)
        assert len(set(comm.allgather(str(caught.value)))) == 1
    with pytest.raises(TrainingError, match="reading a checkpoint failed on rank 0: FileNotFound"):
        evaluate(folder / "nowhere", comm)


class Several:
    """A model of four arrays of 1.25 MB that computes next to nothing."""

    SHAPE = (400, 400)

    def initial_parameters(self, seed):
        return {f"w{k}": np.full(self.SHAPE, k / 8) for k in range(4)}

    def loss_and_gradients(self, parameters, batch):
        share = len(batch.labels) / batch.total
        return 0.0, {name: np.full(self.SHAPE, share) for name in parameters}

    def losses_and_scores(self, parameters, inputs, labels):
        return np.zeros(len(labels)), np.zeros((len(labels), 4))


@pytest.mark.parametrize("strategy", ["zero1", "allreduce", "parameter_server"])
def test_a_checkpoint_takes_the_memory_of_its_largest_array(comm, folder, monkeypatch, strategy):
    """On every rank, of twelve arrays: nothing is gathered."""
    peaks = {"save": 0, "restore": 0}

    def measured(name, method):
        def call(*arguments):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            found = method(*arguments)
            peaks[name] = max(peaks[name], tracemalloc.get_traced_memory()[1] - before)
            return found

        return call

    changes = {"strategy": strategy, "optimizer": "adam", "batch": 101, "dtype": "float64"}
    config = Config(epochs=1, checkpoint=str(folder), **changes)
    run(config, comm, dataset=clouds(), model=Several())
    for name in peaks:
        method = getattr(checkpointing.Checkpointing, name)
        monkeypatch.setattr(checkpointing.Checkpointing, name, measured(name, method))
    tracemalloc.start()
    try:
        on = replace(config, epochs=2, resume="auto")
        assert run(on, comm, dataset=clouds(), model=Several()).steps == 2
    finally:
        tracemalloc.stop()
    largest = 8 * 400 * 400
    assert peaks["save"] <= 0.3 * largest  # from where the arrays are
    assert peaks["restore"] <= (1.3 if strategy == "parameter_server" else 0.3) * largest
    sizes = [file.stat().st_size for file in (folder / "step-00000002").glob("*.arrays")]
    assert sum(sizes) == 4 * 3 * largest
    assert len(sizes) == (comm.size if strategy == "zero1" else 1)
