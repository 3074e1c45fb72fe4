"""PyTorch modules in a chain of layers; PyTorch's schedulers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from clouds import clouds  # noqa: E402
from float64 import Config  # noqa: E402

from mpicoll.train import TrainingError, run  # noqa: E402
from mpicoll.train.models import Batch, Dense, ReLU, Sequential, SquaredError  # noqa: E402
from mpicoll.train.pytorch import TorchLayer, TorchSchedule  # noqa: E402


def modules():
    torch.manual_seed(3)
    return [
        torch.nn.Linear(12, 9),
        torch.nn.Sequential(torch.nn.LayerNorm(9), torch.nn.GELU()),
        torch.nn.Linear(9, 4),
    ]


def batch(dtype):
    data = clouds()
    return Batch(data.train_inputs[:20].astype(dtype), data.train_targets[:20], 20)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_chain_of_modules_has_the_bits_of_the_module_whole(dtype):
    parts = [module.to(getattr(torch, dtype)) for module in modules()]
    chain = Sequential([TorchLayer(module) for module in parts], (12,), dtype)
    given, parameters = batch(dtype), chain.initial_parameters(0)
    loss, gradients = chain.loss_and_gradients(parameters, given)

    whole = torch.nn.Sequential(*parts)
    scores = whole(torch.from_numpy(given.inputs))
    losses = torch.nn.functional.cross_entropy(
        scores, torch.from_numpy(given.targets), reduction="none"
    )
    # From the same slopes of the outputs on: those of a softmax are NumPy's in the chain.
    slopes = chain.loss.evaluate(scores.detach().numpy(), given.targets)[1] / 20
    scores.backward(torch.from_numpy(slopes))
    assert loss == pytest.approx(float(losses.detach().mean()), rel=1e-6)
    reference = [parameter.grad.numpy() for parameter in whole.parameters()]
    assert len(gradients) == len(reference) == 6
    for found, array in zip(gradients.values(), reference, strict=True):
        assert found.tobytes() == array.tobytes()


def test_modules_and_layers_of_ours_are_one_chain():
    generator = np.random.default_rng(5)
    linear = torch.nn.Linear(6, 3).double()
    model = Sequential(
        [Dense(6), ReLU(), TorchLayer(linear, "head"), ReLU(), Dense(2)],
        (5,),
        "float64",
        SquaredError(),
    )
    parameters = model.initial_parameters(0)
    assert list(parameters)[2:4] == ["head.weight", "head.bias"]
    given = Batch(generator.standard_normal((4, 5)), generator.standard_normal((4, 2)), 4)
    _, gradients = model.loss_and_gradients(parameters, given)
    for name, array in parameters.items():
        index, h = tuple(0 for _ in array.shape), 1e-6
        losses = []
        for sign in (1, -1):
            moved = {n: a.copy() for n, a in parameters.items()}
            moved[name][index] += sign * h
            losses.append(model.loss_and_gradients(moved, given)[0])
        assert gradients[name][index] == pytest.approx((losses[0] - losses[1]) / (2 * h), abs=1e-7)


def test_a_layer_keeps_nothing_of_what_it_is_given():
    linear = torch.nn.Linear(3, 2)
    before = linear.weight.detach().clone()
    model = Sequential([TorchLayer(linear)], (3,), "float32")
    ones = {n: np.ones_like(a) for n, a in model.initial_parameters(0).items()}
    inputs, labels = np.ones((2, 3), np.float32), np.array([0, 1])
    losses, scores = model.losses_and_outputs(ones, inputs, labels)
    assert np.array_equal(scores, np.full((2, 2), 4.0)) and np.allclose(losses, np.log(2))
    assert torch.equal(linear.weight, before) and linear.weight.grad is None


def test_tables_take_whole_numbers():
    model = Sequential([TorchLayer(torch.nn.Embedding(7, 3)), Dense(7)], (4,), "float32", None)
    tokens = np.array([[1, 2, 3, 6], [0, 0, 0, 5]], np.uint8)
    batch = Batch(tokens, tokens.astype(int), 2)
    _, gradients = model.loss_and_gradients(model.initial_parameters(0), batch)
    assert gradients["layer1.weight"].any(axis=1).tolist() == [True] * 4 + [False, True, True]


def test_a_module_that_shares_a_weight_has_it_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(5, 3)
            self.scores = torch.nn.Linear(3, 5, bias=False)
            self.scores.weight = self.table.weight

        def forward(self, tokens):
            return self.scores(self.table(tokens))

    tied = Tied()
    model = Sequential([TorchLayer(tied)], (2,), "float32")
    parameters = model.initial_parameters(0)
    assert list(parameters) == ["layer1.table.weight"]
    tokens = np.array([[1, 2]])
    _, gradients = model.loss_and_gradients(parameters, Batch(tokens, tokens, 1))
    scores = tied(torch.from_numpy(tokens))
    torch.nn.functional.cross_entropy(scores.reshape(2, 5), torch.from_numpy(tokens[0])).backward()
    np.testing.assert_allclose(gradients["layer1.table.weight"], tied.table.weight.grad, rtol=1e-5)


@pytest.mark.parametrize("first", [False, True])
def test_both_parts_of_the_backward_pass_are_the_whole_in_bits(first):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    layer, generator = TorchLayer(net), np.random.default_rng(0)
    parameters = layer.initial((5,), generator)
    inputs = generator.standard_normal((4, 5)).astype(np.float32)
    error = generator.standard_normal((4, 3)).astype(np.float32)
    given = Batch(inputs, np.zeros(4, int), 4)
    memories = [layer.forward(parameters, inputs, given)[1] for _ in range(2)]
    slopes, gradients = layer.backward(parameters, memories[0], error, first)
    by_input, kept = layer.backward_input(parameters, memories[1], error, first)
    by_weight = layer.backward_weight(parameters, memories[1], kept)
    assert (by_input is None) == (slopes is None) == first
    assert first or by_input.tobytes() == slopes.tobytes()
    assert list(by_weight) == list(gradients) == list(parameters)
    assert all(by_weight[name].tobytes() == gradients[name].tobytes() for name in gradients)


def test_buffers_that_are_passed_in_are_changed_in_place():
    layer = TorchLayer(torch.nn.BatchNorm1d(3))
    assert list(layer.initial((3,), None)) == ["weight", "bias"]
    buffers = layer.buffers((3,))
    assert list(buffers) == ["running_mean", "running_var", "num_batches_tracked"]
    own = {name: array.copy() for name, array in buffers.items()}
    inputs = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    given = {**layer.initial((3,), None), **buffers}
    outputs, memory = layer.forward(given, inputs, Batch(inputs, np.zeros(8, int), 8))
    np.testing.assert_allclose(buffers["running_mean"], 0.1 * inputs.mean(axis=0), rtol=1e-5)
    assert buffers["num_batches_tracked"] == 1
    assert all(np.array_equal(array, own[name]) for name, array in layer.buffers((3,)).items())
    _, gradients = layer.backward(given, memory, np.ones_like(outputs), False)
    assert list(gradients) == ["weight", "bias"]


def test_a_module_that_takes_no_such_samples_is_refused():
    with pytest.raises(ValueError, match=r"Linear takes no samples of shape \(4,\): "):
        Sequential([TorchLayer(torch.nn.Linear(3, 2))], (4,), "float32")


# --- schedulers -----------------------------------------------------------------------------------


def test_a_scheduler_gives_the_rates_of_pytorch():
    def make(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=8)

    ours, seen = TorchSchedule(make, 0.1), []
    run(
        Config(batch=32, epochs=2, lr=5.0),
        dataset=clouds(),
        schedule=ours,
        on_step=lambda step: seen.append(step.lr),
    )
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler, expected = make(optimizer), []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < 8:
            scheduler.step()
    assert seen == expected and len(set(seen)) > 5


def test_a_scheduler_that_ends_before_the_run_says_so():
    def make(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=5)

    with pytest.raises(TrainingError, match="asking the schedule failed on rank 0: ValueError"):
        run(Config(batch=32, epochs=2), dataset=clouds(), schedule=TorchSchedule(make, 0.1))


def test_a_scheduler_of_measurements_is_refused():
    with pytest.raises(ValueError, match="ReduceLROnPlateau follows measurements"):
        TorchSchedule(torch.optim.lr_scheduler.ReduceLROnPlateau, 0.1)
