"""P ranks are one process: models of every kind after 200 steps, however batches are cut."""

from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.train import Config, optimizers
from mpicoll.train.data.datasets import Feed
from mpicoll.train.models import (
    Attention,
    BatchNorm,
    Dense,
    Embedding,
    Gelu,
    LayerNorm,
    Residual,
    Sequential,
    SquaredError,
    Unembedding,
    buffers_of,
    resnet,
    transformer,
)
from mpicoll.train.models.flat import Flat
from mpicoll.train.ranks.workers import Workers, require_equal
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.protocol import strategy_of
from mpicoll.train.strategies.training import Setup

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(P > 5, reason="5 ranks and fewer show it"),
]


class Held(Feed):
    """Samples of any shape, in memory."""

    def __init__(self, inputs, targets):
        self._inputs, self._targets = inputs, targets

    def take(self, samples, epoch):
        return self._inputs[samples], self._targets[samples]


def texts(samples, tokens=5, vocabulary=11):
    rows = np.random.default_rng(1).integers(0, vocabulary, (samples, tokens + 1))
    rows[:, 1::2] = (rows[:, :-1:2] + 3) % vocabulary  # something to learn
    return rows[:, :-1], rows[:, 1:]


def images(samples, values=36, classes=4):
    generator, labels = np.random.default_rng(1), np.arange(samples) % classes
    return generator.standard_normal((samples, values)) + np.eye(classes, values)[labels], labels


def curves(samples):
    inputs = np.random.default_rng(1).standard_normal((samples, 3))
    return inputs, np.stack([np.sin(inputs.sum(axis=1)), inputs[:, 0] * inputs[:, 1]], axis=1)


def tied(width=6, vocabulary=11):
    """Two layers with one weight, and one between them that has it, too."""
    middle = (Residual((LayerNorm(), Dense(width), Gelu(), Dense(width))),)
    mixing = (Residual((LayerNorm(), Attention(2))),)
    layers = (Embedding(vocabulary, width, "words"), *mixing, *middle)
    return Sequential([*layers, Unembedding(vocabulary, "words")], (5,), "float64")


#: Models, and their samples.
MODELS = {
    "transformer": (lambda: transformer(11, 5, 8, 2, 2, "float64"), texts),
    "dropout": (lambda: transformer(11, 5, 8, 1, 2, "float64", dropout=0.2), texts),
    "resnet": (lambda: resnet((6, 6, 1), (3,), 4, dtype="float64"), images),
    "two stages": (lambda: resnet((6, 6, 1), (3, 4), 4, dtype="float64"), images),
    "regression": (
        lambda: Sequential(
            [Dense(12), Gelu(), Dense(9, bias=False), BatchNorm(), Gelu(), Dense(2)],
            (3,),
            "float64",
            SquaredError(),
        ),
        curves,
    ),
    "tied": (tied, texts),
}
#: Larger ones, for the long tests.
LARGE = {
    "large transformer": (
        lambda: transformer(40, 16, 32, 2, 4, "float64"),
        partial(texts, tokens=16, vocabulary=40),
    ),
    "large resnet": (
        lambda: resnet((12, 12, 2), (6, 8, 8), 8, blocks=2, dtype="float64"),
        partial(images, values=288, classes=8),
    ),
}
CASES = {
    **{name: (name, {}) for name in MODELS if name != "two stages"},
    "two stages, accumulation, zero1": (
        "two stages",
        {"strategy": "zero1", "batch": 5, "accumulate": 2},
    ),
    "two stages, clipping, another algorithm": (
        "two stages",
        {"clip": 0.5, "algorithm": "recursive_doubling", "bucket": 500},
    ),
    "transformer, adam": ("transformer", {"optimizer": "adam", "lr": 0.003}),
    "tied, adam, zero1": ("tied", {"optimizer": "adam", "lr": 0.003, "strategy": "zero1"}),
}


def trained(config, comm, name, samples=43):
    """Parameters and buffers after all steps; 43 samples in tens leave some ranks without any."""
    make, data = (MODELS | LARGE)[name]
    workers = Workers() if comm is None else placement.members(config, comm)
    model, (inputs, targets) = make(), data(samples)
    weights = Flat(model.initial_parameters(config.seed))
    optimizer = optimizers.make(config.optimizer, config.momentum, config.weight_decay)
    held = Held(inputs, targets)
    dataset = SimpleNamespace(train_inputs=inputs, train_targets=targets, feed=held)
    holding = Holding.whole(weights)
    setup = Setup(config, workers, comm, dataset, model, holding, optimizer, buffers_of(model))
    training = strategy_of(config).make(setup)
    losses = []
    for epoch in count(1):
        losses += [step.loss for step in training.steps(epoch, 0)]
        if training.number == config.steps:
            break
    if config.invariant is None:  # else each shard has statistics of its own
        require_equal(workers, _printed(training.buffers.views), "sums differ between ranks")
    training.buffers.average()
    training.close()
    assert losses[-1] < losses[0]
    return dict(weights.views), training.buffers.views


def _printed(arrays):
    return {name: array.tobytes().hex() for name, array in arrays.items()}


def configured(options, steps):
    # With a larger rate rounding grows from step to step, in one process as on many ranks.
    usual = {"batch": 10, "lr": 0.01, "epochs": steps, "steps": steps, "dtype": "float64"}
    return Config(**{**usual, **options})


def off(ours, reference, config):
    """Largest difference of each array, relative to its values or to how far they could move."""
    return {
        name: np.abs(array - ours[name]).max()
        / max(np.abs(array).max(), config.lr * config.steps * 1e-2)
        for name, array in reference.items()
    }


def holds(comm, name, options, samples=43):
    config = configured(options, 200)
    parameters, buffers = trained(config, comm, name, samples)
    expected, expected_buffers = trained(config.alone(P), None, name, samples)
    limit = 1e-10 if config.optimizer == "adam" else 1e-12
    differences = off(parameters, expected, config) | off(buffers, expected_buffers, config)
    assert max(differences.values()) <= limit, differences
    everyone = comm.allgather(_printed(parameters))
    assert everyone == [everyone[0]] * P


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", CASES)
def test_parity_after_200_steps(comm, case):
    if P > 3 and case != CASES[case][0]:
        pytest.skip("3 ranks and fewer show it")
    holds(comm, *CASES[case])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LARGE)
def test_parity_of_larger_models_after_200_steps(comm, name):
    holds(comm, name, {"batch": 40}, samples=443)


@pytest.mark.parametrize("name", MODELS)
def test_invariant_runs_have_the_same_bits(comm, name):
    config = configured({"invariant": 6}, 60)
    parameters, buffers = trained(config, comm, name)
    expected, expected_buffers = trained(config, None, name)
    for ours, reference in ((parameters, expected), (buffers, expected_buffers)):
        assert all(ours[key].tobytes() == reference[key].tobytes() for key in reference)
