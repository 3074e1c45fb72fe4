"""zero1 and fsdp on meshes: replicas of stages and of parts of layers own pieces of parameters."""

import warnings

import numpy as np
import pytest
from float64 import Config
from meshes import PROBLEMS, plain
from mpi4py import MPI

from mpicoll.train import TrainingError, run
from mpicoll.train.driver import checkpoints, parity

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(180),
    pytest.mark.skipif(P not in (2, 3, 4, 6, 8), reason="a mesh has several ranks"),
    *([pytest.mark.long] if P not in (2, 4) else []),
]
BASE = {
    "optimizer": "adamw",
    "lr": 0.01,
    "batch": 12,
    "clip": 0.3,
    "warmup": 3,
    "weight_decay": 0.1,
    "decay_on": "matrices",
    "groups": ("*.bias:lr=0.5",),
    "accumulate": 2,
    "microbatches": 2,
    "epochs": 2,
}
#: Of so many ranks.
MESHES = {
    2: ["data=1,pipe=2", "data=1,tensor=2"],
    3: ["data=1,pipe=3", "data=1,tensor=3"],
    4: ["data=2,pipe=2", "data=2,tensor=2"],
    6: ["data=3,pipe=2", "data=3,tensor=2", "data=2,pipe=3"],
    8: ["data=2,pipe=2,tensor=2", "data=4,pipe=2", "data=2,pipe=4", "data=4,tensor=2"],
}
SHORT = {4: [("decoder", "data=2,pipe=2"), ("normed", "data=2,tensor=2")]}
CASES = [
    pytest.param(name, mesh, marks=[] if (name, mesh) in SHORT.get(P, ()) else pytest.mark.long)
    for name in PROBLEMS
    for mesh in MESHES[P]
]


def learnt(comm, folder, name, **options):
    """What a run on these ranks comes to, and all that it keeps, whole."""
    model, data = PROBLEMS[name]
    config = Config(**{**BASE, **options}, checkpoint=str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of microbatches that are empty
        result = run(config, comm, dataset=data(), model=model())
    found, facts = checkpoints.load(checkpoints.find(folder))
    comm.Barrier()
    return result, found, facts


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_zero1_fsdp_and_all_reduce_have_equal_bits_in_rank_order(comm, folder, name, mesh):
    """Adam, groups, clipping, accumulation, ties, statistics; and they learn what one process does."""
    options = {"mesh": mesh, "algorithm": "linear", "epochs": 2}
    expected, whole, facts = learnt(comm, folder / "allreduce", name, **options)
    for strategy in "zero1", "fsdp":
        found, same, theirs = learnt(comm, folder / strategy, name, strategy=strategy, **options)
        assert same.keys() == whole.keys()
        for title, array in whole.items():
            np.testing.assert_array_equal(same[title], array, err_msg=f"{strategy} {title}")
        assert (theirs["updates"], theirs["skipped"]) == (facts["updates"], facts["skipped"])
        assert [e.test for e in found.history] == [e.test for e in expected.history]
    model, data = PROBLEMS[name]
    replicas = P // (Config(mesh=mesh).axes["pipe"] * Config(mesh=mesh).axes["tensor"])
    alone = {**BASE, "microbatches": None, "invariant": 2 * replicas, "epochs": 2}
    reference = run(Config(**alone), dataset=data(), model=model())
    limit = 1e-10 if name == "normed" else 1e-12
    parameters = {t.removeprefix("parameter/"): a for t, a in whole.items() if "parameter/" in t}
    assert max(parity.differences(parameters, reference.parameters).values()) <= limit
