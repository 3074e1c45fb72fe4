"""Runs on meshes, in tests: models and data in float64, and what all ranks have together."""

import numpy as np
from clouds import clouds

from mpicoll.train import Dataset
from mpicoll.train.models import (
    BatchNorm,
    Dense,
    Dropout,
    ReLU,
    Residual,
    Sequential,
    transformer,
)


def plain():
    """Layers without ties."""
    return Sequential(
        [Dense(9), ReLU(), Dropout(0.2, 1), Dense(8), ReLU(), Dense(4)], (12,), "float64"
    )


def normed():
    """Layers with statistics, which are buffers."""
    block = Residual((BatchNorm(local=True), ReLU(), Dense(9)))
    layers = [Dense(9), ReLU(), BatchNorm(local=True), ReLU(), block, ReLU(), Dense(4)]
    return Sequential(layers, (12,), "float64")


def decoder():
    """First and last layer share their vectors."""
    return transformer(11, 5, 8, blocks=2, heads=4, dtype="float64", dropout=0.1)


def sentences(samples=60):
    """Tokens, each followed by the next one."""
    generator = np.random.default_rng(3)
    tokens = generator.integers(0, 11, (samples + 13, 6))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    train, test = slice(0, samples), slice(samples, None)
    return Dataset(
        "sentences", 11, inputs[train], targets[train], inputs[test], targets[test], vocabulary=11
    )


#: Of a run on any mesh.
OPTIONS = {
    "optimizer": "adamw",
    "lr": 0.01,
    "batch": 12,
    "clip": 0.3,
    "warmup": 3,
    "weight_decay": 0.1,
    "decay_on": "matrices",
    "groups": ("*.bias:lr=0.5",),
}
PROBLEMS = {"plain": (plain, clouds), "normed": (normed, clouds), "decoder": (decoder, sentences)}


def everything(comm, arrays):
    """What all ranks have by name; what several have is equal to the bit."""
    every = {}
    for own in comm.allgather(dict(arrays)):
        for name in own.keys() & every.keys():
            assert own[name].tobytes() == every[name].tobytes(), name
        every.update(own)
    return every


def same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.tobytes() == expected[name].tobytes(), name
