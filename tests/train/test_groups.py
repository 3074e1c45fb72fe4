"""Groups of parameters: rates and decays of their own, cut as their vector is cut."""

from itertools import pairwise

import numpy as np
import pytest
from clouds import clouds
from float64 import MLP, Config

from mpicoll.train import TrainingError, optimizers, run
from mpicoll.train.groups import Group, Grouped, grouped, parse, part_of
from mpicoll.train.models import Batch, transformer
from mpicoll.train.models.flat import Flat
from mpicoll.train.optimizers import OPTIMIZERS, empty_state, make

GROUPS = [Group("b", 0.5, 0.2), Group("*.weight", 2.0), Group("c*", 0.0)]


def parameters():
    generator = np.random.default_rng(3)
    shapes = {"a.weight": (2, 3), "a.bias": (3,), "b": (5,), "c": (2,), "d": (4, 1), "e": (3,)}
    return {name: generator.standard_normal(shape) for name, shape in shapes.items()}


#: What each is of: factor of the rate, decay with "all" and with "matrices", beside a run's 0.1.
EXPECTED = {
    "a.weight": (2.0, 0.1, 0.1),
    "a.bias": (1.0, 0.1, 0.0),
    "b": (0.5, 0.2, 0.2),
    "c": (0.0, 0.1, 0.0),
    "d": (1.0, 0.1, 0.1),
    "e": (1.0, 0.1, 0.0),
}


@pytest.mark.parametrize("decaying", ["all", "matrices"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_array_has_its_rate_and_its_decay(name, decaying):
    generator = np.random.default_rng(4)
    flat, apart = Flat(parameters()), parameters()
    optimizer = grouped(make(name, decay=0.1), flat.views, GROUPS, decaying)
    state = empty_state(optimizer, flat.vector)
    states = {key: empty_state(optimizer, array) for key, array in apart.items()}
    for step in (1, 2, 3):
        gradient = generator.standard_normal(flat.vector.size)
        for key, array in apart.items():
            factor, *decays = EXPECTED[key]
            start, end = flat.spans[key]
            own = make(name, decay=decays[decaying == "matrices"])
            part = gradient[start:end].reshape(array.shape).copy()
            own.update(array, part, states[key], 0.1 * factor, step)
        optimizer.update(flat.vector, gradient, state, 0.1, step)
    assert all(np.array_equal(flat.views[key], array) for key, array in apart.items())


@pytest.mark.parametrize("cuts", [(0, 23), (0, 1, 7, 7, 15, 23), tuple(range(24))])
def test_parts_are_updated_as_the_whole(cuts):
    flat, cut = Flat(parameters()), Flat(parameters())
    optimizer = grouped(make("adamw", decay=0.1), flat.views, GROUPS, "matrices")
    gradient = np.random.default_rng(4).standard_normal(23)
    optimizer.update(flat.vector, gradient.copy(), empty_state(optimizer, flat.vector), 0.1, 1)
    for start, end in pairwise(cuts):
        own, weights = part_of(optimizer, start, end), cut.vector[start:end]
        own.update(weights, gradient[start:end].copy(), empty_state(own, weights), 0.1, 1)
    assert np.array_equal(flat.vector, cut.vector)


def test_neighbours_of_one_group_are_one_stretch():
    views = {name: np.zeros((2, 2)) for name in "abcd"}
    assert grouped(make("adam"), views, []) == make("adam")
    assert grouped(make("adam", decay=0.1), views, [Group("*", 1.0)]) == make("adam", decay=0.1)
    found = grouped(make("adam"), views, [Group("c", 0.5)])
    assert isinstance(found, Grouped)
    assert [(s.start, s.end, s.lr) for s in found._stretches] == [
        (0, 8, 1.0),
        (8, 12, 0.5),
        (12, 16, 1.0),
    ]


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("*.bias:decay=0", Group("*.bias", 1.0, 0.0)),
        ("emb*:lr=0.1:decay=1e-2", Group("emb*", 0.1, 0.01)),
    ],
)
def test_groups_are_written_in_words(text, group):
    assert parse(text) == group


@pytest.mark.parametrize(
    "text", ["*.bias", ":lr=1", "a:lr", "a:lr=x", "a:lr=-1", "a:lr=inf", "a:rate=1", "a:lr=1:b=2"]
)
def test_what_is_no_group_is_refused(text):
    with pytest.raises(ValueError, match="is no group of parameters: write PATTERN:lr=FACTOR"):
        Config(groups=(text,))


def test_a_group_without_parameters_is_refused():
    config = Config(groups=("layer9.*:lr=2",))
    with pytest.raises(TrainingError, match=r"no parameter is of group layer9\.\*: parameters are"):
        run(config, dataset=clouds())


def test_a_decay_that_an_optimizer_does_not_have_is_refused():
    def still(weights, gradient, state, lr, step):
        pass

    config = Config(groups=("*.bias:decay=0",))
    with pytest.raises(TrainingError, match="the optimizer Function has no weight decay"):
        run(config, dataset=clouds(), optimizer=still)


def test_a_rate_of_nothing_leaves_parameters_as_they_are():
    config = Config(model="mlp", hidden=(6,), epochs=1, groups=("layer1.*:lr=0",))
    result, first = run(config, dataset=clouds()), MLP((12, 6, 4)).initial_parameters(0)
    same = {name: np.array_equal(first[name], result.parameters[name]) for name in first}
    assert same == {
        "layer1.weight": True,
        "layer1.bias": True,
        "layer2.weight": False,
        "layer2.bias": False,
    }


def test_a_tied_weight_decays_once():
    """The embedding of a decoder, without gradient: w = w - lr decay w."""
    model = transformer(7, 4, 6, 1, 2, "float64")
    first = model.initial_parameters(0)
    assert [name for name in first if "embedding" in name] == ["embedding.weight"]
    flat = Flat(first)
    optimizer = grouped(make("sgd"), flat.views, [Group("embedding.*", 0.5, 0.2)])
    optimizer.update(flat.vector, np.zeros_like(flat.vector), {}, 0.1, 1)
    for name, array in first.items():
        kept = 1 - 0.05 * 0.2 if name == "embedding.weight" else 1
        np.testing.assert_allclose(flat.views[name], kept * array, rtol=1e-15)


def test_a_tied_weight_counts_once_in_the_norm():
    model = transformer(7, 4, 6, 1, 2, "float64")
    generator = np.random.default_rng(0)
    texts = generator.integers(0, 7, (3, 5))
    batch = Batch(texts[:, :-1], texts[:, 1:], 3)
    _, gradients = model.loss_and_gradients(model.initial_parameters(0), batch)
    assert Flat(gradients).vector.size == sum(array.size for array in gradients.values())
    assert len(gradients) == len(model.initial_parameters(0))


def test_groups_are_those_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    config = Config(
        model="mlp",
        hidden=(6,),
        optimizer="adamw",
        lr=0.01,
        weight_decay=0.3,
        decay_on="matrices",
        groups=("layer2.*:lr=0.5",),
        batch=101,
        epochs=20,
    )
    ours, first = run(config, dataset=clouds()).parameters, MLP((12, 6, 4)).initial_parameters(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    net.double()
    named = {"layer1": net[0], "layer2": net[2]}
    with torch.no_grad():
        for name, layer in named.items():
            layer.weight.copy_(torch.from_numpy(first[f"{name}.weight"].T))
            layer.bias.copy_(torch.from_numpy(first[f"{name}.bias"]))
    groups = [
        {"params": [net[0].weight], "weight_decay": 0.3, "lr": 0.01},
        {"params": [net[0].bias], "weight_decay": 0.0, "lr": 0.01},
        {"params": [net[2].weight], "weight_decay": 0.3, "lr": 0.005},
        {"params": [net[2].bias], "weight_decay": 0.0, "lr": 0.005},
    ]
    optimizer, data = torch.optim.AdamW(groups), clouds()
    for _ in range(20):
        optimizer.zero_grad()
        scores = net(torch.from_numpy(data.train_inputs))
        torch.nn.functional.cross_entropy(scores, torch.from_numpy(data.train_targets)).backward()
        optimizer.step()
    for name, layer in named.items():
        np.testing.assert_allclose(ours[f"{name}.weight"], layer.weight.detach().T, rtol=1e-9)
        np.testing.assert_allclose(ours[f"{name}.bias"], layer.bias.detach(), rtol=1e-9)


def test_an_optimizer_may_be_a_function():
    def plain(weights, gradient, state, lr, step):
        weights -= lr * gradient

    config = Config(optimizer="sgd", epochs=2, batch=16)
    ours = run(config, dataset=clouds(), optimizer=plain)
    reference = run(config, dataset=clouds())
    for name, array in reference.parameters.items():
        np.testing.assert_allclose(ours.parameters[name], array, rtol=1e-12)
    assert optimizers.Function(plain).name == "plain"
