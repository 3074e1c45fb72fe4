"""Layers and the convolutional net: slopes, shapes, dropout that belongs to the sample."""

import numpy as np
import pytest
from float64 import MLP, convnet

from mpicoll.train.data import draws
from mpicoll.train.models import (
    Batch,
    Convolution,
    Dense,
    Dropout,
    MaxPool,
    Reshape,
    Sequential,
)


def images(samples=3, seed=1):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, samples)
    inputs = generator.standard_normal((samples, 5 * 6 * 2))
    return Batch(inputs, labels, samples + 1, np.arange(samples), 2, 7)


@pytest.mark.parametrize(
    "model",
    [
        convnet((5, 6, 2), (3, 2), (4,), 3),
        convnet((5, 6, 2), (2,), (), 3),
        convnet((5, 6, 2), (2,), (5, 4), 3, dropout=0.4),
        Sequential([Reshape((5, 6, 2)), Convolution(2, 5), Reshape(), Dense(3)], (60,), "float64"),
    ],
    ids=["two convolutions", "no hidden layer", "dropout", "wide kernel"],
)
def test_gradients_are_slopes_of_the_loss(model):
    batch, h = images(), 1e-6
    parameters = model.initial_parameters(4)
    _, gradients = model.loss_and_gradients(parameters, batch)
    assert list(gradients) == list(parameters)
    for name, array in parameters.items():
        for index in list(np.ndindex(array.shape))[:: max(1, array.size // 25)]:
            value, losses = array[index], []
            for array[index] in (value - h, value + h):
                losses.append(model.loss_and_gradients(parameters, batch)[0])
            array[index] = value
            slope = (losses[1] - losses[0]) / (2 * h)
            assert gradients[name][index] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_a_convolution_is_the_sum_that_defines_it():
    layer = Convolution(2)
    generator = np.random.default_rng(0)
    inputs, weight = generator.standard_normal((1, 4, 5, 3)), generator.standard_normal((27, 2))
    outputs, _ = layer.forward({"weight": weight, "bias": np.array([0.5, -1])}, inputs, None)
    kernel, padded = weight.reshape(3, 3, 3, 2), np.pad(inputs[0], ((1, 1), (1, 1), (0, 0)))
    for y, x, c in np.ndindex(4, 5, 2):
        total = (padded[y : y + 3, x : x + 3] * kernel[..., c]).sum() + (0.5, -1)[c]
        assert outputs[0, y, x, c] == pytest.approx(total, rel=1e-12)


def test_pooling_takes_the_largest_and_cuts_the_edge_off():
    inputs = np.arange(15.0).reshape(1, 3, 5, 1)
    outputs, memory = MaxPool().forward({}, inputs, None)
    assert outputs.ravel().tolist() == [6, 8]
    error, _ = MaxPool().backward({}, memory, np.ones((1, 1, 2, 1)), False)
    assert np.flatnonzero(error).tolist() == [6, 8]


def test_gradients_of_the_last_layer_come_first():
    model, order = convnet((5, 6, 2), (2,), (4,), 3), []
    model.push_gradients(model.initial_parameters(0), images(), lambda name, _: order.append(name))
    assert order == [f"layer{n}.{kind}" for n in (3, 2, 1) for kind in ("bias", "weight")]


def test_no_samples_give_zeros():
    model = convnet((5, 6, 2), (2,), (4,), 3, dropout=0.5)
    empty = Batch(np.empty((0, 60)), np.empty(0, int), total=8)
    loss, gradients = model.loss_and_gradients(model.initial_parameters(0), empty)
    assert loss == 0 and not any(gradient.any() for gradient in gradients.values())


def test_numbers_of_a_sample_do_not_depend_on_the_batch():
    everything = draws.uniform(1, 2, np.arange(40), 0, 50)
    assert np.array_equal(draws.uniform(1, 2, np.array([7, 31]), 0, 50), everything[[7, 31]])
    assert everything.min() >= 0 and everything.max() < 1
    assert abs(everything.mean() - 0.5) < 0.02
    for other in ((0, 2, 0), (1, 3, 0), (1, 2, 1)):
        seed, epoch, stream = other
        assert not np.isin(draws.uniform(seed, epoch, np.arange(40), stream, 50), everything).any()


def test_dropout_keeps_the_mean_and_rests_in_evaluation():
    layer, inputs = Dropout(0.25, 0), np.ones((200, 50))
    batch = Batch(inputs, np.zeros(200, int), 200, np.arange(200))
    outputs, _ = layer.forward({}, inputs, batch)
    assert set(np.unique(outputs)) == {0, 1 / 0.75}
    assert outputs.mean() == pytest.approx(1, abs=0.02)
    assert layer.forward({}, inputs, None)[0] is inputs


def test_half_precision_computes_in_single():
    model = MLP((5, 4, 3), "float16")
    batch = Batch(np.ones((2, 5), np.float16), np.array([0, 1]), 2 / 1024)
    loss, gradients = model.loss_and_gradients(model.initial_parameters(0), batch)
    assert 500 < loss < 1024 * 20
    assert {gradient.dtype for gradient in gradients.values()} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: convnet((4, 4, 1), (2, 2, 2), (), 3), "images of 1 x 1 pixels"),
        (lambda: Sequential([Convolution(2)], (9,), "float64"), r"inputs of shape \(9,\)"),
        (lambda: Sequential([Reshape((2, 2, 1))], (5,), "float64"), "have 5 values"),
        (lambda: Dropout(1.0, 0), r"dropout rate is 1\.0"),
    ],
)
def test_layers_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
