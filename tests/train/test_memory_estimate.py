"""What a run says it will take, beside what it takes."""

import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

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


RUNS = {
    "mlp": ({"model": "mlp", "hidden": (2000, 2000), "optimizer": "adam"}, lambda: images(64)),
    "conv": ({"model": "conv", "batch": 400}, lambda: images(400)),
    "resnet": ({"model": "resnet", "batch": 64}, lambda: images(64)),
    "transformer": ({"model": "transformer", "batch": 32}, lambda: text(32, 128)),
    "long texts": ({"model": "transformer", "batch": 4, "width": 256}, lambda: text(4, 512)),
    "bfloat16": (
        {"model": "transformer", "batch": 32, "dtype": "bfloat16"},
        lambda: text(32, 128),
    ),
}
#: Those that take the longest under tracemalloc.
SLOW = ("long texts", "bfloat16")


@pytest.mark.parametrize(
    ("config", "dataset"),
    [
        pytest.param(*run, id=name, marks=[pytest.mark.long] if name in SLOW else [])
        for name, run in RUNS.items()
    ],
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


@pytest.mark.parametrize(
    "name", [name if name == "mlp" else pytest.param(name, marks=pytest.mark.long) for name in RUNS]
)
def test_the_estimate_is_near_the_growth_of_anonymous_memory(name):
    """In a process of its own, where the allocator has nothing left over, with one BLAS thread."""
    command = [sys.executable, __file__, name]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=alone, capture_output=True, text=True, timeout=120, check=True
    )
    estimate, growth = json.loads(done.stdout.splitlines()[-1])
    assert growth == pytest.approx(estimate, rel=0.2)


def grown(name):
    """Bytes that a run says it will take, and those by which RssAnon grows at most."""
    config, dataset = RUNS[name]
    said, data, ended = [], dataset(), threading.Event()
    for function in ("estimate", "taken"):
        setattr(memory, function, spy(getattr(memory, function), said))
    before = anonymous()
    seen = [before]

    def watch():
        while not ended.wait(0.002):
            seen.append(anonymous())

    watching = threading.Thread(target=watch, daemon=True)  # ends with a run that fails
    watching.start()
    run(Config(steps=4, epochs=4, **config), dataset=data)
    ended.set()
    watching.join()
    needed, taken = said
    return sum(needed.values()) + taken["parameters"], max(seen) - before


def anonymous():
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


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


if __name__ == "__main__":
    print(json.dumps(grown(sys.argv[1])))
