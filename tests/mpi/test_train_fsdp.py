"""Strategy fsdp: it learns what zero1 and all-reduce learn, to the bit; checkpoints; failures."""

import os
import signal
from collections import Counter
from functools import cache
from math import prod

import numpy as np
import pytest
from clouds import clouds
from mpi4py import MPI

from mpicoll.train import Config, TrainingError, run
from mpicoll.train.data import from_arrays
from mpicoll.train.driver import checkpoints, parity
from mpicoll.train.models import (
    BatchNorm,
    Dense,
    Gelu,
    Layer,
    LayerNorm,
    Residual,
    Sequential,
    transformer,
)

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(180),
    pytest.mark.skipif(P > 5, reason="5 ranks and fewer show it"),
    *([pytest.mark.long] if P not in (2, 3) else []),
]
FSDP = [
    {"strategy": "fsdp", **more} for more in ({}, {"gather": "broadcast"}, {"keep_gathered": True})
]


def normed(dtype="float64", *extra):
    """With sums over the ranks in its layers, and buffers."""
    first = (Dense(6, bias=False), BatchNorm(), Gelu())
    layers = [*first, *extra, Residual((LayerNorm(), Dense(7), Gelu(), Dense(6))), Dense(4)]
    return Sequential(layers, (12,), dtype)


def decoder(dtype="float64"):
    """With a weight that two layers share, and dropout."""
    return transformer(13, 5, 10, 1, 5, dtype, 0.1)


@cache
def texts():
    rows = np.random.default_rng(1).integers(0, 13, (43, 6))
    rows[:, 1::2] = (rows[:, :-1:2] + 3) % 13  # something to learn
    parts = {"train": rows[:37], "validation": rows[37:40], "test": rows[40:]}
    arrays = {f"{part}_inputs": rows[:, :-1] for part, rows in parts.items()}
    arrays |= {f"{part}_labels": rows[:, 1:] for part, rows in parts.items()}
    return from_arrays("texts", {**arrays, "vocabulary": 13})


def whole(config, comm, folder, data, model, **callbacks):
    """All arrays of the last checkpoint of a run, and its outcome."""
    where = folder / "-".join(str(config[n]) for n in config if n in ("strategy", *FSDP[1]))
    where = where.with_name(where.name + ("-kept" if config.get("keep_gathered") else ""))
    result = run(
        Config(**config, checkpoint=str(where)), comm, dataset=data, model=model, **callbacks
    )
    path = checkpoints.find(where)
    arrays, facts = checkpoints.load(path)
    return arrays, result, {**facts, "path": str(path)}


CASES = {
    "batch norm, groups": (
        {"decay_on": "matrices", "weight_decay": 0.1, "groups": ("*.bias:lr=0.5",), "clip": 0.5},
        clouds,
        normed,
    ),
    "a shared weight": ({"clip": 0.3, "batch": 10}, texts, decoder),
    "float16": (
        {"dtype": "float16", "loss_scale": 2.0**19, "clip": 0.5},
        clouds,
        lambda: normed("float16"),
    ),
    "bfloat16": ({"dtype": "bfloat16", "batch": 10}, texts, lambda: decoder("float32")),
}


@pytest.mark.parametrize("case", CASES)
def test_zero1_and_all_reduce_have_equal_bits_in_rank_order(comm, folder, case):
    """Parameters, Adam's arrays, buffers, counters and what is measured; with clipping."""
    if case == "bfloat16":
        pytest.importorskip("ml_dtypes")
    if "16" in case and P != 2:
        pytest.skip("2 ranks show it")
    changes, data, model = CASES[case]
    common = {"algorithm": "linear", "dtype": "float64", "optimizer": "adam", "lr": 0.01}
    common |= {"epochs": 2, "batch": 20, **changes}
    expected, reference, facts = whole(
        {**common, "strategy": "allreduce"}, comm, folder, data(), model()
    )
    if case == "float16":
        assert facts["skipped"] > 0  # the first scale is too high
    for changed in ({"strategy": "zero1"}, *FSDP):
        found, result, theirs = whole({**common, **changed}, comm, folder, data(), model())
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{changed} {name}")
        for name in ("number", "updates", "skipped", "scale"):
            assert theirs[name] == facts[name]
        for ours, wanted in zip(result.history, reference.history, strict=True):
            np.testing.assert_equal(ours.loss, wanted.loss)
            for part in ("validation", "test"):
                a, b = getattr(ours, part), getattr(wanted, part)
                assert a == pytest.approx(b, rel=1e-13 if "16" not in case else 1e-3)


def test_accumulated_batches_are_those_of_one_process(comm, folder):
    common = {"dtype": "float64", "optimizer": "adam", "lr": 0.01, "clip": 0.5, "epochs": 2}
    common |= {"accumulate": 3, "batch": 8}
    reference = run(Config(**common), dataset=clouds(), model=normed()).parameters
    for changes in FSDP[: 2 if P == 3 else 1]:
        found, *_ = whole({**common, **changes}, comm, folder, clouds(), normed())
        parameters = {name: found[f"parameter/{name}"] for name in reference}
        assert max(parity.differences(parameters, reference).values()) <= 1e-11


def test_accumulated_batches_have_the_bits_of_zero1_where_parameters_are_kept(comm, folder, events):
    """Gradients are summed once a step: so are bytes."""
    common = {"dtype": "float64", "optimizer": "adam", "lr": 0.01, "clip": 0.5, "epochs": 2}
    common |= {"accumulate": 3, "batch": 8, "algorithm": "linear"}
    expected, *_ = whole({**common, "strategy": "zero1"}, comm, folder, clouds(), normed())
    seen = []

    def note(step):
        own = [event.nbytes for event in events if event.collective == "reduce_scatter"]
        seen.append(sum(own))
        events.clear()

    changes = {"strategy": "fsdp", "keep_gathered": True}
    found, *_ = whole({**common, **changes}, comm, folder, clouds(), normed(), on_step=note)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert seen[1:] == [8 * sum(map(prod, normed().parameter_shapes.values()))] * (len(seen) - 1)


@pytest.mark.parametrize("written", ["allreduce", "zero1", "fsdp", "broadcast"])
def test_any_strategy_and_number_of_ranks_goes_on_from_a_checkpoint(comm, folder, written):
    common = {"dtype": "float64", "optimizer": "adam", "lr": 0.01, "clip": 0.5}
    common |= {"batch": 20, "epochs": 2}
    names = {"fsdp": FSDP[0], "broadcast": FSDP[1]}
    changes = names.get(written, {"strategy": written})

    def halt(step):
        if step.number == 6 and comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    _, stopped, facts = whole({**common, **changes}, comm, folder, clouds(), normed(), on_step=halt)
    assert (stopped.stopped, stopped.steps) == ("signal", 7)
    reference = run(Config(**common), dataset=clouds(), model=normed()).parameters
    readers = ({"strategy": "allreduce"}, {"strategy": "zero1"}, *FSDP[:2])
    for number, reader in enumerate(readers):
        size = (P, 1, max(1, P - 1), P)[number]
        group = comm.Split(comm.rank < size, comm.rank)
        if comm.rank < size:
            config = {**common, **reader, "resume": facts["path"]}
            where = folder / f"{number}"
            arrays, resumed, _ = whole(config, group, where, clouds(), normed())
            found = {name: arrays[f"parameter/{name}"] for name in reference}
            assert max(parity.differences(found, reference).values()) <= 1e-11
            assert len(resumed.history) == 2
        group.Free()


def test_bytes_are_those_of_the_formula(comm, events):
    """In a step of the trainer: 3 (N - 1) / N n of each rank, and the header."""
    model = Sequential(
        [Residual((Dense(9), Gelu(), Dense(12))) for _ in range(4)], (12,), "float64"
    )
    n = 8 * sum(map(prod, model.parameter_shapes.values()))
    seen = []

    def note(step):
        seen.append(Counter())
        for event in events:
            seen[-1][event.collective] += event.nbytes
        events.clear()

    for changes in FSDP:
        seen.clear()
        config = Config(**changes, algorithm="linear", dtype="float64", batch=20, epochs=1)
        run(config, comm, dataset=clouds(), model=model, on_step=note)
        names = ("bcast", "reduce") if "gather" in changes else ("allgather", "reduce_scatter")
        # Gathers for each pass; the first step may have counted what the start of the run needs.
        for step in seen[1:]:
            assert step[names[0]] == (1 if changes.get("keep_gathered") else 2) * n
            assert step[names[1]] == n


class Breaks(Layer):
    """Passes everything on, and fails in one of its calls."""

    def __init__(self, which, call):
        self._which, self._call = which, call

    def _pass(self, which):
        if which == self._which:
            self._call -= 1
            if not self._call:
                raise OSError(f"the {which} pass is on fire")

    def forward(self, parameters, inputs, batch):
        self._pass("evaluation" if batch is None else "forward")
        return inputs, None

    def backward_input(self, parameters, memory, error, first):
        self._pass("backward")
        return error, None


@pytest.mark.parametrize("which", ["forward", "backward", "evaluation"])
@pytest.mark.parametrize("call", [1, 4])
@pytest.mark.parametrize("place", [0, 2, 3, 7])
@pytest.mark.skipif(P == 2, reason="3 ranks show it")
def test_a_layer_that_fails_on_one_rank_ends_the_run_on_all(comm, which, call, place):
    """Before sums over the ranks, between those of both passes, and behind them."""
    if which == "evaluation" and call > 1:
        pytest.skip("of few samples there is one pass")
    rank = P - 1
    layers = [Dense(6), BatchNorm(), Gelu(), BatchNorm(), Dense(6), BatchNorm(), Dense(4)]
    layers.insert(place, Breaks(which if comm.rank == rank else "", call))
    model = Sequential(layers, (12,), "float64")
    config = Config(strategy="fsdp", dtype="float64", batch=8, accumulate=2, gather="all")
    where = r"step \d of epoch 1" if which != "evaluation" else "evaluating"
    with pytest.raises(TrainingError, match=f"{where} failed on rank {rank}: OSError: the {which}"):
        run(config, comm, dataset=clouds(), model=model)
    assert comm.allgather(comm.rank) == list(range(P))  # all are here, in step


def test_what_is_not_finite_on_one_rank_is_skipped_by_all(comm, folder):
    """As by zero1: the same steps, the same bits."""
    data = clouds()
    data.train_inputs[5] = np.nan
    found = {}
    for strategy in ("zero1", "fsdp"):
        config = {"strategy": strategy, "algorithm": "linear", "dtype": "float64", "batch": 20}
        found[strategy] = whole({**config, "epochs": 2}, comm, folder, data, normed())
    assert [entry.skipped for entry in found["fsdp"][1].history] == [1, 1]
    losses = [[entry.loss for entry in found[name][1].history] for name in ("fsdp", "zero1")]
    assert losses[0] == losses[1]
    for name, array in found["zero1"][0].items():
        np.testing.assert_array_equal(found["fsdp"][0][name], array)


def test_shares_that_follow_speed_and_parameters_that_callbacks_see(comm):
    """This rank's parts, which the next step changes and nobody else may."""
    seen = []

    def look(step, parameters):
        sent = {name.split()[0] for name, _, _ in step.spans}
        assert sent == {"compute", "exchange", "update", "share", "gather", "reduce"}
        assert step.hidden >= 0 and step.exposed >= 0 and step.compute >= 0
        seen.append({name: array.copy() for name, array in parameters.items()})
        with pytest.raises(ValueError, match="read-only"):
            next(iter(parameters.values()))[...] = 0

    config = Config(strategy="fsdp", dtype="float64", batch=20, epochs=2, balance="speed")
    result = run(config, comm, dataset=clouds(), model=normed(), on_step=look)
    for name, array in result.parameters.items():
        np.testing.assert_array_equal(seen[-1][name], array)
    sizes = comm.allgather(sum(array.size for array in result.parameters.values()))
    shapes = normed().parameter_shapes
    assert sum(sizes) == sum(map(prod, shapes.values()))
    assert max(sizes) - min(sizes) <= len(shapes)


@pytest.mark.skipif(P != 2, reason="2 ranks show it")
def test_what_cannot_fit_is_refused(comm, monkeypatch):
    """With what is gathered among the numbers."""
    from mpicoll.train.driver import memory

    monkeypatch.setattr(memory, "available", lambda: 4096)
    with pytest.raises(TrainingError, match=r"need .* gathered parameters .* are available"):
        run(Config(strategy="fsdp", dtype="float64"), comm, dataset=clouds(), model=normed())


def test_a_model_that_is_no_chain_of_layers_is_refused(comm):
    class Own:
        def initial_parameters(self, seed):
            return {"w": np.zeros((12, 4))}

        def loss_and_gradients(self, parameters, batch):
            return 0.0, {}

        def losses_and_outputs(self, parameters, inputs, targets):
            return np.zeros(len(inputs)), np.zeros((len(inputs), 4))

    message = "failed on rank 0: ValueError: strategy fsdp gathers layer by layer, and the model is"
    with pytest.raises(TrainingError, match=message):
        run(Config(strategy="fsdp", dtype="float64"), comm, dataset=clouds(), model=Own())
