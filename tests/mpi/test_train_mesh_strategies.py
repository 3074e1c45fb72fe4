"""zero1 and fsdp on meshes: replicas of stages and of parts of layers own pieces of parameters."""

import warnings
from collections import Counter
from math import prod

import numpy as np
import pytest
from float64 import Config
from meshes import OPTIONS, PROBLEMS, clouds, decoder, plain, sentences
from mpi4py import MPI
from stages import Breaks

from mpicoll.train import TrainingError, run
from mpicoll.train.driver import checkpoints, parity, preparation
from mpicoll.train.models import Dense, Sequential
from mpicoll.train.parallel import communication
from mpicoll.train.strategies.protocol import strategy_of

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(P not in (2, 3, 4, 6, 8), reason="a mesh has several ranks"),
    *([pytest.mark.long] if P not in (2, 4) else []),
]
BASE = {**OPTIONS, "accumulate": 2, "microbatches": 2, "epochs": 1}
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
    for mesh in MESHES.get(P, ())
]


def learnt(comm, folder, name, **options):
    """What a run on these ranks comes to, and all that it keeps, whole."""
    model, data = PROBLEMS[name]
    config = Config(**{**BASE, **options}, checkpoint=str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[0-9]+ of [0-9]+ microbatches are empty")
        result = run(config, comm, dataset=data(), model=model())
    found, facts = checkpoints.load(checkpoints.find(folder))
    comm.Barrier()
    return result, found, facts


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_zero1_fsdp_and_all_reduce_have_equal_bits_in_rank_order(comm, folder, name, mesh):
    """Adam, groups, clipping, ties, statistics; and they learn what one process does."""
    options = {"mesh": mesh, "algorithm": "linear", "check_every": 3}
    options["accumulate"] = 1 if name == "normed" else 2
    expected, whole, facts = learnt(comm, folder / "allreduce", name, **options)
    others = [
        {"strategy": "zero1"},
        {"strategy": "fsdp"},
        {"strategy": "fsdp", "gather": "broadcast"},
    ]
    if "pipe" not in mesh:  # there it is so without
        others.append({"strategy": "fsdp", "keep_gathered": True})
    for number, strategy in enumerate(others):
        found, same, theirs = learnt(comm, folder / str(number), name, **strategy, **options)
        assert same.keys() == whole.keys()
        for title, array in whole.items():
            np.testing.assert_array_equal(same[title], array, err_msg=f"{strategy} {title}")
        assert (theirs["updates"], theirs["skipped"]) == (facts["updates"], facts["skipped"])
        assert [e.test for e in found.history] == [e.test for e in expected.history]
    model, data = PROBLEMS[name]
    replicas = P // (Config(mesh=mesh).axes["pipe"] * Config(mesh=mesh).axes["tensor"])
    alone = {**BASE, "microbatches": None, "invariant": 2 * replicas}
    alone["accumulate"] = options["accumulate"]
    found = run(Config(**alone), dataset=data(), model=model()) if comm.rank == 0 else None
    reference = comm.bcast(found)
    limit = 1e-10 if name == "normed" else 1e-12
    parameters = {t.removeprefix("parameter/"): a for t, a in whole.items() if "parameter/" in t}
    assert max(parity.differences(parameters, reference.parameters).values()) <= limit


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_200_steps_are_those_of_one_process(comm, folder, strategy):
    """Of a decoder with shared vectors: Adam, clipping, accumulation."""
    mesh, data = MESHES[P][0 if strategy == "zero1" else 1], sentences(24 * 200)
    common = {**BASE, "lr": 0.001}
    config = Config(**common, mesh=mesh, strategy=strategy, checkpoint=str(folder))
    assert run(config, comm, dataset=data, model=decoder()).steps == 200
    whole, _ = checkpoints.load(checkpoints.find(folder))
    replicas = P // (config.axes["pipe"] * config.axes["tensor"])
    alone = Config(**{**common, "microbatches": None, "invariant": 2 * replicas})
    found = run(alone, dataset=data, model=decoder()) if comm.rank == 0 else None
    reference = comm.bcast(found).parameters
    parameters = {name: whole[f"parameter/{name}"] for name in reference}
    furthest = max(parity.differences(parameters, reference).values())
    assert furthest <= 1e-12, f"{furthest} on {mesh}"


#: Of 4 ranks and 2: where a run that has begun on the first goes on.
WHERE = {
    2: [
        {"mesh": "pipe=2", "strategy": "fsdp", "microbatches": 2},
        {"mesh": "tensor=2", "strategy": "zero1", "microbatches": 2},
        {"strategy": "fsdp"},
    ],
    4: [
        {"mesh": "data=2,pipe=2", "strategy": "fsdp", "microbatches": 2},
        {"mesh": "data=2,tensor=2", "strategy": "zero1", "microbatches": 2},
        {"mesh": "pipe=2,tensor=2", "strategy": "fsdp", "microbatches": 2},
        {"mesh": "data=2,pipe=2", "microbatches": 3},
        {"mesh": "pipe=4", "strategy": "zero1", "cut": "0,1,2,4"},
        {"strategy": "fsdp"},
        {"strategy": "zero1"},
    ],
}


@pytest.mark.skipif(P not in WHERE, reason="2 and 4 ranks show it")
def test_a_run_goes_on_on_other_meshes_and_under_other_strategies(comm, folder):
    """From one checkpoint, and each time as if the run had not stopped."""
    first, *others = WHERE[P]
    common = {**BASE, "microbatches": None, "epochs": 2}
    _, whole, _ = learnt(comm, folder / "whole", "decoder", **{**common, **first})
    learnt(comm, folder / "half", "decoder", **{**common, **first, "pause_after": 1})
    for number, there in enumerate(others):
        options = {**common, **there, "resume": str(folder / "half")}
        result, found, _ = learnt(comm, folder / str(number), "decoder", **options)
        assert result.beginning.epoch == 2
        assert max(parity.differences(found, whole).values()) <= 1e-11, there


@pytest.mark.parametrize("kind", ["float16", "not a number"])
@pytest.mark.skipif(P not in (2, 4), reason="2 and 4 ranks show it")
def test_steps_that_are_not_finite_are_skipped_by_all(comm, folder, kind):
    """The same steps as by all-reduce, and the same bits behind them."""
    data = PROBLEMS["plain"][1]()
    options = {**BASE, "mesh": MESHES[P][0], "algorithm": "linear", "accumulate": 1}
    model = plain()
    if kind == "float16":
        model = Sequential([Dense(9), Dense(8), Dense(4)], (12,), "float16")
        options |= {"dtype": "float16", "loss_scale": 2.0**24}
    else:
        data.train_inputs[5] = np.nan
    found = {}
    for strategy in "allreduce", "zero1", "fsdp":
        config = Config(**options, strategy=strategy, checkpoint=str(folder / strategy))
        with np.errstate(over="ignore", invalid="ignore"):
            run(config, comm, dataset=data, model=model)
        found[strategy] = checkpoints.load(checkpoints.find(folder / strategy))
        comm.Barrier()
    expected, facts = found["allreduce"]
    assert facts["skipped"] > 0
    for strategy in "zero1", "fsdp":
        same, theirs = found[strategy]
        for name in ("updates", "skipped", "scale"):
            assert theirs[name] == facts[name]
        for title, array in expected.items():
            np.testing.assert_array_equal(same[title], array, err_msg=f"{strategy} {title}")


@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.skipif(P != 4, reason="two replicas of two ranks that share layers")
def test_what_fails_within_a_layer_fails_on_all(comm, strategy, kind):
    """The other replica gathers layers behind it, and waits for nobody in vain."""
    layers = [Dense(7), Breaks(kind if comm.rank == 1 else "", 3), Dense(6), Dense(4)]
    config = Config(**{**BASE, "mesh": "data=2,tensor=2", "strategy": strategy})
    with pytest.raises(TrainingError, match=r"^step \d of epoch 1: a step failed on rank"):
        run(config, comm, dataset=clouds(), model=Sequential(layers, (12,), "float64"))
    assert comm.allgather(comm.rank) == list(range(P))  # all are here, in step


@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
@pytest.mark.skipif(P % 2, reason="there are two stages")
def test_what_fails_on_one_rank_fails_on_all(comm, strategy):
    layers = [Breaks("backward" if comm.rank == P - 1 else "", 5), Dense(6), Dense(5), Dense(4)]
    model = Sequential([Dense(7), *layers], (12,), "float64")
    options = {"mesh": "pipe=2", "cut": "0,1", "strategy": strategy}
    config = Config(**{**BASE, **options})
    with pytest.raises(TrainingError, match=rf"rank {P - 1}: B of chunk 1.*on fire"):
        run(config, comm, dataset=PROBLEMS["plain"][1](), model=model)


@pytest.mark.skipif(P != 4, reason="two replicas of two ranks")
def test_layers_have_one_owner_each_where_they_are_broadcast(comm):
    """Unit u of the model is that of replica u mod N, on all stages."""
    options = {"mesh": "data=2,pipe=2", "strategy": "fsdp", "gather": "broadcast", "steps": 1}
    found = run(Config(**{**BASE, **options}), comm, dataset=clouds(), model=plain())
    own = {name: array.size for name, array in found.parameters.items() if array.size}
    every = comm.allgather(own)
    units = sorted(n.partition(".")[0] for n in plain().parameter_shapes if "weight" in n)
    for name, shape in plain().parameter_shapes.items():
        [owner] = [rank for rank, theirs in enumerate(every) if theirs.get(name) == prod(shape)]
        assert owner % 2 == units.index(name.partition(".")[0]) % 2


def test_between_steps_a_rank_has_its_pieces_alone(comm):
    seen = []
    config = Config(**{**BASE, "mesh": MESHES[P][0], "strategy": "fsdp", "steps": 3})
    whole = run(
        Config(**{**vars(config), "strategy": "zero1"}), comm, dataset=clouds(), model=plain()
    )
    found = run(
        config,
        comm,
        dataset=clouds(),
        model=plain(),
        on_step=lambda step, parameters: seen.append({n: a.size for n, a in parameters.items()}),
    )
    data = config.axes["data"]
    for name, array in whole.parameters.items():
        assert seen[-1][name] <= -(-array.size // data)
        assert found.parameters[name].ndim == 1
    assert (
        sum(comm.allgather(sum(seen[-1].values())))
        == sum(comm.allgather(sum(a.size for a in whole.parameters.values()))) // data
    )


@pytest.mark.parametrize("strategy", ["allreduce", "zero1", "fsdp", "fsdp by broadcast"])
@pytest.mark.parametrize("mesh", ["data=2,pipe=2", "data=2,tensor=2", "pipe=2,tensor=2"])
@pytest.mark.skipif(P != 4, reason="two axes of two ranks")
def test_what_a_step_sends_is_what_is_counted(comm, events, mesh, strategy):
    """By axis: collectives of two ranks, but those of one number that ask who has failed."""
    strategy, _, gather = strategy.partition(" by ")
    recompute = "pipe" in mesh
    options = {"mesh": mesh, "strategy": strategy, "clip": None, "recompute": recompute}
    options["gather"] = gather or "all"
    config = Config(**{**BASE, **options, "algorithm": "linear"})
    setup, _ = preparation.prepare(config, comm, preparation.Given(sentences(), decoder()))
    training = strategy_of(config).make(setup)
    said = training.communication()
    steps = training.steps(1, 0)
    next(steps)
    events.clear()
    before = training._pipeline.sent_bytes
    next(steps)
    counted = Counter()
    for event in events:
        if event.size == 2 and event.nbytes != 8:
            counted[event.collective] += event.nbytes
    expected, messages = Counter(), 0
    for call in said:
        if call.name == communication.MESSAGE:
            messages += call.nbytes
        elif call.name != communication.TIED:
            expected[call.name] += call.nbytes
    assert counted == expected
    assert training._pipeline.sent_bytes - before == messages
    training.close()
    every = comm.allgather(said)
    sums = communication.totals(every)
    n = 8 * sum(map(prod, decoder().parameter_shapes.values()))
    if mesh == "data=2,pipe=2" and strategy == "zero1":
        scattered = next(total for total in sums if total.name == "reduce_scatter")
        tied = 8 * prod(decoder().parameter_shapes["embedding.weight"])
        assert n + tied <= scattered.sent <= n + tied + 8 * 2 * len(decoder().parameter_shapes)
