"""What a run says it will take, beside what it takes."""

import tracemalloc

import numpy as np
import pytest

from mpicoll.train import Config, run
from mpicoll.train.data import from_arrays
from mpicoll.train.driver import memory
from mpicoll.train.models import Dense, Dropout, Gelu, LayerNorm, ReLU, Residual
from mpicoll.train.models.layers import held


def images(samples):
    inputs = np.random.default_rng(0).standard_normal((samples, 28, 28, 1)).astype("float32")
    labels = np.arange(samples) % 10
    return from_arrays("images", {"train_inputs": inputs, "train_labels": labels})


def text(samples, tokens):
    numbers = np.random.default_rng(0).integers(0, 256, (samples, tokens + 1), np.uint8)
    arrays = {"train_inputs": numbers[:, :-1], "train_labels": numbers[:, 1:], "vocabulary": 256}
    return from_arrays("text", arrays)


@pytest.mark.parametrize(
    ("config", "dataset"),
    [
        ({"model": "mlp", "hidden": (2000, 2000), "optimizer": "adam"}, lambda: images(64)),
        ({"model": "conv", "batch": 400}, lambda: images(400)),
        ({"model": "resnet", "batch": 64}, lambda: images(64)),
        ({"model": "transformer", "batch": 32}, lambda: text(32, 128)),
        ({"model": "transformer", "batch": 4, "width": 256}, lambda: text(4, 512)),
        ({"model": "transformer", "batch": 32, "dtype": "bfloat16"}, lambda: text(32, 128)),
    ],
    ids=["mlp", "conv", "resnet", "transformer", "long texts", "bfloat16"],
)
def test_the_estimate_is_near_the_peak(config, dataset, monkeypatch):
    said = []
    for name in ("estimate", "taken"):
        monkeypatch.setattr(memory, name, spy(getattr(memory, name), said))
    config = Config(steps=2, epochs=2, **config)
    data = dataset()
    tracemalloc.start()
    try:
        run(config, dataset=data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    needed, taken = said
    estimate = sum(needed.values()) + taken["parameters"]
    assert peak >= 100e6
    assert estimate == pytest.approx(peak, rel=0.1), (estimate / peak, needed)


def spy(function, said):
    def called(*arguments):
        said.append(function(*arguments))
        return said[-1]

    return called


def test_an_array_that_two_layers_keep_counts_once():
    layers = Dense(5), ReLU(), Dense(3), Dropout(0.5, 0)
    assert held(layers, [(4,), (5,), (5,), (3,), (3,)]) == [4, 5, 0, 3]
    inner = Residual((LayerNorm(), Dense(8), Gelu(), Dense(4)))
    assert held([inner], [(4,), (4,)]) == [(4 + 1) + 4 + (8 + 8) + 8]
