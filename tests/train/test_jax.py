"""Losses in JAX as models."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
from clouds import clouds  # noqa: E402

from mpicoll.train import Config, run  # noqa: E402
from mpicoll.train.jax import jax_model  # noqa: E402
from mpicoll.train.models import MLP, Batch  # noqa: E402


def scores(parameters, inputs):
    hidden = jax.nn.relu(inputs @ parameters["layer1"]["weight"] + parameters["layer1"]["bias"])
    return hidden @ parameters["layer2"]["weight"] + parameters["layer2"]["bias"]


def loss(parameters, inputs, labels):
    logs = jax.nn.log_softmax(scores(parameters, inputs))
    return -jax.numpy.take_along_axis(logs, labels[:, None], axis=1)[:, 0]


def nested(seed=0):
    tree = {}
    for name, array in MLP((12, 6, 4)).initial_parameters(seed).items():
        layer, part = name.split(".")
        tree.setdefault(layer, {})[part] = array
    return tree


def test_gradients_are_those_of_the_same_model_here():
    ours, theirs = MLP((12, 6, 4)), jax_model(loss, nested(), scores)
    parameters = theirs.initial_parameters(0)
    assert sorted(parameters) == sorted(ours.initial_parameters(0))
    data = clouds()
    batch = Batch(data.train_inputs[:9].astype("float32"), data.train_targets[:9], 20)
    expected, gradients = ours.loss_and_gradients(parameters, batch)
    found, slopes = theirs.loss_and_gradients(parameters, batch)
    assert found == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(slopes[name], gradient, rtol=1e-4, atol=1e-6)
    for mine, other in zip(
        ours.losses_and_outputs(parameters, batch.inputs, batch.targets),
        theirs.losses_and_outputs(parameters, batch.inputs, batch.targets),
        strict=True,
    ):
        np.testing.assert_allclose(other, mine, rtol=1e-4, atol=1e-5)


def test_no_samples_give_no_gradients():
    model = jax_model(loss, nested())
    empty = Batch(np.zeros((0, 12), np.float32), np.zeros(0, int), 3)
    value, gradients = model.loss_and_gradients(model.initial_parameters(0), empty)
    assert value == 0 and set(gradients.values()) == {None}


def test_parameters_may_be_drawn():
    def draw(key):
        return [jax.random.normal(key, (3, 2)), {"b": jax.numpy.zeros(2)}]

    model = jax_model(lambda parameters, x, y: (x @ parameters[0])[:, 0], draw)
    first, again, other = (model.initial_parameters(seed) for seed in (1, 1, 2))
    assert list(first) == ["0", "1.b"]
    assert np.array_equal(first["0"], again["0"]) and not np.array_equal(first["0"], other["0"])


def test_names_that_come_twice_are_refused():
    with pytest.raises(ValueError, match=r"several parameters are called a\.b"):
        jax_model(loss, {"a.b": np.zeros(1), "a": {"b": np.zeros(1)}})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_learns(dtype):
    config = Config(dtype=dtype, batch=16, epochs=8)
    result = run(config, dataset=clouds(), model=jax_model(loss, nested(), scores))
    reference = run(Config(batch=16, epochs=8), dataset=clouds(), model=MLP((12, 6, 4)))
    assert result.history[-1].loss == pytest.approx(reference.history[-1].loss, abs=0.05)
    assert result.history[-1].test["accuracy"] >= reference.history[-1].test["accuracy"] - 0.1
