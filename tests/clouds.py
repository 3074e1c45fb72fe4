"""Points around four centres, a data set for tests of training."""

import numpy as np

from mpicoll.train import Dataset


def clouds(samples=101):
    """So many to train on, and 30 to test."""
    generator = np.random.default_rng(7)
    labels = np.arange(samples + 30) % 4
    inputs = np.eye(4, 12)[labels] + generator.standard_normal((samples + 30, 12))
    train, test = slice(0, samples), slice(samples, None)
    shape = (3, 4, 1)
    return Dataset("clouds", 4, inputs[train], labels[train], inputs[test], labels[test], shape)
