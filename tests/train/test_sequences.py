"""Layers of sequences, losses and the decoder: slopes, PyTorch's numbers, what is refused."""

import numpy as np
import pytest

from mpicoll.train.models import (
    Attention,
    Batch,
    CrossEntropy,
    Dense,
    Embedding,
    Gelu,
    LayerNorm,
    Position,
    Residual,
    Sequential,
    SquaredError,
    Unembedding,
    transformer,
)

VALUES = (3, 4, 6)  # samples, tokens, width


def texts(samples=3, tokens=4, vocabulary=5, seed=1, total=None):
    rows = np.random.default_rng(seed).integers(0, vocabulary, (samples, tokens + 1))
    return Batch(rows[:, :-1], rows[:, 1:], total or samples, np.arange(samples))


def vectors(outputs=(2,), seed=1):
    generator = np.random.default_rng(seed)
    targets = generator.standard_normal((VALUES[0], *outputs))
    return Batch(generator.standard_normal(VALUES), targets, VALUES[0] + 1)


def on_values(*layers, loss=None):
    return Sequential(layers, VALUES[1:], "float64", loss or SquaredError())


MODELS = {
    "decoder": (transformer(5, 4, 6, 2, 3, "float64"), texts(total=5)),
    "dropout": (transformer(5, 4, 6, 1, 2, "float64", dropout=0.3), texts()),
    "untied": (
        Sequential([Embedding(5, 3), Position(), Dense(5, bias=False)], (4,), "float64"),
        texts(),
    ),
    "both ways": (on_values(Attention(2, causal=False)), vectors((4, 6))),
    "dense": (on_values(Dense(3), Gelu(), Dense(2)), vectors((4, 2))),
    "norm": (on_values(LayerNorm(), Residual((Dense(6), Gelu())), Unembedding(3)), vectors((4, 3))),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_slopes_of_the_loss(name):
    model, batch = MODELS[name]
    parameters, h = model.initial_parameters(3), 1e-6
    _, gradients = model.loss_and_gradients(parameters, batch)
    assert list(gradients) == list(parameters)
    for key, array in parameters.items():
        for index in list(np.ndindex(array.shape))[:: max(1, array.size // 20)]:
            value, losses = array[index], []
            for array[index] in (value - h, value + h):
                losses.append(model.loss_and_gradients(parameters, batch)[0])
            array[index] = value
            slope = (losses[1] - losses[0]) / (2 * h)
            assert gradients[key][index] == pytest.approx(slope, rel=2e-5, abs=1e-8), key


@pytest.mark.parametrize("name", MODELS)
def test_no_samples_give_zeros(name):
    model, batch = MODELS[name]
    parameters = model.initial_parameters(0)
    loss, gradients = model.loss_and_gradients(
        parameters, Batch(batch.inputs[:0], batch.targets[:0], 4)
    )
    assert loss == 0
    for key, array in parameters.items():
        assert gradients[key].shape == array.shape
        assert not gradients[key].any()


def test_parts_of_a_batch_add_up_to_the_batch():
    model, whole = MODELS["decoder"][0], texts(5)
    parameters = model.initial_parameters(0)
    loss, gradients = model.loss_and_gradients(parameters, whole)
    parts = [
        model.loss_and_gradients(parameters, Batch(whole.inputs[s], whole.targets[s], 5))
        for s in (slice(1), slice(1, None))
    ]
    assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-14)
    for name, gradient in gradients.items():
        total = sum(part[1][name] for part in parts)
        np.testing.assert_allclose(total, gradient, rtol=1e-11, atol=1e-15)


def test_a_place_does_not_see_what_comes_after_it():
    model, batch = MODELS["decoder"][0], texts()
    parameters = model.initial_parameters(0)
    _, before = model.losses_and_outputs(parameters, batch.inputs, batch.targets)
    changed = batch.inputs.copy()
    changed[:, 2] = (changed[:, 2] + 1) % 5
    _, after = model.losses_and_outputs(parameters, changed, batch.targets)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[:, 2:] != after[:, 2:]).all()


def test_tied_layers_share_one_parameter():
    model = MODELS["decoder"][0]
    parameters = model.initial_parameters(0)
    assert [n for n in parameters if "embedding" in n] == ["embedding.weight"]
    with pytest.raises(ValueError, match=r"a\.weight has shape \(5, 3\) in one layer and \(6, 3\)"):
        Sequential([Embedding(5, 3, "a"), Unembedding(6, "a")], (4,), "float64")


def test_a_layer_draws_the_same_whatever_stands_before_it():
    """So that each rank of a pipeline draws its own layers alone."""
    short = Sequential([Gelu(), Dense(3)], (6,), "float64").initial_parameters(4)
    long = Sequential([Dense(6), Dense(3)], (6,), "float64").initial_parameters(4)
    np.testing.assert_array_equal(short["layer1.weight"], long["layer2.weight"])


def test_losses_are_means_over_the_items_of_a_sample():
    outputs, targets = np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [0.0, 4.0]])
    losses, slopes = SquaredError().evaluate(outputs, targets)
    assert losses.tolist() == [5, 8]
    assert slopes.tolist() == [[1, 3], [0, -4]]
    scores = np.log([[[0.25, 0.75], [0.5, 0.5]]])
    losses, slopes = CrossEntropy().evaluate(scores, np.array([[0, 1]]))
    assert losses == pytest.approx([(np.log(4) + np.log(2)) / 2])
    np.testing.assert_allclose(slopes, [[[-0.375, 0.375], [0.25, -0.25]]])


@pytest.mark.parametrize(
    ("loss", "shape", "targets", "message"),
    [
        (CrossEntropy(), (4, 5), np.zeros((2, 3), int), r"shape \(3,\) a sample.* want \(4,\)"),
        (CrossEntropy(), (5,), np.zeros(2), "targets are of float64: give the number of each"),
        (CrossEntropy(), (5,), np.array([0, 5]), "a target is 5, and .* from 0 to 4"),
        (CrossEntropy(), (5,), np.array([0, -1]), "a target is -1, and .* from 0 to 4"),
        (SquaredError(), (2,), np.zeros(2), r"shape \(\) a sample.* want \(2,\)"),
        (SquaredError(), (), np.array([0, np.nan]), "the target of sample 1 is not finite"),
    ],
)
def test_targets_that_do_not_fit_are_refused(loss, shape, targets, message):
    with pytest.raises(ValueError, match=message):
        loss.check(shape, targets)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: on_values(Residual((Dense(5),))), r"outputs of shape \(4, 5\) to inputs of shape"),
        (lambda: on_values(Attention(4)), "a width of 6 cannot be cut into 4 heads"),
        (lambda: Sequential([Attention(1)], (4,), "float64"), r"inputs of shape \(4,\): give seq"),
        (lambda: Sequential([Position()], (4,), "float64"), r"inputs of shape \(4,\): give seq"),
        (lambda: Sequential([Dense(1)], (), "float64"), r"inputs of shape \(\): give at least"),
        (lambda: Residual((Embedding(3, 3, "a"),)), "layer a inside a residual has a name"),
    ],
)
def test_layers_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_layers_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    inputs = np.random.default_rng(0).standard_normal(VALUES)
    error = np.random.default_rng(1).standard_normal(VALUES)
    width, heads = VALUES[2], 2
    ours = Attention(heads)
    own = ours.initial(VALUES[1:], np.random.default_rng(2))
    own = {name: array + 0.1 * np.arange(array.shape[-1]) for name, array in own.items()}

    attention = torch.nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64)
    keyless = np.concatenate([own["query_bias"], np.zeros(width), own["value_bias"]])
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.from_numpy(own["weight"].T))
        attention.in_proj_bias.copy_(torch.from_numpy(keyless))
        attention.out_proj.weight.copy_(torch.from_numpy(own["out_weight"].T))
        attention.out_proj.bias.copy_(torch.from_numpy(own["out_bias"]))
    mask = torch.triu(torch.ones(VALUES[1], VALUES[1], dtype=torch.bool), 1)
    norm = torch.nn.LayerNorm(width, dtype=torch.float64)
    for layer, parameters, theirs in (
        (Gelu(), {}, torch.nn.GELU("tanh")),
        (LayerNorm(), {"weight": np.ones(width), "bias": np.zeros(width)}, norm),
        (ours, own, lambda x: attention(x, x, x, attn_mask=mask)[0]),
    ):
        x = torch.from_numpy(inputs).requires_grad_()
        expected = theirs(x)
        expected.backward(torch.from_numpy(error))
        outputs, memory = layer.forward(parameters, inputs, texts())
        by_input, gradients = layer.backward(parameters, memory, error, False)
        np.testing.assert_allclose(outputs, expected.detach(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(by_input, x.grad, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradients["weight"], attention.in_proj_weight.grad.T, atol=1e-11)
    np.testing.assert_allclose(gradients["out_bias"], attention.out_proj.bias.grad, atol=1e-11)


def test_single_precision_stays_single():
    model, batch = transformer(5, 4, 6, 1, 2), texts()
    parameters = model.initial_parameters(0)
    _, gradients = model.loss_and_gradients(parameters, batch)
    assert {a.dtype.name for a in (*parameters.values(), *gradients.values())} == {"float32"}
