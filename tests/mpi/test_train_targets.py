"""Regression and texts on the launched ranks: the weights, losses and measures of one process."""

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.train import Config, TrainingError, run
from mpicoll.train.data import from_arrays, text
from mpicoll.train.driver import parity

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 5, reason="5 ranks and fewer show it"),
]


def line(samples=101):
    """Two real targets of each sample of shape (2, 3)."""
    generator = np.random.default_rng(3)
    inputs = generator.standard_normal((samples + 60, 2, 3))
    targets = inputs.sum(axis=2) + 0.1 * generator.standard_normal((samples + 60, 2)) + 1
    arrays = {}
    bounds = {"train": (0, samples), "validation": (samples, samples + 23)}
    for part, (start, end) in {**bounds, "test": (samples + 23, samples + 60)}.items():
        arrays |= {f"{part}_inputs": inputs[start:end], f"{part}_targets": targets[start:end]}
    return from_arrays("line", arrays)


def letters(context=6):
    """A text of few letters; 37 samples to train on."""
    drawn = np.random.default_rng(4).integers(97, 102, 400).astype(np.uint8)
    sets = dict(zip(("train", "validation", "test"), np.split(drawn, [223, 300]), strict=True))
    return text.from_bytes("letters", sets, context, "here", "letters of chance")


CASES = {
    "regression": (line, {"model": "mlp", "hidden": (7,), "batch": 8, "lr": 0.01}),
    "regression, invariant": (line, {"batch": 8, "invariant": 8}),
    "regression, zero1": (line, {"batch": 7, "strategy": "zero1", "optimizer": "adam"}),
    "regression, servers": (line, {"batch": 8, "strategy": "parameter_server"}),
    "decoder": (letters, {"batch": 5, "lr": 0.01, "accumulate": 2}),
    "decoder, few samples": (letters, {"batch": 3, "lr": 0.01, "dropout": 0.2}),
    "decoder, servers": (letters, {"batch": 5, "strategy": "parameter_server"}),
}
DECODER = {"model": "transformer", "layers": 1, "width": 8, "heads": 2, "context": 6}


@pytest.mark.parametrize("case", CASES)
def test_ranks_do_what_one_process_does(comm, case):
    make, changes = CASES[case]
    data = make()
    more = DECODER if make is letters else {}
    config = Config(epochs=3, evaluate_train=True, dtype="float64", **more, **changes)
    ours = run(config, comm, dataset=data)
    reference = run(config.alone(comm.size), dataset=data)
    differences = parity.differences(ours.parameters, reference.parameters)
    limit = 0 if config.invariant else 1e-10
    assert max(differences.values()) <= limit
    for mine, theirs in zip(ours.history, reference.history, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=limit)
        for part in ("train", "validation", "test"):
            found, expected = getattr(mine, part), getattr(theirs, part)
            assert found == pytest.approx(expected, rel=limit)
            assert bool(found) == (part != "test")
    assert ours.test == pytest.approx(reference.test, rel=limit) and ours.test


def test_the_loss_divides_by_tokens_however_uneven_the_cut(comm):
    """Five samples on up to five ranks: the first loss is the mean over all their tokens."""
    data, losses = letters(), []
    config = Config(steps=1, batch=5, dtype="float64", **DECODER)
    run(config, comm, dataset=data, on_step=lambda step: losses.append(step.loss))
    from mpicoll.train import Sampler
    from mpicoll.train.driver.named import make_model

    model = make_model(config, data)
    samples = next(Sampler(len(data.train_targets), 5).batches(1))
    inputs, targets = data.train_inputs[samples], data.train_targets[samples]
    scores = model.losses_and_outputs(model.initial_parameters(0), inputs, targets)[1]
    chances = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    own = np.take_along_axis(chances, targets[..., None].astype(int), axis=-1)
    assert losses == [pytest.approx(-np.log(own).mean(), rel=1e-12)]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("make", [line, letters])
def test_data_servers_give_targets_of_any_kind(comm, make):
    more = DECODER if make is letters else {}
    config = Config(epochs=2, batch=7, lr=0.01, data_servers=1, dtype="float64", **more)
    ours = run(config, comm, dataset=make())
    reference = run(config.alone(comm.size - 1), dataset=make())
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-11
    assert ours.test == pytest.approx(reference.test, rel=1e-9)


@pytest.mark.mpi(min_size=2)
def test_ranks_with_another_text_are_refused(comm):
    last = comm.size - 1
    about = "another text" if comm.rank == last else "letters of chance"
    data = replace(letters(), about=about)
    with pytest.raises(
        TrainingError, match=f"data is letters of chance on rank 0 and another text on rank {last}"
    ):
        run(Config(**DECODER), comm, dataset=data)


def test_bad_targets_on_one_rank_are_refused_by_all(comm):
    last = comm.size - 1

    class Odd:
        name, sums = "odd", 1

        def measure(self, outputs, targets):
            if comm.rank == last:
                raise ValueError("odd targets")
            return np.zeros(1)

        def value(self, sums):
            return float(sums[0])

    message = f"measuring after epoch 1 failed on rank {last}: ValueError: odd targets"
    with pytest.raises(TrainingError, match=message):
        run(Config(batch=8, epochs=2), comm, dataset=line(), measures=[Odd()])
