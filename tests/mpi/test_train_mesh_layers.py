"""Modules of PyTorch, and layers with statistics, on meshes: what is learnt, and checkpoints."""

import warnings

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from meshes import normed
from mpi4py import MPI

from mpicoll.schedule.layout import part
from mpicoll.train import run
from mpicoll.train.data.sampler import Sampler
from mpicoll.train.driver import checkpoints, parity
from mpicoll.train.models import Batch, Dense, Sequential

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(P not in (2, 4), reason="2 and 4 ranks show it"),
]
BASE = {"optimizer": "adam", "lr": 0.01, "batch": 12, "clip": 0.5, "epochs": 2, "microbatches": 2}
#: The last batch has 8: statistics of PyTorch's modules need two for each microbatch.
SAMPLES = 104
#: Two meshes with as many replicas.
MESHES = {2: ("pipe=2", "tensor=2"), 4: ("data=2,pipe=2", "data=2,tensor=2")}


def modules():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from mpicoll.train.pytorch import TorchLayer

    torch.manual_seed(3)
    torch.set_num_threads(1)
    last = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    layers = [torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), last]
    return Sequential(
        [
            *(TorchLayer(module.double()) for module in layers[:3]),
            Dense(8),
            TorchLayer(last.double()),
        ],
        (12,),
        "float64",
    )


def kept(comm, folder, model, **options):
    """All arrays of the last checkpoint of a run, and its outcome."""
    config = Config(**{**BASE, **options}, checkpoint=str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[0-9]+ of [0-9]+ microbatches are empty")
        result = run(config, comm, dataset=clouds(SAMPLES), model=model)
    found, _ = checkpoints.load(checkpoints.find(folder))
    comm.Barrier()
    return found, result


@pytest.mark.parametrize("make", [normed, modules])
@pytest.mark.parametrize("strategy", ["allreduce", "fsdp"])
def test_a_run_with_statistics_goes_on(comm, folder, make, strategy):
    """On the same mesh to the bit; on another one with as many replicas but for rounding."""
    first, second = MESHES[P]
    whole, expected = kept(comm, folder / "whole", make(), mesh=first, strategy=strategy)
    options = {"mesh": first, "strategy": strategy, "pause_after": 1}
    half, _ = kept(comm, folder / "half", make(), **options)
    statistics = [title for title in whole if title.startswith("buffer/")]
    assert statistics and any((whole[title] != half[title]).any() for title in statistics)
    for mesh in first, second:
        options = {"mesh": mesh, "strategy": strategy, "resume": str(folder / "half")}
        found, result = kept(comm, folder / mesh, make(), **options)
        assert found.keys() == whole.keys()
        if mesh == first:
            for title, array in whole.items():
                np.testing.assert_array_equal(found[title], array, err_msg=title)
            assert result.test == expected.test
        elif make is normed:  # modules are computed whole on ranks that share layers
            assert max(parity.differences(found, whole).values()) <= 1e-9


@pytest.mark.parametrize("make", [normed, modules])
def test_statistics_are_the_mean_of_the_replicas(comm, folder, make):
    """Each replica's follow its microbatches one by one; samples weigh alike."""
    data, model = clouds(11), make()
    options = {"mesh": MESHES[P][0], "steps": 1, "batch": 11}
    config = Config(**{**BASE, **options}, checkpoint=str(folder))
    run(config, comm, dataset=data, model=make())
    found, _ = checkpoints.load(checkpoints.find(folder))
    [order] = Sampler(11, 11).batches(1)
    replicas, means = P // 2, {}
    for replica in range(replicas):
        buffers = model.initial_buffers()
        arrays, count = {**model.initial_parameters(0), **buffers}, 0
        for index in 2 * replica, 2 * replica + 1:
            first, length = part(11, 2 * replicas, index)
            rows = order[first : first + length]
            batch = Batch(data.train_inputs[rows], data.train_targets[rows], 11, rows)
            model.chunk(0, len(model.layers)).forward(arrays, batch.inputs, batch, lambda a: a)
            count += length
        for name, array in buffers.items():
            means[name] = means.get(name, 0) + array * count / 11
    for name, mean in means.items():
        if mean.dtype.kind == "f" and "num_batches" not in name:
            np.testing.assert_allclose(found[f"buffer/{name}"], mean, rtol=1e-12, atol=1e-14)
