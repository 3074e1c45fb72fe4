"""Every layer: slopes by finite differences, in two parts to the bit, and PyTorch's numbers."""

from typing import NamedTuple

import numpy as np
import pytest

from mpicoll.train import models
from mpicoll.train.models import (
    Aggregate,
    Attention,
    AveragePool,
    Batch,
    BatchNorm,
    Binarize,
    Convolution,
    Dense,
    Dropout,
    EachPart,
    Embedding,
    Gelu,
    Layer,
    LayerNorm,
    MaxPool,
    Position,
    ReLU,
    Reshape,
    Residual,
    Sequential,
    Split,
    SquaredError,
    Unembedding,
    resnet,
    transformer,
)
from mpicoll.train.models.precision import computing

SAMPLES = 4
IMAGE, TEXT, PARTS = (4, 5, 3), (3, 6), (4, 2, 3)


class Case(NamedTuple):
    layer: Layer
    shape: tuple  # of a sample
    torch: object = None  # function(functional, parameters by name, inputs)


def convolved(functional, p, x):
    kernel = p["weight"].reshape(3, 3, 3, 2).permute(3, 2, 0, 1)
    found = functional.conv2d(x.permute(0, 3, 1, 2), kernel, p.get("bias"), padding="same")
    return found.permute(0, 2, 3, 1)


def normed(functional, p, x):
    rows = x.reshape(-1, x.shape[-1])
    buffers = p["mean"].detach(), p["variance"].detach()  # changed in place
    return functional.batch_norm(rows, *buffers, p["weight"], p["bias"], True).reshape(x.shape)


def attended(functional, p, x):
    q, k, v = (x @ p["weight"]).split(6, dim=-1)
    parts = (q + p["query_bias"], k, v + p["value_bias"])
    heads = [part.reshape(*x.shape[:2], 2, 3).transpose(1, 2) for part in parts]
    mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
    return mixed.transpose(1, 2).reshape(x.shape) @ p["out_weight"] + p["out_bias"]


def joined(parts):
    import torch

    return torch.stack(list(parts), dim=1)


CASES = {
    "dense": Case(Dense(2), TEXT, lambda f, p, x: x @ p["weight"] + p["bias"]),
    "dense without bias": Case(Dense(2, bias=False), (6,), lambda f, p, x: x @ p["weight"]),
    "convolution": Case(Convolution(2), IMAGE, convolved),
    "convolution without bias": Case(Convolution(2, bias=False), IMAGE, convolved),
    "max pool": Case(
        MaxPool(),
        IMAGE,
        lambda f, p, x: f.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1),
    ),
    "average pool": Case(AveragePool(), IMAGE, lambda f, p, x: x.mean((1, 2))),
    "relu": Case(ReLU(), TEXT, lambda f, p, x: f.relu(x)),
    "gelu": Case(Gelu(), TEXT, lambda f, p, x: f.gelu(x, approximate="tanh")),
    "reshape": Case(Reshape(), IMAGE, lambda f, p, x: x.flatten(1)),
    "dropout": Case(Dropout(0.4, 3), TEXT),
    "layer norm": Case(
        LayerNorm(), TEXT, lambda f, p, x: f.layer_norm(x, (6,), p["weight"], p["bias"])
    ),
    "batch norm": Case(BatchNorm(), (6,), normed),
    "batch norm of images": Case(BatchNorm(local=True), IMAGE, normed),
    "embedding": Case(Embedding(5, 3), (4,), lambda f, p, x: f.embedding(x, p["weight"])),
    "unembedding": Case(Unembedding(5), TEXT, lambda f, p, x: x @ p["weight"].T),
    "position": Case(Position(), TEXT, lambda f, p, x: x + p["weight"]),
    "attention": Case(Attention(2), TEXT, attended),
    "split": Case(
        Split(2, 1),
        IMAGE,
        lambda f, p, x: x.reshape(-1, 2, 2, 5, 3),
    ),
    "each part": Case(
        EachPart((Dense(3), ReLU(), BatchNorm())),
        (2, 3, 4),
        lambda f, p, x: joined(
            normed(
                f,
                {name[4:]: array for name, array in p.items() if name[:3] == f"{part}.2"},
                f.relu(x[:, part] @ p[f"{part}.0.weight"] + p[f"{part}.0.bias"]),
            )
            for part in range(2)
        ),
    ),
    "mean of parts": Case(Aggregate("mean"), PARTS, lambda f, p, x: x.mean(1)),
    "largest of parts": Case(Aggregate("max"), PARTS, lambda f, p, x: x.amax(1)),
    "all of parts": Case(Aggregate("concat"), PARTS, lambda f, p, x: x.transpose(1, 2).flatten(2)),
    "mean into two": Case(
        Aggregate("mean", into=2), PARTS, lambda f, p, x: x.unflatten(1, (2, 2)).mean(2)
    ),
    "mean of some parts": Case(Aggregate("mean", device_dropout=0.5), PARTS),
    "largest of some parts": Case(Aggregate("max", into=2, device_dropout=0.5), PARTS),
    "all of some parts": Case(Aggregate("concat", device_dropout=0.5), PARTS),
    "signs": Case(Binarize(), TEXT),
    "residual": Case(
        Residual((Dense(6), Residual((Gelu(),)), BatchNorm())),
        TEXT,
        lambda f, p, x: (
            x
            + normed(
                f,
                {name[2:]: array for name, array in p.items() if name[0] == "2"},
                (y := x @ p["0.weight"] + p["0.bias"]) + f.gelu(y, approximate="tanh"),
            )
        ),
    ),
}


def made(case):
    """Parameters with buffers, inputs, a batch, and slopes by the outputs."""
    generator = np.random.default_rng(3)
    layer, shape, _ = CASES[case]
    parameters = layer.initial(shape, generator)
    parameters = {n: a + 0.1 * generator.standard_normal(a.shape) for n, a in parameters.items()}
    if isinstance(layer, Embedding):
        inputs = generator.integers(0, layer.tokens, (SAMPLES, *shape))
    else:
        inputs = generator.standard_normal((SAMPLES, *shape)) + 0.3
    batch = Batch(inputs, None, SAMPLES, np.arange(SAMPLES))
    error = generator.standard_normal((SAMPLES, *layer.output_shape(shape)))
    return layer, {**parameters, **layer.buffers(shape)}, list(parameters), inputs, batch, error


def test_no_layer_is_left_out():
    here = {type(case.layer) for case in CASES.values()}
    every = {kind for kind in vars(models).values() if isinstance(kind, type)}
    assert {kind for kind in every if issubclass(kind, Layer) and kind is not Layer} == here


@pytest.mark.parametrize("case", [name for name in CASES if name != "signs"])
def test_slopes_by_finite_differences(case):
    layer, parameters, trained, inputs, batch, error = made(case)
    _, memory = layer.forward(parameters, inputs, batch)
    by_input, gradients = layer.backward(parameters, memory, error, False)
    assert list(gradients) == trained
    pairs = [(parameters[name], gradients[name]) for name in trained]
    if inputs.dtype.kind == "f":
        pairs.append((inputs, by_input))
    step = 1e-6
    for array, slopes in pairs:
        assert slopes.shape == array.shape
        for index in list(np.ndindex(array.shape))[:: max(1, array.size // 40)]:
            value, found = array[index], []
            for array[index] in (value - step, value + step):
                found.append((layer.forward(parameters, inputs, batch)[0] * error).sum())
            array[index] = value
            slope = (found[1] - found[0]) / (2 * step)
            assert slopes[index] == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_both_parts_of_backward_are_backward_to_the_bit(case, first):
    """Also long after each other, and again."""
    layer, parameters, _, inputs, batch, error = made(case)
    _, memory = layer.forward(parameters, inputs, batch)
    given = error.copy()
    by_input, gradients = layer.backward(parameters, memory, error, first)
    again, kept = layer.backward_input(parameters, memory, error, first)
    assert (by_input is None) == (again is None)
    assert by_input is None or by_input.tobytes() == again.tobytes()
    layer.backward(parameters, memory, 2 * error, first)
    for _ in range(2):
        found = layer.backward_weight(parameters, memory, kept)
        assert list(found) == list(gradients)
        assert all(found[name].tobytes() == gradients[name].tobytes() for name in found)
    assert error.tobytes() == given.tobytes()


@pytest.mark.parametrize(
    "model",
    [
        resnet((4, 4, 1), (2, 3), 3, dtype="float64"),
        transformer(5, 4, 6, 2, 3, "float64"),
    ],
    ids=["resnet", "transformer"],
)
def test_a_model_may_find_all_slopes_by_parameters_at_its_end(model):
    generator = np.random.default_rng(1)
    if model.shapes[0] == (4,):
        rows = generator.integers(0, 5, (3, 5))
        inputs, targets = rows[:, :-1], rows[:, 1:]
    else:
        inputs, targets = generator.standard_normal((6, 16)), generator.integers(0, 3, 6)
    batch = Batch(inputs, targets, len(inputs))
    parameters = {**model.initial_parameters(0), **model.initial_buffers()}
    _, expected = model.loss_and_gradients(parameters, batch)

    whole, (_, rounded) = model.chunk(0, len(model.layers)), computing(parameters)
    values, memories = whole.forward(parameters, inputs, batch, rounded)
    error, found = model.loss.evaluate(values, targets)[1] / batch.total, {}
    _, kept = whole.backward_input(parameters, memories, error, rounded)
    for step in whole.backward_weight(parameters, memories, kept):
        for name, array in step.gradients.items():
            found.setdefault(name, []).append(array)
    assert found.keys() == expected.keys()
    for name, parts in found.items():
        assert sum(parts[1:], start=parts[0]).tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.torch])
def test_numbers_are_those_of_pytorch(case):
    torch = pytest.importorskip("torch")
    layer, parameters, trained, inputs, batch, error = made(case)
    theirs = {name: torch.from_numpy(array.copy()) for name, array in parameters.items()}
    for name in trained:
        theirs[name].requires_grad_()
    x = torch.from_numpy(inputs.copy())
    if inputs.dtype.kind == "f":
        x.requires_grad_()
    expected = CASES[case].torch(torch.nn.functional, theirs, x)
    expected.backward(torch.from_numpy(error))
    outputs, memory = layer.forward(parameters, inputs, batch)
    by_input, gradients = layer.backward(parameters, memory, error, False)
    near = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(outputs, expected.detach(), **near)
    if inputs.dtype.kind == "f":
        np.testing.assert_allclose(by_input, x.grad, **near)
    for name, array in parameters.items():
        if name in trained:
            np.testing.assert_allclose(gradients[name], theirs[name].grad, **near)
        else:
            np.testing.assert_allclose(array, theirs[name], **near)


class Doubled(Layer):
    """Has `backward` alone."""

    def initial(self, shape, generator):
        return {"factor": np.full(1, 2.0)}

    def forward(self, parameters, inputs, batch):
        return inputs * parameters["factor"], inputs

    def backward(self, parameters, memory, error, first):
        return error * parameters["factor"], {"factor": np.array([(error * memory).sum()])}


def test_a_layer_may_define_backward_alone_also_in_a_residual():
    model = Sequential([Residual((Doubled(), Dense(2)))], (2,), "float64", SquaredError())
    assert list(model.initial_parameters(0)) == [
        f"layer1.{n}" for n in ("0.factor", "1.weight", "1.bias")
    ]
    batch = Batch(np.array([[1.0, 2.0]]), np.zeros((1, 2)), 1)
    parameters = model.initial_parameters(0)
    _, gradients = model.loss_and_gradients(parameters, batch)
    h, losses = 1e-6, []
    for parameters["layer1.0.factor"] in (np.full(1, 2 - h), np.full(1, 2 + h)):
        losses.append(model.loss_and_gradients(parameters, batch)[0])
    slope = (losses[1] - losses[0]) / (2 * h)
    assert gradients["layer1.0.factor"][0] == pytest.approx(slope, rel=1e-7)


def test_a_layer_without_a_derivative_is_named():
    class Lost(Layer):
        def forward(self, parameters, inputs, batch):
            return inputs, None

    with pytest.raises(NotImplementedError, match="layer Lost has no derivative: define backward_"):
        Lost().backward({}, None, np.ones(1), False)
