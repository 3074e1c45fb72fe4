"""Points around four centres, data sets for tests of training."""

import numpy as np

from mpicoll.train import Dataset


def clouds(samples=101, shape=(12,)):
    """So many to train on, and 30 to test; each of twelve values."""
    generator = np.random.default_rng(7)
    labels = np.arange(samples + 30) % 4
    inputs = np.eye(4, 12)[labels] + generator.standard_normal((samples + 30, 12))
    inputs = inputs.reshape(-1, *shape)
    train, test = slice(0, samples), slice(samples, None)
    return Dataset("clouds", 4, inputs[train], labels[train], inputs[test], labels[test])


def write_samples(path):
    """A file of 240 to train on, and 60 to test."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 300)
    inputs = random.standard_normal((300, 16)) + labels[:, None]
    np.savez(
        path,
        train_inputs=inputs[:240],
        train_labels=labels[:240],
        test_inputs=inputs[240:],
        test_labels=labels[240:],
    )
