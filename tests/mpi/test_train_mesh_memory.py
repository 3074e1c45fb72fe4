"""What a run on a mesh says it will take, beside what it takes."""

import tracemalloc

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.train import Config, run
from mpicoll.train.data import from_arrays
from mpicoll.train.driver import memory
from mpicoll.train.models import Dense, Gelu, LayerNorm, ReLU, Residual, Sequential

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(P not in (2, 4), reason="2 and 4 ranks show it"),
]


def chain():
    """Layers of several sizes, of which some have several matrices."""
    block = Residual((LayerNorm(), Dense(800), Gelu(), Dense(400)))
    wide = Residual((Dense(600), Gelu(), Dense(600)))
    layers = [Dense(400), ReLU(), block, block, Dense(600), ReLU(), wide, Dense(8)]
    return Sequential(layers, (64,), "float32")


def points(samples=64):
    inputs = np.random.default_rng(0).standard_normal((samples, 64)).astype("float32")
    arrays = {"train_inputs": inputs, "train_labels": np.arange(samples) % 8}
    return from_arrays("points", arrays)


MESHES = {
    2: ["data=1,pipe=2", "data=1,tensor=2"],
    4: ["data=2,pipe=2", "data=2,tensor=2"],
}
CASES = [
    {"mesh": mesh, "strategy": strategy}
    for mesh in MESHES.get(P, ())
    for strategy in (("allreduce", "zero1", "fsdp") if P == 4 else ("allreduce",))
]
if P == 4:
    CASES.append({"mesh": "data=2,tensor=2", "strategy": "fsdp", "keep_gathered": True})
    CASES.append({"mesh": "data=2,pipe=2", "strategy": "fsdp", "dtype": "bfloat16"})
    CASES.append({"mesh": "data=2,pipe=2", "strategy": "fsdp", "gather": "broadcast"})
    CASES.append({"mesh": "data=2,pipe=2", "strategy": "local_sgd"})
    CASES.append({"mesh": "data=2,tensor=2", "strategy": "gossip"})


@pytest.mark.parametrize("options", CASES, ids=lambda o: " ".join(map(str, o.values())))
def test_the_estimate_is_near_the_peak(comm, monkeypatch, options):
    """Of every rank: at most a tenth too much, and a twentieth too little."""
    said = []

    def spied(function):
        def called(*arguments):
            said.append(function(*arguments))
            return said[-1]

        return called

    for name in ("estimate", "taken"):
        monkeypatch.setattr(memory, name, spied(getattr(memory, name)))
    config = Config(optimizer="adam", steps=2, batch=64, microbatches=2, **options)
    data, model = points(), chain()
    tracemalloc.start()
    try:
        run(config, comm, dataset=data, model=model, quiet=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    needed, taken = said
    every = comm.allgather((peak, needed, taken))
    for rank, (own, needs, has) in enumerate(every):
        estimate = sum(needs.values()) + has["parameters"]
        assert own >= 10e6
        assert 0.95 <= estimate / own <= 1.1, (rank, estimate / own, own, needs, has)
