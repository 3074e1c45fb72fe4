"""Units of fully sharded parameters in one process: their order, their memory, what is refused."""

import tracemalloc

import numpy as np
import pytest

from mpicoll.train import TrainingError, optimizers
from mpicoll.train.models import (
    Batch,
    Dense,
    Gelu,
    Residual,
    Sequential,
    transformer,
)
from mpicoll.train.parallel import Drawn, FullySharded
from mpicoll.train.parallel.units import grouped, memory, program


def small():
    return transformer(11, 5, 8, 2, 2, "float64")


def test_names_are_grouped_by_layer():
    names = list(small().parameter_shapes)
    found = grouped(names)
    assert list(found) == ["embedding", *(f"layer{number}" for number in range(2, 8))]
    assert [name for unit in found.values() for name in unit] == names


def test_every_unit_is_used_in_both_passes_and_reduced_once():
    assert program([0, None, 1]) == [
        ("use", 0),
        ("use", 1),
        ("use", 1),
        ("reduce", 1),
        ("use", 0),
        ("reduce", 0),
    ]
    # What two layers share is reduced when the first of them is done.
    shared = program([0, 1, 0])
    assert shared[3:] == [("use", 0), ("use", 1), ("reduce", 1), ("use", 0), ("reduce", 0)]


def test_parameters_are_drawn_layer_by_layer():
    model = small()
    drawn, whole = Drawn(model, 3), model.initial_parameters(3)
    assert list(drawn) == list(whole) and len(drawn) == len(whole)
    for name in reversed(list(whole)):
        np.testing.assert_array_equal(drawn[name], whole[name])


def test_one_process_has_the_model_whole_to_the_bit():
    """With a tied weight, clipping, and two batches an update."""
    model = small()
    whole = model.initial_parameters(1)
    sharded = FullySharded(Drawn(model, 1))
    optimizer, generator = optimizers.make("adam"), np.random.default_rng(5)
    states = {name: optimizers.empty_state(optimizer, array) for name, array in whole.items()}
    for step in range(1, 6):
        total = {name: np.zeros_like(array) for name, array in whole.items()}
        for _ in range(2):
            tokens = generator.integers(0, 11, (4, 6))
            batch = Batch(tokens[:, :-1], tokens[:, 1:], 8, np.arange(4))
            loss, gradients = model.loss_and_gradients(whole, batch)
            assert sharded.compute(model, batch) == loss
            for name, gradient in gradients.items():
                total[name] += gradient
        norm = np.sqrt(sum(np.square(gradient).sum() for gradient in total.values()))
        assert sharded.norm() == pytest.approx(norm, rel=1e-13)
        # A larger limit than the norm: what is not clipped has equal bits.
        sharded.update(optimizer, 0.01, clip=2 * norm)
        for name, array in whole.items():
            optimizer.update(array, total[name], states[name], 0.01, step)
    for name, array in sharded.whole():
        np.testing.assert_array_equal(array, whole[name])
    inputs = tokens[:, :-1], tokens[:, 1:]
    ours, theirs = (
        sharded.losses_and_outputs(model, *inputs),
        model.losses_and_outputs(whole, *inputs),
    )
    for array, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_long_gradient_is_shortened():
    model = Sequential([Dense(3)], (4,), "float64")
    sharded = FullySharded(model.initial_parameters(1))
    before = dict(sharded.whole())
    generator = np.random.default_rng(1)
    batch = Batch(generator.standard_normal((5, 4)), np.arange(5) % 3, 5)
    _, gradients = model.loss_and_gradients(before, batch)
    sharded.compute(model, batch)
    norm = sharded.norm()
    sharded.update(optimizers.make("sgd"), 0.1, clip=norm / 4)
    for name, array in sharded.whole():
        np.testing.assert_allclose(array, before[name] - 0.025 * gradients[name], rtol=1e-13)


def test_a_parameter_is_read_while_its_unit_is_there():
    parameters = FullySharded(small().initial_parameters(1))
    with parameters.unit("layer2") as views:
        assert parameters["layer2.weight"] is views["layer2.weight"]
        with pytest.raises(RuntimeError, match=r"unit\('layer3'\)"):
            parameters["layer3.0.weight"]
    with pytest.raises(RuntimeError, match=r"layer2.weight is not gathered, or has been freed"):
        parameters["layer2.weight"]
    with pytest.raises(KeyError):
        parameters["layer99.weight"]


def test_units_are_used_as_was_said():
    parameters = FullySharded(small().initial_parameters(1))
    parameters.expect(["layer2", "layer3"])
    with (
        pytest.raises(RuntimeError, match="layer3 is used where unit layer2 is expected"),
        parameters.unit("layer3"),
    ):
        pass


def test_buffers_are_as_many_as_was_said():
    parameters = FullySharded(small().initial_parameters(1), ahead=1)
    with (
        parameters.unit("layer2"),
        parameters.unit("layer3"),
        pytest.raises(RuntimeError, match=r"layer2, which is in use.* give ahead of at least 2"),
        parameters.unit("layer4"),
    ):
        pass


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 3, 99])
def test_memory_is_that_of_the_formula(ahead, keep):
    model = small()
    sharded = FullySharded(Drawn(model, 1), ahead=ahead, keep=keep)
    tokens = np.random.default_rng(1).integers(0, 11, (4, 6))
    sharded.compute(model, Batch(tokens[:, :-1], tokens[:, 1:], 4, np.arange(4)))
    sharded.update(optimizers.make("adam"), 0.1)
    shapes = model.parameter_shapes
    lengths = [sum(int(np.prod(shapes[n])) for n in names) for names in grouped(shapes).values()]
    assert sharded.nbytes == 8 * memory(lengths, lengths, 2, ahead, keep)


def test_no_more_is_there_at_any_time():
    """Of a model of twelve equal layers: beside the formula's, as much as a layer works in."""
    model = Sequential([Residual((Dense(200), Gelu())) for _ in range(12)], (200,), "float64")
    unit = 200 * 201 * 8
    generator = np.random.default_rng(1)
    batch = Batch(generator.standard_normal((2, 200)), np.zeros(2, int), 2)
    tracemalloc.start()
    sharded = FullySharded(Drawn(model, 1))
    created = tracemalloc.get_traced_memory()[1]
    for _ in range(2):
        sharded.compute(model, batch)
        sharded.update(optimizers.make("sgd"), 0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    formula = 8 * memory([200 * 201] * 12, [200 * 201] * 12, 0, 1, False)
    # Drawing a layer takes its weights and a scaled copy; a backward pass its gradients.
    assert created <= formula + 3 * unit
    assert formula <= peak <= formula + 3 * unit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gather": "some"}, "gather is 'some': give one of all, broadcast"),
        ({"ahead": -1}, "ahead is -1: give a number of units, at least 0"),
    ],
)
def test_options_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FullySharded({"layer1.weight": np.zeros(3)}, **options)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "the model has no parameters"),
        ({"a.weight": np.zeros(2), "b.weight": np.zeros(2, "f4")}, "b.weight is float32"),
        ({"a.weight": np.zeros(2, np.int32)}, "is int32, the first is int32: give all parameters"),
    ],
)
def test_parameters_that_are_none_are_refused(parameters, message):
    with pytest.raises(TrainingError, match=message):
        FullySharded(parameters)


def test_a_layer_that_keeps_parameters_needs_them_to_stay():
    torch = pytest.importorskip("torch")
    from mpicoll.train.models.torch_layer import TorchLayer

    torch.manual_seed(1)
    model = Sequential([Residual((TorchLayer(torch.nn.Linear(4, 4)),)), Dense(3)], (4,), "float32")
    whole = model.initial_parameters(1)
    batch = Batch(np.ones((5, 4), "f4"), np.arange(5) % 3, 5)
    with pytest.raises(ValueError, match=r"layer 0 of the model, a Residual, .*: .*keep=True"):
        FullySharded(whole).compute(model, batch)
    loss, gradients = model.loss_and_gradients(whole, batch)
    sharded = FullySharded(whole, keep=True)
    assert sharded.compute(model, batch) == loss
    sharded.update(optimizers.make("sgd"), 1.0)
    for name, array in sharded.whole():
        np.testing.assert_array_equal(array, whole[name] - gradients[name])
