"""PyTorch's modules as layers of a pipeline: bits, dropout when passes run again, memory."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from stages import alone, batches, find, run  # noqa: E402

from mpicoll.train.models import Dense, Residual, Sequential  # noqa: E402
from mpicoll.train.pytorch import TorchLayer  # noqa: E402


def modules(*more):
    torch.manual_seed(3)
    return [
        TorchLayer(torch.nn.Linear(6, 8)),
        TorchLayer(torch.nn.GELU()),
        *more,
        Dense(8),
        TorchLayer(torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))),
    ]


def data(samples):
    generator = np.random.default_rng(1)
    inputs = generator.standard_normal((samples, 6)).astype(np.float32)
    return inputs, generator.integers(0, 3, samples)


@pytest.mark.parametrize("order", ["1f1b", "zb_h1"])
@pytest.mark.parametrize("recompute", [False, True])
def test_stages_of_modules(order, recompute):
    torch.set_num_threads(1)
    model = Sequential(modules(), (6,), "float32")
    given = batches(*data(11), 4)
    _, gradients, _ = alone(model, given)
    ranks = run(model, find(order, 2, 4, recompute=recompute), (0, 2), given)
    found = {name: array for rank in ranks for name, array in rank.gradients.items()}
    assert found.keys() == gradients.keys()
    for name, array in found.items():
        assert array.tobytes() == gradients[name].tobytes(), name


def test_dropout_draws_again_what_it_drew():
    dropped = (TorchLayer(torch.nn.Dropout(0.5)), Residual((TorchLayer(torch.nn.Dropout(0.2)),)))
    model = Sequential(modules(*dropped), (6,), "float32")
    given, found, states = batches(*data(11), 4), [], []
    for recompute in (False, True):
        torch.manual_seed(7)
        [rank] = run(model, find("gpipe", 1, 4, recompute=recompute), (0,), given)
        found.append(rank.gradients)
        states.append(torch.get_rng_state())
    for name, array in found[0].items():
        assert array.tobytes() == found[1][name].tobytes(), name
    assert torch.equal(*states)


def test_what_a_module_keeps_is_measured():
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    assert TorchLayer(module).kept((6,)) == 8 + 8  # not inputs, outputs and parameters
    assert TorchLayer(module).kept((5, 6)) == 5 * (8 + 8)
    assert TorchLayer(torch.nn.Flatten()).kept((4, 5)) == 0
    assert TorchLayer(torch.nn.Embedding(9, 4)).kept((3,)) == 0
    normed = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5))
    before = torch.get_rng_state(), {k: v.clone() for k, v in normed.state_dict().items()}
    assert TorchLayer(normed).kept((6,)) >= 6  # what is normalised, and what is dropped
    assert torch.equal(torch.get_rng_state(), before[0])
    for name, tensor in normed.state_dict().items():
        assert torch.equal(tensor, before[1][name]), name
