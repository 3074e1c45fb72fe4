"""The same bits on any number of ranks, for every bucket size; shares that follow speed."""

import time
from dataclasses import replace

import numpy as np
import pytest
from clouds import clouds
from float64 import MLP, Config
from mpi4py import MPI

from mpicoll.train import TrainingError, run
from mpicoll.train.driver import checkpoints, parity

pytestmark = pytest.mark.mpi
P = MPI.COMM_WORLD.size

CASES = {
    "momentum": {"model": "mlp", "hidden": (9,)},
    "adam, accumulation, clipping": {"optimizer": "adam", "accumulate": 3, "clip": 0.5, "batch": 7},
    "conv, dropout, float32": {
        "model": "conv",
        "channels": (3,),
        "hidden": (6,),
        "dropout": 0.3,
        "dtype": "float32",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_the_number_of_ranks(comm, case):
    config = Config(**{"batch": 24, "epochs": 1, "invariant": 8, "lr": 0.01, **CASES[case]})
    data = clouds(shape=(3, 4)) if config.model == "conv" else clouds()
    alone = run(config, dataset=data)
    for bucket in (None, 104) if P > 3 else (None, 104, 8):
        ours = run(replace(config, bucket=bucket), comm, dataset=data)
        for name, array in alone.parameters.items():
            assert ours.parameters[name].tobytes() == array.tobytes(), (bucket, name)
        for mine, theirs in zip(ours.history, alone.history, strict=True):
            assert (mine.loss, mine.test) == (theirs.loss, theirs.test)
    usual = run(replace(config, invariant=None), dataset=data)
    differences = parity.differences(alone.parameters, usual.parameters)
    assert max(differences.values()) < (1e-4 if config.dtype == "float32" else 1e-11)


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(P > 3, reason="3 ranks and fewer show it")
def test_an_invariant_run_goes_on_elsewhere_with_the_same_bits(comm, folder):
    config = Config(batch=24, epochs=2, invariant=5, optimizer="adam", lr=0.01)
    run(replace(config, epochs=1, checkpoint=str(folder)), comm, dataset=clouds())
    reference = run(config, dataset=clouds()).parameters
    resumed = run(replace(config, resume=str(checkpoints.find(folder))), dataset=clouds())
    assert resumed.parameters["layer1.weight"].tobytes() == reference["layer1.weight"].tobytes()


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(P > 3, reason="3 ranks and fewer show it")
def test_more_ranks_than_shards_are_refused_by_all(comm):
    with pytest.raises(TrainingError, match=f"{P - 1} virtual shards .* give invariant={P} or"):
        run(Config(invariant=P - 1), comm, dataset=clouds())


@pytest.mark.skipif(P != 3, reason="3 ranks show it")
def test_deterministic_runs_have_the_same_bits_for_every_bucket_size(comm):
    with pytest.raises(TrainingError, match="with ring the order of a sum depends on where"):
        run(Config(deterministic=True, algorithm="ring"), comm, dataset=clouds())
    config = Config(deterministic=True, algorithm="parameter_server", epochs=1, batch=16)
    found = {
        run(replace(config, bucket=bucket), comm, dataset=clouds())
        .parameters["layer1.weight"]
        .tobytes()
        for bucket in (None, 8, 104)
    }
    assert len(found) == 1


@pytest.mark.skipif(P not in (2, 4), reason="2 and 4 ranks show it")
def test_shares_follow_the_speed_of_a_slow_rank(comm):
    last, counts = P - 1, []

    class Paced(MLP):
        """Its ranks need 2 ms a sample, the last one three times that."""

        def push_gradients(self, parameters, batch, push):
            counts.append(len(batch.targets))
            time.sleep(len(batch.targets) * (0.003 if comm.rank == last else 0.001))
            return super().push_gradients(parameters, batch, push)

    config = Config(balance="speed", batch=40, epochs=7)
    ours = run(config, comm, dataset=clouds(80), model=Paced((12, 4)))
    shares = np.array(comm.allgather(counts))
    assert (shares.sum(axis=0) == 40).all()
    assert shares[:, 0].tolist() == [40 // P] * P
    assert shares[last, -1] < 0.6 * shares[0, -1]
    reference = run(config.alone(P), dataset=clouds(80))
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-12
