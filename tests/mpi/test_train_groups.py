"""Groups of parameters are the same training, however the ranks share the update."""

import pytest
from clouds import clouds
from float64 import Config
from mpi4py import MPI

from mpicoll.train import run
from mpicoll.train.driver import parity

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size not in (1, 2, 3, 5), reason="1, 2, 3 and 5 ranks do"),
]
GROUPS = {
    "groups": ("layer1.*:lr=0.5:decay=0.2", "layer2.bias:lr=3", "*.weight:decay=0"),
    "weight_decay": 0.1,
    "decay_on": "matrices",
}
STRATEGIES = {
    "allreduce": {"bucket": 100, "clip": 0.5},
    "zero1": {"strategy": "zero1", "bucket": 104},
    "zero1, clipping": {"strategy": "zero1", "clip": 0.5},
    "local_sgd": {"strategy": "local_sgd", "average_every": 1, "optimizer": "momentum"},
    "colocated": {"strategy": "parameter_server"},
    "decentralized": {"strategy": "parameter_server", "servers": "decentralized"},
    "server": {"strategy": "parameter_server", "servers": "1"},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_groups_are_those_of_one_process(comm, name):
    if name == "server" and comm.size == 1:
        pytest.skip("a server and a worker need more ranks")
    base = {"model": "mlp", "hidden": (7,), "optimizer": "adamw", "lr": 0.01, "batch": 8}
    config = Config(**{**base, "epochs": 20, "steps": 200, **GROUPS, **STRATEGIES[name]})
    ours = run(config, comm, dataset=clouds())
    alone = config.alone(config.worker_count(comm.size))
    reference = run(alone, dataset=clouds())
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-11
    plain = run(Config(**{**vars(alone), "groups": (), "decay_on": "all"}), dataset=clouds())
    assert min(parity.differences(plain.parameters, reference.parameters).values()) > 1e-3


@pytest.mark.parametrize("name", ["zero1", "colocated"])
def test_a_run_with_groups_goes_on(comm, folder, name):
    base = {"model": "mlp", "hidden": (7,), "optimizer": "adamw", "lr": 0.01, "batch": 8}
    config = {**base, **GROUPS, **STRATEGIES[name]}
    run(Config(**config, epochs=1, checkpoint=str(folder)), comm, dataset=clouds())
    ours = run(Config(**config, epochs=2, resume=str(folder)), comm, dataset=clouds())
    reference = run(Config(**{**config, "strategy": "allreduce"}, epochs=2), dataset=clouds())
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-11


@pytest.mark.parametrize("strategy", ["allreduce", "parameter_server"])
def test_a_rate_of_ones_own_is_one_process(comm, strategy):
    config = Config(strategy=strategy, batch=8, epochs=2)

    def rate(step):
        return 0.1 / (1 + step / 10)

    ours = run(config, comm, dataset=clouds(), schedule=rate)
    reference = run(config.alone(comm.size), dataset=clouds(), schedule=rate)
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-12


def test_callbacks_of_all_ranks_see_the_parameters(comm):
    for strategy in ("allreduce", "zero1", "local_sgd", "parameter_server"):
        seen = []
        run(
            Config(strategy=strategy, batch=32, epochs=1),
            comm,
            dataset=clouds(),
            on_epoch=lambda epoch, given, seen=seen: seen.append(given["layer1.weight"].tobytes()),
        )
        assert len(seen) == 1 and len(set(comm.allgather(seen[0]))) == 1
