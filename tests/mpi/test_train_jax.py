"""A loss in JAX, on the launched ranks, by every data-parallel strategy."""

import numpy as np
import pytest
from clouds import clouds
from mpi4py import MPI

from mpicoll.train import Config, run

if MPI.COMM_WORLD.size not in (1, 2, 3):
    pytest.skip("1, 2 and 3 ranks show it", allow_module_level=True)
jax = pytest.importorskip("jax", reason="JAX is not installed")
from mpicoll.train.jax import jax_model  # noqa: E402

pytestmark = pytest.mark.mpi


def scores(parameters, inputs):
    return inputs @ parameters["w"] + parameters["b"]


def loss(parameters, inputs, labels):
    logs = jax.nn.log_softmax(scores(parameters, inputs))
    return -jax.numpy.take_along_axis(logs, labels[:, None], axis=1)[:, 0]


def model():
    start = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
    return jax_model(loss, {"w": start / 10, "b": np.zeros(4, np.float32)}, scores)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "zero1", "bucket": 100},
        {"strategy": "local_sgd", "average_every": 1},
        {"strategy": "gossip"},
        {"strategy": "parameter_server"},
        {"strategy": "parameter_server", "servers": "decentralized"},
        {"accumulate": 2, "batch": 4},
    ],
    ids=lambda changes: ", ".join(map(str, changes.values())) or "allreduce",
)
def test_every_strategy_takes_it(comm, changes):
    config = Config(**{"batch": 8, "epochs": 2, "optimizer": "sgd", "lr": 0.1, **changes})
    ours = run(config, comm, dataset=clouds(), model=model())
    reference = run(config.alone(comm.size), dataset=clouds(), model=model())
    exact = changes.get("strategy") != "gossip"
    for name, array in reference.parameters.items():
        limit = 1e-5 if exact else 0.3
        np.testing.assert_allclose(ours.parameters[name], array, atol=limit)
    assert ours.history[-1].loss < ours.history[0].loss
