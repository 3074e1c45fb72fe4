"""The residual net learns what the same net of PyTorch learns, step by step."""

import numpy as np
import pytest

from mpicoll.train.models import Batch, resnet

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.inner = nn.Sequential(
            *normed(channels, channels), nn.ReLU(), *normed(channels, channels)
        )

    def forward(self, x):
        return torch.relu(x + self.inner(x))


def normed(before, channels):
    return nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)


def theirs(channels, classes):
    layers, before = [], 1
    for stage, count in enumerate(channels):
        layers += [*normed(before, count), nn.ReLU(), *([nn.MaxPool2d(2)] if stage else [])]
        layers.append(Block(count))
        before = count
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def copied(net, parameters):
    """Our first parameters in theirs; both have them in one order."""
    for own, array in zip(net.parameters(), parameters.values(), strict=True):
        value = torch.from_numpy(array)
        if own.ndim == 4:
            value = value.reshape(3, 3, own.shape[1], own.shape[0]).permute(3, 2, 0, 1)
        elif own.ndim == 2:
            value = value.T
        own.data.copy_(value)


def test_fifty_steps_are_those_of_pytorch():
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 4
    inputs = generator.standard_normal((40, 64)) + 2 * np.eye(4, 64)[labels]
    inputs = inputs.astype(np.float32)
    model, net = resnet((8, 8, 1), (3, 4), 4, dtype="float32"), theirs((3, 4), 4)
    parameters, buffers = model.initial_parameters(1), model.initial_buffers()
    copied(net, parameters)
    velocity = {name: np.zeros_like(array) for name, array in parameters.items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(50):
        rows = np.arange(10 * (step % 4), 10 * (step % 4) + 10)
        batch = Batch(inputs[rows], labels[rows], 10)
        loss, gradients = model.loss_and_gradients({**parameters, **buffers}, batch)
        for name, gradient in gradients.items():
            velocity[name] = np.float32(0.9) * velocity[name] + gradient
            parameters[name] -= np.float32(0.05) * velocity[name]
        optimizer.zero_grad()
        x = torch.from_numpy(inputs[rows]).reshape(10, 1, 8, 8)
        found = nn.functional.cross_entropy(net(x), torch.from_numpy(labels[rows]))
        found.backward()
        optimizer.step()
        losses.append((loss, found.item()))
    ours, expected = np.array(losses).T
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert ours[-1] < 0.5 * ours[0]
    for own, array in zip(
        (b for name, b in net.named_buffers() if "tracked" not in name),
        buffers.values(),
        strict=True,
    ):
        np.testing.assert_allclose(array, own, rtol=1e-4, atol=1e-5)
