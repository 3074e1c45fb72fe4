"""Parameters that tasks gather layer by layer, each while the one before is used."""

from typing import ClassVar

import numpy as np
import pytest

from mpicoll.train.models import precision
from mpicoll.train.parallel import layer_weights
from mpicoll.train.parallel.layer_weights import LayerWeights
from mpicoll.train.parallel.piece_sums import PieceSums
from mpicoll.train.parallel.pieces import Pieces
from mpicoll.train.ranks.workers import Workers
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


def test_what_there_was_no_memory_for_is_gathered_by_the_end_of_the_task():
    made = Made(("F", 0))
    own, _ = made.weights.of(made.tasks[0])
    own["a.weight"]
    made.room = False
    with pytest.raises(MemoryError):
        own["b.weight"]  # is there, but the next one is not begun
    made.room = True
    made.weights.done(made.tasks[0], made.passed)
    assert made.begun == made.there == [0, 2, 3, 5]


class Step:
    """Two chunks of three layers, forward and backward, with real sums of their gradients.

    Args:
        fails: Which call that takes memory raises MemoryError; None for none of them.

    Attributes:
        order: Gathers and sums, as they begin.
        calls: Calls that take memory, so far.
        failed: Tasks that have failed.
    """

    names: ClassVar = {c: {n: [f"{n}.weight"] for n in range(3 * c, 3 * c + 3)} for c in (0, 1)}

    def __init__(self, fails=None):
        self.order, self.calls, self.fails, self.failed = [], 0, fails, []
        kinds = [("F", 0), ("F", 1), ("B", 1), ("B", 0)]
        self.tasks = [Task(kind, chunk, 0) for kind, chunk in kinds]
        shapes = {(n, name): (2,) for own in self.names.values() for n, (name,) in own.items()}
        pieces = {
            chunk: Pieces({(n, *own[n]): 2 for n in reversed(own)}, Summing(self, chunk), most=2)
            for chunk, own in self.names.items()
        }
        self.sums = PieceSums(shapes, np.dtype(float), range(1), pieces)
        given = self.names, {}, np.dtype(float), self.tasks, False
        self.weights = LayerWeights(self.start, *given)

    def take_memory(self):
        self.calls += 1
        if self.calls - 1 == self.fails:
            raise MemoryError

    def start(self, layer, names):
        self.take_memory()
        self.order.append(f"gather {layer}")
        return Whole(self, names)

    def run(self):
        """As the executor does."""
        self.sums.begin()
        for task in self.tasks:
            try:
                self._compute(task)
            except MemoryError:
                self.failed.append(str(task))
            self.weights.done(task, self.sums.passed)
            self.sums.done(task)
        self.weights.close()
        self.sums.close()

    def _compute(self, task):
        own, _ = self.weights.of(task)
        layers = self.names[task.chunk]
        for layer in layers if task.kind == "F" else reversed(layers):
            (name,) = layers[layer]
            assert own[name].tolist() == [1, 1]
            if task.kind == "B":
                self.sums.add((layer, name), np.full(2, layer), 0)


class Whole:
    def __init__(self, step, names):
        self.step, self.names = step, names

    def Test(self):
        raise AssertionError("nobody polls")

    def finish(self):
        self.step.take_memory()
        return {name: np.ones(2) for name in self.names}


class Summing(Workers):
    def __init__(self, step, chunk):
        self.step, self.chunk = step, chunk

    def start_reduce_scatter(self, values, own):
        self.step.take_memory()
        self.step.order.append(f"sum {self.chunk}")
        return super().start_reduce_scatter(values, own)


def run(fails, monkeypatch):
    step = Step(fails)

    def computing(arrays, dtype):
        step.take_memory()
        return precision.computing(arrays, dtype)

    monkeypatch.setattr(layer_weights, "computing", computing)
    step.run()
    return step


def test_gathers_and_sums_begin_in_one_order_wherever_memory_fails_once(monkeypatch):
    usual = run(None, monkeypatch)
    assert usual.failed == [] and usual.order.count("gather 2") == 2
    assert usual.order[-7:] == [
        *("gather 2", "sum 1", "gather 1", "sum 0", "gather 0", "sum 0", "sum 0"),
    ]
    for fails in range(usual.calls):
        step = run(fails, monkeypatch)
        # What fails before the first task is begun again by it.
        assert len(step.failed) == (fails > 0), fails
        assert step.order == usual.order, (fails, step.failed)
