"""The decoder learns what the same decoder of PyTorch learns, step by step."""

from pathlib import Path

import numpy as np
import pytest

from mpicoll.train.data import load
from mpicoll.train.models import Batch, transformer

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.long
@pytest.mark.timeout(180)
def test_fifty_steps_are_those_of_pytorch(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from torch_decoder import Decoder, copy_parameters

    samples, context = 8, 32
    inputs, targets = (array[: 50 * samples, :context] for array in load("text").parts["train"])
    model = transformer(256, context, width=64, blocks=2, heads=4)
    parameters = model.initial_parameters(0)
    net = Decoder(256, context, width=64, blocks=2, heads=4)
    copy_parameters(net, parameters)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    losses = []
    for step in range(50):
        rows = slice(samples * step, samples * (step + 1))
        batch = Batch(inputs[rows], targets[rows], samples)
        loss, gradients = model.loss_and_gradients(parameters, batch)
        for name, gradient in gradients.items():
            parameters[name] -= np.float32(0.2) * gradient
        optimizer.zero_grad()
        scores = net(torch.from_numpy(inputs[rows].astype(int)))
        wanted = torch.from_numpy(targets[rows].astype(int)).flatten()
        found = torch.nn.functional.cross_entropy(scores.flatten(0, 1), wanted)
        found.backward()
        optimizer.step()
        losses.append((loss, found.item()))
    ours, theirs = np.array(losses).T
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert ours[-1] < ours[0] - 1.5
