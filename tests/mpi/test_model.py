"""What fitted parameters choose, and what they predict."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from mpi4py import MPI

from mpicoll import Intracomm
from mpicoll.simulate.costs import CostModel, Costs, Curve, Evidence, Piece
from mpicoll.train import run
from mpicoll.train.driver import predicted
from mpicoll.tuning import Choice, check, cost_files
from mpicoll.tuning.predict import predict

pytest.importorskip("pydantic")

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
COSTS = Costs({"intra": (Piece(None, 2e-6, 1e-10),)}, call=1e-6)
RULES = {"allreduce": [{"algorithms": ["ring"]}, {"nbytes": 1000, "algorithms": ["linear"]}]}


@pytest.fixture
def model(monkeypatch):
    """Writes parameters that rank 0 names; returns the folder."""
    folder = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None))

    def write(found):
        if RANK == 0:
            cost_files.write(folder / "model.json", found)
            monkeypatch.setenv("MPICOLL_MODEL", str(folder / "model.json"))
        WORLD.Barrier()
        return folder

    yield write
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)


def words(nbytes=8, collective="allreduce"):
    comm = Intracomm(WORLD.Dup())
    try:
        return comm.explain(collective, nbytes)
    finally:
        comm.Free()


def test_rules_of_the_model_choose_and_explain_tells_the_time(model):
    evidence = {"allreduce": {"ring": Evidence((P,), 8, 64, 4, 2, replicates=(COSTS,))}}
    model(CostModel(COSTS, {"allreduce": {"ring": COSTS}}, evidence=evidence, rules=RULES))
    found = words()
    ranks = "1 rank" if P == 1 else f"{P} ranks"
    assert f"on {ranks}: ring (cost model " in found
    seconds = 1e-6 + 2 * (P - 1) * (2e-6 + -(-8 // P) * 1e-10)
    said = float(found.split("predicted time ")[1].split(" us")[0]) * 1e-6
    assert said == pytest.approx(seconds, rel=1e-3)
    assert "own parameters" in found and "outside" not in found
    assert "linear (cost model " in words(1000) and "general parameters" in words(1000)
    comm = Intracomm(WORLD.Dup())
    comm.Allreduce(np.ones(2), np.zeros(2))
    assert comm.stats().calls == {("allreduce", "ring"): 1}
    comm.Free()


def test_what_comes_before_the_model(model, monkeypatch):
    folder = model(CostModel(COSTS, rules=RULES))
    if RANK == 0:
        rules = '{"mpicoll": "tuning 1", "rules": {"allreduce": [{"algorithms": ["binomial"]}]}}'
        (folder / "tuning.json").write_text(rules)
        monkeypatch.setenv("MPICOLL_TUNING", str(folder / "tuning.json"))
    assert "binomial (tuning file " in words(1 << 20)
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_ALLREDUCE", "swing")
    assert "(MPICOLL_ALLREDUCE); predicted time " in words()
    assert "(built-in table); " in words(collective="bcast")


def test_the_library_where_it_was_not_measured(model, monkeypatch):
    curve = Curve({P: ((8, 3e-6, 2e-6, 4e-6),)})
    model(CostModel(COSTS, curves={"allreduce": {"native": curve}}))
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_ALLREDUCE", "native")
        monkeypatch.setenv("MPICOLL_BCAST", "native")
    assert "predicted time 3 us (2 to 4 us, by curve through measurements" in words()
    assert "no prediction: bcast native was not measured" in words(collective="bcast")


@pytest.mark.parametrize("rules", [RULES, {"allreduce": [{"algorithms": ["rign"]}]}, None])
def test_a_wrong_model_is_the_same_error_everywhere(model, rules):
    folder = model(CostModel(COSTS, rules=rules or {}))
    if rules is None and RANK == 0:
        (folder / "model.json").write_text("{}")
    WORLD.Barrier()
    comm = WORLD.Dup()
    if rules == RULES:
        Intracomm(comm)
    else:
        with pytest.raises(ValueError, match=r"^MPICOLL_MODEL: .*model\.json.*(rign|required)"):
            Intracomm(comm)
    comm.Free()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [("allreduce", 208), ("allreduce", 208)]),
        ({"strategy": "zero1"}, [(c, 208) for c in ("reduce_scatter", "allgather") * 2]),
        ({"wire": "fp16"}, None),
        ({"strategy": "gossip"}, None),
    ],
    ids=["allreduce", "zero1", "narrow", "gossip"],
)
def test_training_predicts_the_collectives_of_a_step(model, changes, expected):
    found = CostModel(COSTS, {})
    model(found)
    comm = Intracomm(WORLD.Dup())
    config = Config(
        **{"batch": 16, "epochs": 1, "steps": 2, "bucket": 208, "algorithm": "ring", **changes}
    )
    result = run(config, comm, dataset=clouds())
    if expected is None:
        assert result.predicted is None
    else:
        header = ("allreduce", 8 * (4 + 2 * P))
        wanted = 0.0
        for name, nbytes in [*expected, header]:
            choice = Choice("ring", check(name, "ring", {}))
            wanted += predict(found, name, choice, P, nbytes).seconds
        assert result.predicted == pytest.approx(wanted)
    assert result.communicated > 0
    comm.Free()


def test_training_takes_buckets_that_the_model_finds_small_and_not_dear(model):
    costs = Costs({"intra": (Piece(None, 1e-3, 1e-8),)})
    model(CostModel(costs, {}))
    comm = Intracomm(WORLD.Dup())
    comm.Barrier()
    if P == 1:
        assert predicted.bucket(comm, "ring", 1 << 20) == 4096  # one rank sends nothing
    else:
        found = predicted.bucket(comm, "ring", 1 << 24)
        times = {
            size: (1 << 24) // size * predicted.seconds(comm, "ring", [("allreduce", size)])
            for size in (found // 2, found, 1 << 24)
        }
        assert times[found] <= 1.1 * times[1 << 24] < times[found // 2]
    result = run(Config(batch=16, epochs=1, bucket="model"), comm, dataset=clouds())
    assert result.steps == 7
    comm.Free()
