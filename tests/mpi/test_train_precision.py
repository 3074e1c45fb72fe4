"""Narrow types on the launched ranks: the same decisions everywhere, as one process would."""

import numpy as np
import pytest
from clouds import clouds
from mpi4py import MPI

from mpicoll.train import Config, Dataset, run
from mpicoll.train.driver import checkpoints

pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size not in (1, 2, 3, 5), reason="1, 2, 3 and 5 ranks do"),
]
STRATEGIES = {
    "allreduce": {},
    "zero1": {"strategy": "zero1", "bucket": 100},
    "local_sgd": {"strategy": "local_sgd", "average_every": 2},
    "gossip": {"strategy": "gossip"},
    "colocated": {"strategy": "parameter_server"},
    "decentralized": {"strategy": "parameter_server", "servers": "decentralized"},
    "server": {"strategy": "parameter_server", "servers": "1"},
    "asynchronous": {"strategy": "parameter_server", "consistency": "ssp:2", "send_every": 1},
}


def configured(comm, name, **changes):
    if name == "server" and comm.size == 1:
        pytest.skip("a server and a worker need more ranks")
    base = {"model": "mlp", "hidden": (8,), "batch": 16, "epochs": 6, "optimizer": "adam"}
    return Config(**{**base, "lr": 0.02, **STRATEGIES[name], **changes})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_learns_as_in_float32(comm, name, dtype):
    config = configured(comm, name, dtype=dtype)
    ours = run(config, comm, dataset=clouds())
    reference = run(configured(comm, name), comm, dataset=clouds())
    assert {array.dtype for array in ours.parameters.values()} == {np.dtype("float32")}
    assert ours.history[-1].loss == pytest.approx(reference.history[-1].loss, abs=0.1)
    assert ours.history[-1].loss < 0.9 * ours.history[0].loss
    same = {tuple(a.tobytes() for a in p.values()) for p in comm.allgather(ours.parameters)}
    assert len(same) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["allreduce", "zero1", "colocated", "decentralized", "server"])
def test_sums_over_the_ranks_are_those_of_one_process(comm, name, dtype):
    """Each sample's gradient is rounded as there; sums of them are float32's."""
    config = configured(comm, name, dtype=dtype, optimizer="sgd", epochs=2, model="softmax")
    ours = run(config, comm, dataset=clouds())
    workers = config.worker_count(comm.size)
    alone = run(config.alone(workers), dataset=clouds())
    for key, array in alone.parameters.items():
        np.testing.assert_allclose(ours.parameters[key], array, atol=2e-3)


def overflowing(comm):
    """Samples of which one, of a batch of all, has inputs that overflow in float16 when scaled."""
    data = clouds()
    inputs = data.train_inputs.copy()
    inputs[:] = np.where(np.arange(101)[:, None] == 50, 1000 * inputs, inputs)
    return Dataset("one", 4, inputs, data.train_targets, data.test_inputs, data.test_targets)


def scaled_too_much(comm, name, folder):
    """A run in float16 whose first scale makes large slopes overflow."""
    more = {"dtype": "float16", "loss_scale": 2.0**24, "skip_limit": 30, "epochs": 3}
    return configured(comm, name, **more, checkpoint=str(folder))


@pytest.mark.parametrize("name", ["allreduce", "zero1", "local_sgd", "gossip"])
def test_all_ranks_leave_out_the_same_steps(comm, folder, name):
    """Slopes overflow on the ranks that have large ones, at a first scale that is too high."""
    config = scaled_too_much(comm, name, folder)
    steps = []
    result = run(config, comm, dataset=overflowing(comm), on_step=steps.append)
    skipped = [step.skipped for step in steps]
    assert comm.allgather(skipped) == [skipped] * comm.size
    assert skipped[0] and 3 < sum(skipped) < 20 and not all(skipped[-3:])
    assert sum(epoch.skipped for epoch in result.history) == sum(skipped)
    _, facts = checkpoints.load(checkpoints.find(folder))
    assert facts["scale"] == 2.0 ** (24 - sum(skipped))


@pytest.mark.parametrize("name", ["allreduce", "zero1", "local_sgd", "gossip"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_what_overflows_on_one_rank_is_left_out_by_all(comm, name, where):
    rank = 0 if where == "first" else comm.size - 1

    class Spiked:
        """A model of one weight, whose gradient on one rank is not finite in its second step."""

        calls = 0

        def initial_parameters(self, seed):
            return {"w": np.zeros(9, np.float32)}

        def loss_and_gradients(self, parameters, batch):
            self.calls += 1
            value = np.inf if self.calls == 2 and comm.rank == rank else 1.0
            return 0.0, {"w": np.full(9, value * len(batch.targets) / batch.total, np.float32)}

        def losses_and_outputs(self, parameters, inputs, labels):
            return np.zeros(len(labels)), np.zeros((len(labels), 4))

    config = configured(
        comm, name, dtype="float16", epochs=1, optimizer="sgd", lr=1.0, batch=20, loss_scale=8.0
    )
    steps = []
    result = run(config, comm, dataset=clouds(100), model=Spiked(), on_step=steps.append)
    assert [step.skipped for step in steps] == [False, True, False, False, False]
    np.testing.assert_allclose(result.parameters["w"], -4.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["colocated", "decentralized", "server"])
def test_servers_in_lockstep_leave_out_the_whole_step(comm, folder, name):
    config = scaled_too_much(comm, name, folder)
    seen = []
    result = run(config, comm, dataset=overflowing(comm), on_step=lambda s: seen.append(s.skipped))
    mine = comm.allgather(seen)
    anywhere = [any(step) for step in zip(*(own for own in mine if own), strict=True)]
    assert sum(epoch.skipped for epoch in result.history) == sum(anywhere) > 3
    same = {tuple(a.tobytes() for a in p.values()) for p in comm.allgather(result.parameters)}
    assert len(same) == 1
    _, facts = checkpoints.load(checkpoints.find(folder))
    assert 1 <= facts["scale"] < 2.0**24


@pytest.mark.parametrize("name", ["allreduce", "colocated"])
def test_a_run_goes_on_with_its_scale(comm, folder, name):
    config = {"dtype": "float16", "loss_scale": 2.0**24, "skip_limit": 30, "optimizer": "sgd"}
    whole = run(configured(comm, name, epochs=4, **config), comm, dataset=clouds())
    half = configured(comm, name, epochs=2, checkpoint=str(folder), **config)
    run(half, comm, dataset=clouds())
    on = configured(comm, name, epochs=4, resume=str(folder), **config)
    resumed = run(on, comm, dataset=clouds())
    assert [e.skipped for e in resumed.history] == [e.skipped for e in whole.history]
    for key, array in whole.parameters.items():
        np.testing.assert_allclose(resumed.parameters[key], array, rtol=1e-5, atol=1e-6)
