"""Ranks that train apart: periodic averaging and gossip."""

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from mpi4py import MPI

from mpicoll.train import run
from mpicoll.train.driver import parity
from mpicoll.train.ranks.workers import AllReduceWorkers
from mpicoll.train.strategies import apart

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size not in (2, 4), reason="2 and 4 ranks show it"),
]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_an_average_after_every_step_is_all_reduce(comm, optimizer):
    config = {"optimizer": optimizer, "batch": 8, "epochs": 16, "steps": 200}
    ours = run(Config(strategy="local_sgd", average_every=1, **config), comm, dataset=clouds())
    reference = run(Config(**config), dataset=clouds())
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-12


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "local_sgd", "average_every": 5},
        {"strategy": "gossip", "graph": "ring"},
        {"strategy": "gossip", "graph": "exponential", "dtype": "float32"},
    ],
    ids=["local_sgd", "ring", "exponential"],
)
def test_ranks_apart_learn_and_end_with_one_model(comm, changes):
    config = {"optimizer": "sgd", "batch": 20, "epochs": 6}
    ours = run(Config(**config, **changes), comm, dataset=clouds())
    reference = run(Config(**config), dataset=clouds())
    assert ours.history[-1].loss < reference.history[-1].loss + 0.1
    same = comm.allgather(ours.parameters["layer1.weight"].tobytes())
    assert len(set(same)) == 1


def test_they_are_apart_between_averages(comm):
    seen = []
    config = Config(strategy="local_sgd", average_every=3, batch=8, epochs=1, check_every=1)
    weights = {}

    class Watched(apart.PeriodicAverage):
        def mix(self, step, values, state):
            super().mix(step, values, state)
            seen.append(len(set(comm.allgather(values.tobytes()))) == 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart, "PeriodicAverage", Watched)
        weights = run(config, comm, dataset=clouds()).parameters
    assert seen == [step % 3 == 0 or comm.size == 1 for step in range(1, 14)]
    assert weights.keys() == {"layer1.weight", "layer1.bias"}


@pytest.mark.parametrize("graph", ["ring", "exponential"])
def test_gossip_keeps_the_mean(comm, graph):
    workers = AllReduceWorkers(comm, None)
    gossip = apart.Gossip(workers, graph)
    values = np.random.default_rng(comm.rank).standard_normal(9)
    mean = np.mean(comm.allgather(values), axis=0)
    for step in range(1, 60):
        gossip.mix(step, values, [])
        np.testing.assert_allclose(np.mean(comm.allgather(values), axis=0), mean, atol=1e-14)
    np.testing.assert_allclose(values, mean, atol=1e-7)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_exponential_graph_averages_exactly_after_log_p_rounds(comm, size):
    if comm.size < size:
        pytest.skip("fewer ranks")
    group = comm.Split(comm.rank < size, comm.rank)
    if comm.rank < size:
        gossip = apart.Gossip(AllReduceWorkers(group, None), "exponential")
        values = np.full(3, 2.0**comm.rank)
        for step in range(1, size.bit_length()):
            gossip.mix(step, values, [])
        assert values.tolist() == [(2**size - 1) / size] * 3
    group.Free()
