"""A search on groups of ranks: strategies, failures, decisions, and going on."""

import pytest
from clouds import write_samples
from mpi4py import MPI

from mpicoll.train import TrainingError
from mpicoll.train.search import methods, trials
from mpicoll.train.search.loop import search
from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space

pytestmark = pytest.mark.mpi

shown_by_2_and_5_ranks = pytest.mark.skipif(
    MPI.COMM_WORLD.size not in (2, 5), reason="2 and 5 ranks show it"
)


@pytest.fixture
def space(comm, folder):
    """Learning rates of which some are so high that no step is finite."""
    if comm.rank == 0:
        write_samples(folder / "data.npz")
    comm.barrier()
    return Space.of(
        {
            "run": {
                "dataset": str(folder / "data.npz"),
                "model": "mlp",
                "hidden": [8],
                "epochs": 4,
                "strategy": "zero1" if comm.size > 3 else "allreduce",
            },
            "space": {
                "lr": {"choice": [0.001, 0.05, 1e300]},
                "momentum": {"uniform": [0.0, 0.9]},
            },
        }
    )


def options(comm, folder, **more):
    each = 2 if comm.size > 2 else 1
    given = {"method": "asha", "trials": 6, "eta": 2, "ranks_per_trial": each}
    return SearchOptions(**{**given, "out": str(folder / "found"), **more})


def records(folder):
    return trials.read(folder / "found" / trials.FILE)


def require_whole(folder):
    """Each job was told of once, and the method decides the same again."""
    found = records(folder)
    asked = [(r["trial"], r["epochs"]) for r in found if r["event"] == "asked"]
    told = [(r["trial"], r["epochs"]) for r in found if r["event"] == "told"]
    assert len(set(told)) == len(told)
    assert sorted(told) == sorted(asked)
    assert trials.replay(folder, found, methods.make_method(*trials.machine(found))) == len(asked)


@shown_by_2_and_5_ranks
@pytest.mark.parametrize("method", ["asha", "pbt"])
def test_groups_search_together(comm, folder, space, method):
    found = search(space, options(comm, folder, method=method), comm)
    assert {str(found)} == set(comm.allgather(str(found)))
    assert found.complete
    assert found.trials == 6
    assert found.values["lr"] < 1
    assert found.failed
    assert found.test["accuracy"] > 0.35
    if comm.rank == 0:
        require_whole(folder)
        groups = {r["group"] for r in records(folder) if r["event"] == "told"}
        assert groups == set(range((comm.size - 1) // (2 if comm.size > 2 else 1)))
    comm.barrier()


@pytest.mark.skipif(MPI.COMM_WORLD.size != 3, reason="one group of two shows it")
@pytest.mark.parametrize("run", [{"mesh": "pipe=2"}, {"mesh": "tensor=2"}, {"strategy": "fsdp"}])
def test_a_group_shares_a_model(comm, folder, space, run):
    """Layers cut over a group: the decisions and scores of a group that has copies."""
    each = {"trials": 4, "ranks_per_trial": 2}
    copies = search(space, options(comm, folder, **each, out=str(folder / "copies")), comm)
    shared = Space.of({**space.text, "run": {**space.text["run"], **run}})
    found = search(shared, options(comm, folder, **each), comm)
    assert found.complete
    assert found.failed.keys() == copies.failed.keys() != set()
    assert (found.trial, found.trained) == (copies.trial, copies.trained)
    assert found.validation == pytest.approx(copies.validation, rel=1e-3)
    assert found.test == pytest.approx(copies.test, rel=1e-3)
    if comm.rank == 0:
        require_whole(folder)
        assert {r["epochs"] for r in records(folder) if r["event"] == "told"} == {1, 2, 4}
    comm.barrier()


@shown_by_2_and_5_ranks
def test_what_stops_the_coordinator_stops_all(comm, folder, space):
    """A disk that is full, while groups train: the same error on all ranks, and then it goes on."""

    def fail(now):
        if sum(record["event"] == "told" for record in now.trials.records) >= 2:
            raise OSError("No space left on device")

    with pytest.raises(TrainingError, match="the search failed on rank 0: OSError: No space"):
        search(space, options(comm, folder), comm, watch=fail)
    found = search(space, options(comm, folder), comm, resume=True)
    assert found.complete
    if comm.rank == 0:
        require_whole(folder)
    comm.barrier()


@shown_by_2_and_5_ranks
def test_another_search_in_the_folder_is_refused_by_all(comm, folder, space):
    search(space, options(comm, folder, trials=2), comm)
    with pytest.raises(TrainingError, match="exists: continue with --resume"):
        search(space, options(comm, folder, trials=2), comm)
