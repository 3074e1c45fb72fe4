"""Training with arrays on a GPU does what it does on the host, by every strategy."""

import sys

import fake_cupy
import numpy as np
import pytest
from float64 import Config
from mpi4py import MPI

from mpicoll.train import Dataset, run

pytestmark = pytest.mark.mpi

P = MPI.COMM_WORLD.size


def blobs(image=False):
    """A data set of three clouds; their samples may be images."""
    random = np.random.default_rng(5)
    labels = np.arange(96) % 3
    inputs = random.standard_normal((96, 16)) + labels[:, None]
    inputs = inputs.reshape(-1, 4, 4) if image else inputs
    return Dataset("clouds", 3, inputs[:72], labels[:72], inputs[72:], labels[72:])


def off_by(more):
    """The host adds up halves in float32, what stands for CuPy here does not."""
    return 0.01 if more.get("dtype") == "float16" else 0.0


@pytest.fixture
def cupy(monkeypatch):
    made = fake_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "allreduce", "model": "mlp", "hidden": (5,), "dropout": 0.1, "clip": 1.0},
        {"strategy": "allreduce", "dtype": "float16", "optimizer": "adam"},
        {"strategy": "zero1", "optimizer": "adamw"},
        {"strategy": "local_sgd", "average_every": 2},
        {"strategy": "gossip"},
        {"strategy": "parameter_server", "servers": "colocated"},
        {"strategy": "parameter_server", "servers": "decentralized"},
    ],
    ids=lambda more: "-".join(str(value) for value in more.values()),
)
def test_the_same_parameters(comm, cupy, more):
    config = {"epochs": 2, "batch": 24, "check_every": 1, "algorithm": "ring", **more}
    data = blobs()
    host = run(Config(**config), comm, dataset=data)
    kinds = []

    def look(step):
        kinds.append(step.number)

    device = run(Config(**config, device="gpu"), comm, dataset=data, on_step=look)
    assert kinds
    limit = off_by(more)
    for name, expected in host.parameters.items():
        assert type(device.parameters[name]) is np.ndarray
        np.testing.assert_allclose(device.parameters[name], expected, rtol=0, atol=limit)
    found, expected = ([e.loss for e in run.history] for run in (device, host))
    assert found == pytest.approx(expected, rel=0, abs=limit)


def test_a_checkpoint_of_a_gpu_goes_on_on_the_host(comm, cupy, folder):
    same = {"batch": 24, "algorithm": "ring"}  # the order of sums, on the host and on GPUs
    config = {**same, "optimizer": "momentum", "checkpoint": str(folder / "kept")}
    data = blobs()
    whole = run(Config(epochs=3, device="gpu", **same), comm, dataset=data)
    run(Config(epochs=1, device="gpu", **config), comm, dataset=data)
    run(Config(epochs=2, device="cpu", resume="auto", **config), comm, dataset=data)
    last = run(Config(epochs=3, device="gpu", resume="auto", **config), comm, dataset=data)
    for name, expected in whole.parameters.items():
        np.testing.assert_array_equal(last.parameters[name], expected)


@pytest.mark.parametrize(
    "more",
    [
        {"model": "conv", "hidden": (4,)},
        {"model": "resnet"},
        {"model": "resnet", "norm": "local", "dtype": "float16"},
    ],
    ids=lambda more: "-".join(map(str, more.values())),
)
def test_a_convolutional_net(comm, cupy, more):
    config = {"channels": (2,), "epochs": 1, "batch": 24, "algorithm": "ring", **more}
    data = blobs(image=True)
    host = run(Config(**config), comm, dataset=data)
    device = run(Config(**config, device="gpu"), comm, dataset=data)
    for name, expected in host.parameters.items():
        np.testing.assert_allclose(device.parameters[name], expected, rtol=0, atol=off_by(more))
