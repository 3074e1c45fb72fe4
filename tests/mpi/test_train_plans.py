"""Plans against runs: the memory that a run says it will take, and what steps send."""

from pathlib import Path

import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.simulate.costs import INTRA, CostModel, Costs, Piece
from mpicoll.train import Config
from mpicoll.train.driver import memory
from mpicoll.train.models import MLP, transformer
from mpicoll.train.planner import measured, modelled, plan_file
from mpicoll.train.planner.bounds import Bounds
from mpicoll.train.planner.cluster import Cluster
from mpicoll.train.planner.problem import Problem
from mpicoll.train.planner.space import Candidate
from mpicoll.train.ranks.workers import AllReduceWorkers
from mpicoll.train.strategies.protocol import slots, strategy_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
P = MPI.COMM_WORLD.size
BATCH = 24
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(P != 4, reason="plans of four ranks"),
]
AHEAD = (("ahead", 0),)
PLANS = [
    *(Candidate(4, 1, 1, name) for name in ("allreduce", "zero1", "fsdp")),
    Candidate(4, 1, 1, "fsdp", 2),
    Candidate(1, 4, 1, "allreduce", 8, False, "gpipe"),
    Candidate(1, 4, 1, "allreduce", 8, True, "1f1b", AHEAD),
    Candidate(1, 4, 1, "allreduce", 6, False, "zb_h1"),
    Candidate(1, 4, 1, "allreduce", 6, False, "zb_v"),
    Candidate(1, 2, 1, "allreduce", 4, False, "interleaved", (("chunks", 2),)),
    Candidate(2, 2, 1, "allreduce", 4, True, "zb_h2"),
    Candidate(2, 2, 1, "allreduce", 4, False, "1f1b", (("ahead", 1),)),
    Candidate(1, 2, 2, "allreduce", 4, False, "1f1b", AHEAD),
    Candidate(1, 1, 4, "allreduce", 2),
    Candidate(1, 1, 4, "allreduce", 2, sequence=True),
    Candidate(1, 2, 2, "allreduce", 4, False, "1f1b", AHEAD, sequence=True),
    Candidate(2, 1, 2, "allreduce", 3),
]
#: With layers that share their parameters, with layers that keep outputs, and in two bytes.
MODELS = {
    "decoder": lambda: transformer(64, 16, width=16, blocks=3, heads=4),
    "mlp": lambda: MLP((12, 16, 10, 13, 9, 8)),
    "float16": lambda: transformer(64, 16, width=16, blocks=3, heads=4, dtype="float16"),
}


@pytest.mark.parametrize("name", MODELS)
def test_memory_and_messages_of_a_plan_are_those_of_the_run(comm, name):
    model, model_ranks = MODELS[name](), {}
    where = Cluster(CostModel(Costs({INTRA: (Piece(None, 5e-6, 2e-10),)})), [0] * P)
    layers_of = modelled.layers_of(model, measured.from_rate(model, 1e9), where)
    for candidate in PLANS:
        if candidate.sequence and name == "mlp":
            continue
        ranks = candidate.data * candidate.pipe * candidate.tensor
        options = {"optimizer": "adam", "dtype": model.dtype.name, "batch": BATCH, "epochs": 1}
        count, narrow = slots(Config(**options)), name == "float16"
        given = Problem(ranks, BATCH, where, layers_of, count, None, narrow)
        layers = given.layers(candidate)
        cut = Bounds(given, candidate, layers).balanced if candidate.order else (0,)
        outcome = given.outcome(candidate, cut)
        config = Config(**{**options, **plan_file.keys(outcome, BATCH)})
        if ranks not in model_ranks:
            model_ranks[ranks] = comm.Split(int(comm.rank >= ranks))
        if comm.rank < ranks:
            said, sent = _run(config, model_ranks[ranks], model)
            stage = comm.rank // (candidate.data * candidate.tensor)
            own = outcome.memory[stage if candidate.order else 0]
            every = model_ranks[ranks].allgather((stage, sum(said.values()), sent))
            most = max(nbytes for other, nbytes, _ in every if other == stage)
            assert sum(own.values()) == most, (candidate.words, own, said)
            if candidate.order and not narrow:  # the driver's own models keep float32 there, too
                assert outcome.sent["pipe"] == max(pipe for _, _, pipe in every), candidate.words
    for made in model_ranks.values():
        made.Free()


def _run(config, comm, model):
    """Memory that the driver says before a run, with the parameters; bytes sent between stages."""
    workers = AllReduceWorkers(comm, None)
    holding = strategy_of(config).hold(config, workers, comm, model)
    needed = memory.estimate(config, comm.rank, comm.size, model, holding)
    calls = holding.pipeline.communication(BATCH) if config.has_parts else []
    sent = sum(call.sent for call in calls if call.axis == "pipe")
    holding.free()
    return {"parameters": holding.weights.vector.nbytes, **needed}, sent


@pytest.mark.timeout(200)
def test_what_steps_send_is_what_the_formulas_say(monkeypatch, folder):
    """Messages between stages as they are counted, and collectives as they are traced."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import inter_intra
    import inter_intra_formulas as formulas

    for name in ("ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER"):
        monkeypatch.setenv(f"MPICOLL_{name}", "ring")
    monkeypatch.setenv("MPICOLL_TRACE", str(folder / "trace"))
    comm = mpicoll.Intracomm(MPI.COMM_WORLD.Dup())
    found = measured.from_rate(inter_intra.MODEL, 1e9)
    where = Cluster(CostModel(Costs({INTRA: (Piece(None, 5e-6, 2e-10),)})), [0] * P)
    for way in inter_intra.WAYS:
        said = inter_intra.said(found, where, way, formulas.Link(0.0, 0.0))
        counted = inter_intra.count(comm, said.outcome, way, str(folder / "trace"))
        assert {name: counted[name] for name in said.sent} == said.sent, way.name
    comm.Free()
