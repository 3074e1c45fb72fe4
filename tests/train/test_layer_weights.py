"""Parameters that tasks gather layer by layer, each while the one before is used."""

import numpy as np
import pytest

from mpicoll.train.parallel.layer_weights import LayerWeights
from mpicoll.train.step.tasks import Task

NAMES = {0: ("a.weight", "tied"), 2: ("b.weight",), 3: ("tied",), 5: ("c.weight", "c.bias")}


class Made:
    """Weights of a chunk of six layers, and what they have begun and gathered."""

    def __init__(self, *tasks, keep=False):
        self.begun, self.there, self.polled, self.room = [], [], 0, True
        self.order = []
        self.buffers = {"b.mean": np.zeros(1)}
        self.tasks = [Task(kind, 4, microbatch) for kind, microbatch in tasks]
        layers = {4: NAMES}
        given = layers, self.buffers, np.dtype(np.float64), self.tasks, keep
        self.weights = LayerWeights(self.start, *given)

    def passed(self, task, layer):
        self.order.append(f"passed {layer}")

    def start(self, layer, names):
        if not self.room:
            raise MemoryError
        self.begun.append(layer)
        return Coming(self, layer, names)


class Coming:
    def __init__(self, made, layer, names):
        self.made, self.layer, self.names = made, layer, names

    def Test(self):
        self.made.polled += 1

    def finish(self):
        self.made.there.append(self.layer)
        self.made.order.append(f"took {self.layer}")
        return {name: np.full(2, self.layer, np.float64) for name in self.names}


@pytest.mark.parametrize(
    ("kind", "order"), [*((k, [0, 2, 3, 5]) for k in "FR")] + [(k, [5, 3, 2, 0]) for k in "BIW"]
)
def test_layers_are_gathered_in_the_order_of_the_task_each_ahead_of_its_use(kind, order):
    made = Made((kind, 0), (kind, 1))
    assert (made.begun, made.there) == ([order[0]], [])
    own, rounded = made.weights.of(made.tasks[0])
    assert rounded(made.buffers["b.mean"]) is made.buffers["b.mean"]
    for number, layer in enumerate(order):
        for name in NAMES[layer]:
            assert own[name].shape == (2,)
        assert set(own) <= {"b.mean", *NAMES[made.there[-1]]}  # one layer at a time
        assert own["b.mean"] is made.buffers["b.mean"]
        # The next one is under way, and moves on between two layers.
        assert made.begun[: number + 2] == [*order, order[0]][: number + 2]
        assert len(made.begun) == number + 2
        before = made.polled
        made.weights.poll()
        assert made.polled == before + 1
    made.weights.done(made.tasks[0], made.passed)
    assert made.there == order and set(own) == {"b.mean"}
    made.weights.of(made.tasks[1])[0][NAMES[order[0]][0]]  # the next microbatch gathers again
    assert made.there == [*order, order[0]]


@pytest.mark.parametrize("asked", range(4))
def test_what_a_failed_task_has_not_gathered_is_gathered_by_its_end(asked):
    made = Made(("F", 1))
    if asked:
        own, _ = made.weights.of(made.tasks[0])
        for layer in [0, 2, 3, 5][:asked]:
            own[NAMES[layer][0]]
    made.weights.done(made.tasks[0], made.passed)
    assert made.begun == made.there == [0, 2, 3, 5]
    # Between them comes what a task does that has not failed.
    every = [f"{what} {layer}" for layer in (0, 2, 3, 5) for what in ("took", "passed")][:-1]
    for layer in [0, 2, 3][: max(asked - 1, 0)]:
        every.remove(f"passed {layer}")
    assert made.order == every


def test_what_stays_is_gathered_once_by_the_first_task_that_needs_it():
    made = Made(("F", 0), ("F", 1), ("B", 0), keep=True)
    own, _ = made.weights.of(made.tasks[0])
    own["c.bias"]
    assert set(own) == {"a.weight", "tied", "b.weight", "c.weight", "c.bias", "b.mean"}
    for task in made.tasks:
        assert made.weights.of(task)[0]["tied"][0] == 0  # layer 3 has that of layer 0
        made.weights.done(task, made.passed)
    assert made.begun == made.there == [0, 2, 5]
    made.weights.close()
    assert set(own) == {"b.mean"}


def test_what_there_was_no_memory_for_is_gathered_when_it_is_needed():
    made = Made(("F", 0))
    own, _ = made.weights.of(made.tasks[0])
    own["a.weight"]
    made.room = False
    own["b.weight"]  # begun before
    with pytest.raises(MemoryError):
        own["c.weight"]
    made.room = True
    made.weights.done(made.tasks[0], made.passed)
    assert made.begun == made.there == [0, 2, 3, 5]
