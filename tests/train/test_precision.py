"""Computation in narrow types: rounded once a layer, added up and kept in float32."""

import sys

import numpy as np
import pytest
from clouds import clouds

from mpicoll.base import arrays
from mpicoll.train import MLP, Config, TrainingError, run
from mpicoll.train.models import Batch, Dense, Sequential, SquaredError, transformer
from mpicoll.train.models.precision import computing

pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
NARROW = ["float16", "bfloat16"]


def rounded(values, dtype):
    return values.astype(arrays.dtype_of(dtype)).astype(np.float32)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_layer_rounds_once(dtype):
    """Two dense layers, written out plainly."""
    generator = np.random.default_rng(1)
    model = Sequential([Dense(5), Dense(2)], (7,), "float32", SquaredError())
    wide = {n: rounded(a, dtype) for n, a in model.initial_parameters(0).items()}
    narrow = {n: a.astype(arrays.dtype_of(dtype)) for n, a in wide.items()}
    inputs = rounded(generator.standard_normal((6, 7)), dtype)
    targets = generator.standard_normal((6, 2)).astype(np.float32)
    batch = Batch(inputs.astype(arrays.dtype_of(dtype)), targets, 6)
    loss, gradients = model.loss_and_gradients(narrow, batch)

    w1, b1, w2, b2 = wide.values()
    hidden = rounded(inputs @ w1 + b1, dtype)
    outputs = rounded(hidden @ w2 + b2, dtype)
    error = rounded((outputs - targets) / 6, dtype)
    assert loss == pytest.approx(np.square(outputs - targets).mean(axis=1).sum() / 6, rel=1e-6)
    below = rounded(error @ w2.T, dtype)
    expected = [inputs.T @ below, below.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
    for found, array in zip(gradients.values(), expected, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", NARROW)
def test_sums_over_many_samples_are_not_rounded_on_their_way(dtype):
    """In bfloat16 a sum of ones would end at 256, in float16 at 2048."""
    model = Sequential([Dense(1)], (1,), "float32", SquaredError())
    narrow = {
        n: np.zeros(a.shape, arrays.dtype_of(dtype)) for n, a in model.initial_parameters(0).items()
    }
    inputs = np.ones((5000, 1), arrays.dtype_of(dtype))
    targets = np.full((5000, 1), -0.5, np.float32)
    _, gradients = model.loss_and_gradients(narrow, Batch(inputs, targets, 1))
    assert gradients["layer1.bias"][0] == gradients["layer1.weight"][0, 0] == 5000


def test_numbers_of_tokens_are_not_rounded():
    model = transformer(1000, 4, 8, 1, 2)
    narrow = {
        n: a.astype(arrays.dtype_of("bfloat16")) for n, a in model.initial_parameters(0).items()
    }
    texts = np.array([[999, 998, 997, 996, 995]])
    loss, gradients = model.loss_and_gradients(narrow, Batch(texts[:, :-1], texts[:, 1:], 1))
    assert np.isfinite(loss)
    assert gradients["embedding.weight"][996:].any(axis=1).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_types_are_left_alone(dtype):
    given = {"w": np.ones(3, dtype)}
    parameters, unchanged = computing(given)
    assert parameters is given and unchanged(given["w"]) is given["w"]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("model", ["softmax", "mlp", "conv"])
def test_it_learns_as_in_float32(model, dtype):
    config = {"model": model, "hidden": (16,), "channels": (4,), "batch": 16, "epochs": 6}
    data = clouds(shape=(4, 3, 1))
    ours = run(Config(dtype=dtype, **config), dataset=data)
    reference = run(Config(**config), dataset=data)
    assert {array.dtype for array in ours.parameters.values()} == {np.dtype("float32")}
    assert ours.history[-1].loss == pytest.approx(reference.history[-1].loss, abs=0.05)
    assert sum(epoch.skipped for epoch in ours.history) == 0


@pytest.mark.parametrize("dtype", NARROW)
def test_small_updates_are_not_lost(dtype):
    """Updates of less than half a unit in the last place of a narrow parameter add up."""

    class Straight:
        def initial_parameters(self, seed):
            return {"w": np.ones(1, np.float32)}

        def loss_and_gradients(self, parameters, batch):
            assert parameters["w"].dtype == arrays.dtype_of(dtype)
            return 0.0, {"w": np.full(1, len(batch.targets) / batch.total, np.float32)}

        def losses_and_outputs(self, parameters, inputs, labels):
            return np.zeros(len(labels)), np.zeros((len(labels), 4))

    config = Config(dtype=dtype, optimizer="sgd", lr=1e-4, batch=101, epochs=100, loss_scale=4.0)
    result = run(config, dataset=clouds(), model=Straight())
    assert result.parameters["w"][0] == pytest.approx(0.99, abs=1e-5)


def test_slopes_that_float16_loses_are_kept_by_the_scale():
    """Between the layers they are 1e-10: less than the least number of float16."""
    model = Sequential([Dense(1), Dense(1)], (1,), "float32", SquaredError())
    wide = {name: np.zeros_like(array) for name, array in model.initial_parameters(0).items()}
    wide["layer2.weight"][:] = 1e-4
    narrow = {name: array.astype(np.float16) for name, array in wide.items()}
    inputs, targets = np.ones((1, 1), np.float16), np.full((1, 1), -5e-7, np.float32)
    found = []
    for scale in (1.0, 65536.0):
        batch = Batch(inputs, targets, 1 / scale)
        found.append(model.loss_and_gradients(narrow, batch)[1]["layer1.weight"][0, 0] / scale)
    assert found[0] == 0
    assert found[1] == pytest.approx(1e-10, rel=1e-2)


def test_bfloat16_needs_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TrainingError, match="dtype bfloat16 needs the package ml_dtypes: pip ins"):
        run(Config(dtype="bfloat16"), dataset=clouds())


def test_gpus_have_no_bfloat16():
    with pytest.raises(ValueError, match="dtype bfloat16 does not exist in CuPy"):
        Config(dtype="bfloat16", device="gpu")


def test_defaults_are_what_people_expect():
    assert (Config().dtype, Config().algorithm) == ("float32", None)
    assert run(Config(epochs=1), dataset=clouds()).parameters["layer1.bias"].dtype == np.float32
    assert MLP((3, 2)).initial_parameters(0)["layer1.weight"].dtype == np.float32
