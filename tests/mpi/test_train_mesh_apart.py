"""local_sgd and gossip on meshes: replicas learn by themselves, and mix what they have learnt."""

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from meshes import decoder, plain, sentences
from mpi4py import MPI

from mpicoll.train import TrainingError, run
from mpicoll.train.driver import checkpoints, parity
from mpicoll.train.models import Dense, Sequential
from mpicoll.train.strategies.stage_trainer import StageTrainer

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(P not in (4, 8), reason="replicas of two ranks and more"),
    *([pytest.mark.long] if P != 4 else []),
]
#: Batches of parts of equal sizes, so that replicas have the samples of ranks with all layers.
BASE = {"optimizer": "adamw", "lr": 0.01, "batch": 16, "steps": 5, "weight_decay": 0.1}
MESHES = {
    4: ["data=2,pipe=2", "data=2,tensor=2"],
    8: ["data=4,pipe=2", "data=4,tensor=2", "data=2,pipe=2,tensor=2"],
}
STRATEGIES = {
    "local_sgd": {"average_every": 2},
    "gossip": {"graph": "exponential"},
}


def learnt(comm, folder, model, data, **options):
    """All that a run keeps, whole."""
    config = Config(**{**BASE, **options}, epochs=3, checkpoint=str(folder))
    result = run(config, comm, dataset=data, model=model)
    found, _ = checkpoints.load(checkpoints.find(folder))
    comm.Barrier()
    return result, found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mesh", MESHES.get(P, ()))
@pytest.mark.parametrize("name", ["plain", "decoder"])
def test_replicas_learn_what_ranks_with_all_layers_do(comm, folder, mesh, strategy, name):
    """Ties and dropout too; and they do not learn what all-reduce does."""
    model = {"plain": plain, "decoder": decoder}[name]()
    data = clouds() if name == "plain" else sentences(80)
    options = {"strategy": strategy, **STRATEGIES[strategy]}
    axes = Config(mesh=mesh).axes
    result, found = learnt(comm, folder / "mesh", model, data, mesh=mesh, microbatches=2, **options)
    ranks = comm.Split(int(comm.rank >= axes["data"]), comm.rank)
    if comm.rank < axes["data"]:
        alike, expected = learnt(ranks, folder / "plain", model, data, **options)
        assert found.keys() == expected.keys()
        if strategy == "gossip":  # replicas keep the optimizer's arrays to themselves
            kept = {title for title in found if title.startswith("parameter")}
            found, expected = ({t: a[t] for t in kept} for a in (found, expected))
        assert max(parity.differences(found, expected).values()) <= 1e-12
        assert [e.loss for e in result.history] == pytest.approx(
            [e.loss for e in alike.history], rel=1e-12
        )
        _, together = learnt(ranks, folder / "together", model, data)
        assert max(parity.differences(found, {t: together[t] for t in found}).values()) > 1e-6
    ranks.Free()


@pytest.mark.skipif(P != 4, reason="4 ranks show it")
def test_averages_of_every_step_are_those_of_all_reduce(comm, folder):
    """Plain SGD; on the stages a parameter is shared by."""
    options = {"mesh": "data=2,pipe=2", "optimizer": "sgd", "weight_decay": 0.0, "check_every": 1}
    given = comm, folder / "apart", decoder(), sentences(80)
    _, found = learnt(*given, strategy="local_sgd", average_every=1, **options)
    _, expected = learnt(comm, folder / "together", decoder(), sentences(80), **options)
    assert max(parity.differences(found, expected).values()) <= 1e-12


@pytest.mark.skipif(P != 4, reason="4 ranks show it")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_that_is_not_finite_on_one_replica_is_skipped_by_all(comm, strategy):
    data = clouds()
    data.train_inputs[5] = np.nan
    config = Config(**BASE, mesh="data=2,tensor=2", strategy=strategy, epochs=3)
    with np.errstate(invalid="ignore"):
        found = run(config, comm, dataset=data, model=plain())
    assert found.history[0].skipped == 1
    assert comm.allgather(found.history[0].skipped) == [1] * P


@pytest.mark.skipif(P != 4, reason="4 ranks show it")
def test_a_stage_without_parameters_mixes_nothing(comm):
    """And what drifts within a replica is found: stages share a parameter."""
    model = Sequential([Dense(6), Dense(4), *plain().layers[1:3]], (12,), "float64")
    options = {"mesh": "data=2,pipe=2", "cut": "0,2", "strategy": "gossip", "check_every": 1}
    found = run(Config(**BASE, **options, epochs=3), comm, dataset=clouds(), model=model)
    assert found.steps == 5
    assert comm.allgather(len(found.parameters)) == [4, 4, 0, 0]


@pytest.mark.skipif(P != 4, reason="4 ranks show it")
def test_parts_that_drift_within_a_replica_are_found(comm, monkeypatch):
    """Replicas differ, and are not compared; what all parts of one have is."""
    change = StageTrainer._change

    def drift(self, name, weights, gradient, lr, step):
        change(self, name, weights, gradient, lr, step)
        if comm.rank == 1 and name == "layer2.bias":
            weights += 1.0

    monkeypatch.setattr(StageTrainer, "_change", drift)
    model = Sequential([Dense(6), Dense(5), Dense(4)], (12,), "float64")
    options = {"mesh": "data=2,tensor=2", "strategy": "local_sgd", "check_every": 2}
    config = Config(**BASE, **options, average_every=5, epochs=3)
    words = "after step 2 of epoch 1 parameter layer2.bias of rank 1 differs from that of rank 0"
    with pytest.raises(TrainingError, match=words):
        run(config, comm, dataset=clouds(), model=model)
