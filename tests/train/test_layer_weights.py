"""Parameters that tasks gather layer by layer."""

import numpy as np
import pytest

from mpicoll.train.parallel.layer_weights import LayerWeights
from mpicoll.train.step.tasks import Task

NAMES = {0: ("a.weight", "tied"), 2: ("b.weight",), 3: ("tied",), 5: ("c.weight", "c.bias")}


@pytest.fixture
def made():
    """Weights of a chunk of six layers, and the layers that they have gathered."""
    seen = []

    def gather(layer):
        seen.append(layer)
        return {name: np.full(2, layer, np.float64) for name in NAMES[layer]}

    buffers = {"b.mean": np.zeros(1)}
    return LayerWeights(gather, {4: list(NAMES)}, buffers, np.dtype(np.float64)), seen, buffers


@pytest.mark.parametrize(
    ("kind", "order"), [*((k, [0, 2, 3, 5]) for k in "FR")] + [(k, [5, 3, 2, 0]) for k in "BIW"]
)
def test_layers_are_gathered_in_the_order_of_the_task(made, kind, order):
    weights, seen, buffers = made
    task = Task(kind, 4, 0)
    own, rounded = weights.of(task)
    assert rounded(buffers["b.mean"]) is buffers["b.mean"]
    for layer in order:
        for name in NAMES[layer]:
            assert own[name].shape == (2,)
        assert set(own) <= {"b.mean", *NAMES[seen[-1]]}  # one layer at a time
        assert own["b.mean"] is buffers["b.mean"]
    weights.done(task)
    assert seen == order and set(own) == {"b.mean"}
    weights.of(task)[0]["a.weight"]  # the next microbatch gathers again
    assert seen[len(order) :] == order[: order.index(0) + 1]


@pytest.mark.parametrize("asked", range(4))
def test_what_a_failed_task_has_not_gathered_is_gathered_by_its_end(made, asked):
    weights, seen, _ = made
    task = Task("F", 4, 1)
    if asked:
        own, _ = weights.of(task)
        for layer in [0, 2, 3, 5][:asked]:
            own[NAMES[layer][0]]
    weights.done(task)
    assert seen == [0, 2, 3, 5]
