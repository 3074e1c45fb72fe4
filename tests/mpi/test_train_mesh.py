"""`run` with a mesh: what stages, parts of layers and replicas learn together is one process's."""

import json
import os
import signal
import warnings
from dataclasses import replace

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from meshes import OPTIONS, PROBLEMS, decoder, everything, plain, same_bits, sentences
from mpi4py import MPI
from stages import Breaks, batches, pipedream_alone

from mpicoll.train import TrainingError, run
from mpicoll.train.data.sampler import Sampler
from mpicoll.train.driver import checkpoints, parity
from mpicoll.train.models import Dense, Sequential

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(P == 1, reason="a mesh has several ranks"),
    *([pytest.mark.long] if P not in (2, 4) else []),
]
#: What two ranks show already.
more = pytest.mark.long if P > 2 else lambda test: test
a_stage_a_rank = pytest.mark.skipif(P > 5, reason="the model has six layers")
#: Of so many ranks; those with pipe and without.
PIPES = [f"data={P // pipe},pipe={pipe}" for pipe in range(2, min(P, 6) + 1) if P % pipe == 0]
TENSORS = [f"tensor={tensor}" for tensor in range(2, 5) if P % tensor == 0]
MESHES = [*PIPES, *TENSORS, *(["pipe=2,tensor=2"] if P % 4 == 0 else [])]


#: Of problems and meshes those that are not long.
SHORT = {
    2: [("plain", "data=1,pipe=2"), ("decoder", "data=1,pipe=2"), ("normed", "tensor=2")],
    4: [("decoder", "data=2,pipe=2"), ("decoder", "pipe=2,tensor=2")],
}
LEARNT = [
    pytest.param(name, mesh, marks=[] if (name, mesh) in SHORT.get(P, ()) else pytest.mark.long)
    for name in PROBLEMS
    for mesh in MESHES
]


def replicas(mesh):
    axes = Config(mesh=mesh, microbatches=2).axes
    return P // (axes["pipe"] * axes["tensor"])


def learnt(comm, folder, name, **options):
    """What a run on these ranks comes to, and its parameters, whole."""
    model, data = PROBLEMS[name]
    config = Config(**{**OPTIONS, **options}, checkpoint=str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of microbatches that are empty
        result = run(config, comm, dataset=data(), model=model())
    found, _ = checkpoints.load(checkpoints.find(folder))
    comm.Barrier()
    return result, {n.removeprefix("parameter/"): a for n, a in found.items() if "parameter/" in n}


def alone(name, **options):
    model, data = PROBLEMS[name]
    return run(Config(**{**OPTIONS, **options}), dataset=data(), model=model())


@pytest.mark.parametrize(("name", "mesh"), LEARNT)
def test_a_mesh_learns_what_one_process_does(comm, folder, name, mesh):
    """The same microbatches, in float64: Adam, clipping, accumulation, ties, statistics."""
    options = {"epochs": 3, "accumulate": 1 if name == "normed" else 2, "evaluate_train": True}
    found, whole = learnt(comm, folder, name, mesh=mesh, microbatches=2, **options)
    expected = alone(name, invariant=2 * replicas(mesh), **options)
    # What is normalised over three samples amplifies rounding.
    limit = 1e-10 if name == "normed" else 1e-12
    assert max(parity.differences(whole, expected.parameters).values()) <= limit
    for mine, theirs in zip(found.history, expected.history, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=limit)
        if name != "normed":  # statistics follow the microbatches of a replica one by one
            assert mine.test == pytest.approx(theirs.test, rel=1e-12)
            assert mine.train == pytest.approx(theirs.train, rel=1e-12)
    losses = [epoch.loss for epoch in found.history]
    assert comm.allgather(losses) == [losses] * P


@pytest.mark.parametrize("mesh", [m for m in MESHES if "tensor" in m])
def test_sequences_that_are_divided_learn_the_same(comm, folder, mesh):
    """Norms, residuals and dropout by tokens; between stages, too."""
    options = {"epochs": 2, "accumulate": 2, "evaluate_train": True}
    found, whole = learnt(
        comm, folder, "decoder", mesh=mesh, sequence=True, microbatches=2, **options
    )
    expected = alone("decoder", invariant=2 * replicas(mesh), **options)
    assert max(parity.differences(whole, expected.parameters).values()) <= 1e-12
    assert found.test == pytest.approx(expected.test, rel=1e-12)


def test_what_has_no_sequences_divides_none(comm):
    config = Config(**OPTIONS, mesh=f"tensor={P}", sequence=True)
    with pytest.raises(TrainingError, match="sequence=True and samples of shape"):
        run(config, comm, dataset=clouds(), model=plain())


@more
def test_a_set_of_fewer_samples_than_microbatches_is_measured(comm):
    data = clouds()
    data = replace(data, test_inputs=data.test_inputs[:1], test_targets=data.test_targets[:1])
    options = {"model": "mlp", "hidden": (5,), "batch": 4 * P, "steps": 2}
    found = run(Config(**options, mesh="pipe=2", microbatches=4), comm, dataset=data)
    assert found.test == pytest.approx(run(Config(**options), dataset=data).test, rel=1e-12)


@more
@pytest.mark.parametrize("order", ["gpipe", "interleaved", "zb_h1"])
def test_invariant_runs_have_the_bits_of_one_process(comm, order):
    count = 2 * P
    batch = max(count, OPTIONS["batch"])
    options = {**OPTIONS, "batch": batch, "clip": None}  # the norm is a sum of another order
    expected = alone("plain", epochs=2, batch=batch, clip=None, invariant=count).parameters
    for mesh in PIPES if order == "gpipe" else PIPES[-1:]:
        chunks = {"chunks": 1} if order == "interleaved" else {}
        model, data = PROBLEMS["plain"]
        config = Config(
            **options,
            epochs=2,
            mesh=mesh,
            invariant=count,
            microbatches=count // replicas(mesh),
            pipeline_schedule=order,
            recompute=order == "gpipe",
            **chunks,
        )
        found = run(config, comm, dataset=data(), model=model())
        same_bits(everything(comm, found.parameters), expected)


@more
def test_a_run_goes_on_on_other_meshes(comm, folder):
    options = {"mesh": MESHES[-1], "microbatches": 2}
    _, whole = learnt(comm, folder / "whole", "decoder", epochs=2, **options)
    runs = [{"mesh": mesh, "microbatches": 2} for mesh in MESHES] + [{}, {"strategy": "zero1"}]
    for number, before in enumerate(runs):
        after = runs[(number + 1) % len(runs)]
        there = folder / str(number)
        learnt(comm, there, "decoder", epochs=2, pause_after=1, **before)
        result, found = learnt(
            comm, folder / f"{number}-on", "decoder", epochs=2, resume=str(there), **after
        )
        assert max(parity.differences(found, whole).values()) <= 1e-11
        assert result.beginning.epoch == 2


@a_stage_a_rank
@more
@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_what_fails_on_a_stage_fails_on_all(comm, kind):
    for stage in range(P):
        layers = [Dense(6) for _ in range(P)]
        layers[stage : stage + 1] = [Breaks(kind, 5), Dense(4)]
        cut = ",".join(str(s + (s > stage)) for s in range(P))
        model = Sequential([*layers[:-1], Dense(4)], (12,), "float64")
        config = Config(**OPTIONS, mesh=f"pipe={P}", microbatches=2, cut=cut)
        with pytest.raises(TrainingError, match=r"^step 3 of epoch 1: .* on fire") as caught:
            run(config, comm, dataset=clouds(), model=model)
        [message] = set(comm.allgather(str(caught.value)))
        assert f"rank {stage}: {kind[0].upper()} of chunk {stage}" in message


@a_stage_a_rank
@more
def test_a_step_that_is_not_finite_is_skipped_by_all(comm):
    data = clouds()
    data.train_inputs[::40] = np.inf
    model, options = plain(), {"mesh": f"pipe={P}", "microbatches": 2, "batch": 25}
    config = Config(**{**OPTIONS, **options, "epochs": 1})
    with np.errstate(invalid="ignore"):
        found = run(config, comm, dataset=data, model=model)
        assert 0 < found.history[0].skipped < 5
        assert len(set(comm.allgather(found.history[0].skipped))) == 1
        with pytest.raises(TrainingError, match="lower the learning rate"):
            run(Config(**{**vars(config), "skip_limit": 0}), comm, dataset=data, model=model)


@more
def test_a_loss_scale_that_overflows_is_halved_by_all(comm, folder):
    options = {"dtype": "float16", "loss_scale": 2.0**24, "mesh": MESHES[0], "microbatches": 2}
    config = Config(**{**OPTIONS, **options, "epochs": 2, "checkpoint": str(folder)})
    with np.errstate(over="ignore", invalid="ignore"):
        model = Sequential([Dense(9), Dense(4)] * 2, (12,), "float16")
        found = run(config, comm, dataset=clouds(), model=model)
    _, facts = checkpoints.load(checkpoints.find(folder))
    assert found.history[0].skipped and facts["scale"] < 2.0**24
    assert found.history[-1].loss < found.history[0].loss


@a_stage_a_rank
@more
def test_pipedream_is_its_simulator(comm):
    data = clouds(60)
    layers = [Dense(7) for _ in range(P)]
    model = Sequential([*layers, Dense(4)], (12,), "float64")
    config = Config(
        optimizer="sgd",
        lr=0.05,
        batch=60,
        epochs=1,
        mesh=f"pipe={P}",
        microbatches=6,
        pipeline_schedule="pipedream",
    )
    order = next(Sampler(60, 60).batches(1))
    starts = [0, *range(2, P + 1)]
    given = batches(data.train_inputs[order], data.train_targets[order], 6, alone=True)
    losses, expected = pipedream_alone(model, given, P, starts, False)
    found = run(config, comm, dataset=data, model=model)
    same_bits(everything(comm, found.parameters), expected)
    assert found.history[0].loss == pytest.approx(np.mean(losses), rel=1e-12)


@a_stage_a_rank
@more
def test_pipedream_goes_on_where_a_signal_has_stopped_it(comm, folder):
    """Between two batches no microbatch is under way: a checkpoint there has all there is."""
    data = clouds(60)
    options = {"lr": 0.005, "batch": 15, "epochs": 1, "mesh": f"pipe={P}", "microbatches": 5}
    options |= {"optimizer": "momentum", "pipeline_schedule": "pipedream"}

    def learnt(on_step=None, **more):
        model = Sequential([*(Dense(7) for _ in range(P)), Dense(4)], (12,), "float64")
        return run(Config(**options, **more), comm, dataset=data, model=model, on_step=on_step)

    def on_step(step):
        if step.number == 2 and comm.rank == P - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    expected = learnt()
    stopped = learnt(on_step, checkpoint=str(folder))
    assert stopped.stopped == "signal" and stopped.steps in (2, 3) and expected.steps == 4
    found = learnt(resume=str(folder))
    assert found.steps == 4
    same_bits(found.parameters, expected.parameters)


@more
def test_a_signal_stops_all(comm, folder):
    config = Config(**OPTIONS, mesh=MESHES[0], microbatches=2, checkpoint=str(folder))

    def on_step(step):
        if step.number == 3 and comm.rank == P - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    found = run(config, comm, dataset=clouds(), model=plain(), on_step=on_step)
    assert found.stopped == "signal" and found.steps in (3, 4)
    with pytest.raises(TrainingError, match=f"rank {P - 1}: KeyError: 'mine'"):
        run(
            Config(**OPTIONS, mesh=MESHES[0], microbatches=2, epochs=1),
            comm,
            dataset=clouds(),
            model=plain(),
            on_step=lambda step: {}["mine"] if comm.rank == P - 1 else None,
        )


@more
def test_what_ranks_did_is_written(comm, folder):
    path = folder / "timeline.json"
    options = {"mesh": MESHES[0], "microbatches": 3, "timeline": str(path)}
    run(Config(**OPTIONS, **options, steps=4), comm, dataset=sentences(), model=decoder())
    events = json.loads(path.read_text())["traceEvents"]
    computing = [event for event in events if event.get("cat") == "computing"]
    assert {event["pid"] for event in events} == set(range(P))
    assert len(computing) == P * 4 * 3 * 2


@more
def test_too_large_stages_are_refused(comm, monkeypatch):
    from mpicoll.train.driver import memory

    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(TrainingError, match=r"stage 1 of . .*rank .* needs .*held microbatches"):
        run(Config(**OPTIONS, mesh=MESHES[0]), comm, dataset=clouds(), model=plain())


@a_stage_a_rank
@more
def test_what_does_not_fit_is_refused(comm):
    for options, message in (
        ({"mesh": f"data={P + 1},pipe=2"}, f"{2 * P + 2} ranks and {P} were started"),
        ({"mesh": f"pipe={P}", "microbatches": 2, "invariant": 5}, "give invariant=2"),
        ({"mesh": f"pipe={P}", "cut": "0,99"}, "cut 0,99 is"),
    ):
        with pytest.raises(TrainingError, match=message):
            run(Config(**OPTIONS, **options), comm, dataset=clouds(), model=plain())
