"""Models: gradients against finite differences, initial values, numbers at the edge."""

import numpy as np
import pytest
from float64 import MLP

from mpicoll.train.models import Batch

SHAPES = [(5, 3), (5, 4, 3), (5, 7, 4, 3)]


def make_batch(samples=6, total=None, seed=1):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, samples)
    return Batch(generator.standard_normal((samples, 5)), labels, total or samples)


@pytest.mark.parametrize("sizes", SHAPES)
def test_gradients_are_slopes_of_the_loss(sizes):
    model, batch, h = MLP(sizes), make_batch(total=10), 1e-6
    parameters = model.initial_parameters(3)
    _, gradients = model.loss_and_gradients(parameters, batch)
    assert gradients.keys() == parameters.keys()
    for name, array in parameters.items():
        slope = np.empty_like(array)
        for index in np.ndindex(array.shape):
            value = array[index]
            losses = []
            for array[index] in (value - h, value + h):
                losses.append(model.loss_and_gradients(parameters, batch)[0])
            array[index] = value
            slope[index] = (losses[1] - losses[0]) / (2 * h)
        np.testing.assert_allclose(gradients[name], slope, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("cut", [0, 1, 5, 6])
def test_parts_of_a_batch_add_up_to_the_batch(sizes, cut):
    model, whole = MLP(sizes), make_batch()
    parameters = model.initial_parameters(0)
    loss, gradients = model.loss_and_gradients(parameters, whole)
    parts = [
        model.loss_and_gradients(parameters, Batch(whole.inputs[s], whole.targets[s], 6))
        for s in (slice(cut), slice(cut, None))
    ]
    assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-14)
    for name, gradient in gradients.items():
        total = sum(part[1][name] for part in parts)
        np.testing.assert_allclose(total, gradient, rtol=1e-12, atol=1e-15)


def test_no_samples_give_zeros():
    model = MLP((5, 4, 3))
    parameters = model.initial_parameters(0)
    empty = Batch(np.empty((0, 5)), np.empty(0, int), total=8)
    loss, gradients = model.loss_and_gradients(parameters, empty)
    assert loss == 0
    assert all(
        gradients[name].shape == array.shape and not gradients[name].any()
        for name, array in parameters.items()
    )


def test_losses_and_outputs_are_those_of_the_training_loss():
    model, batch = MLP((5, 4, 3)), make_batch()
    parameters = model.initial_parameters(0)
    losses, scores = model.losses_and_outputs(parameters, batch.inputs, batch.targets)
    assert losses.mean() == pytest.approx(model.loss_and_gradients(parameters, batch)[0])
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(losses, -np.log(probabilities[np.arange(6), batch.targets]))


def test_large_scores_do_not_overflow():
    model = MLP((1, 2))
    parameters = {"layer1.weight": np.array([[1e4, -1e4]]), "layer1.bias": np.zeros(2)}
    batch = Batch(np.ones((1, 1)), np.array([1]), 1)
    loss, gradients = model.loss_and_gradients(parameters, batch)
    assert loss == pytest.approx(2e4)
    assert gradients["layer1.bias"].tolist() == [1, -1]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_initial_parameters_come_from_the_seed(dtype):
    model = MLP((5, 4, 3), dtype)
    first, again, other = (model.initial_parameters(seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["layer1.weight"], other["layer1.weight"])
    assert {array.dtype for array in first.values()} == {np.dtype(dtype)}
    assert [array.shape for array in first.values()] == [(5, 4), (4,), (4, 3), (3,)]


def test_float32_stays_float32():
    model, batch = MLP((5, 4, 3), "float32"), make_batch()
    narrow = Batch(batch.inputs.astype("float32"), batch.targets, batch.total)
    _, gradients = model.loss_and_gradients(model.initial_parameters(0), narrow)
    assert {gradient.dtype for gradient in gradients.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("sizes", [(5,), (5, 0, 3)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="give at least two, each at least 1"):
        MLP(sizes)
