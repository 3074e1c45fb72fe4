"""Gradients that go to the replicas' pieces while others are still found."""

import numpy as np
import pytest

from mpicoll.train.parallel.piece_sums import PieceSums
from mpicoll.train.parallel.pieces import Pieces, WholeArrays
from mpicoll.train.ranks.workers import Done, Workers
from mpicoll.train.step.tasks import Task

SHAPES = {(0, "a"): (4,), (0, "b"): (2,), (1, "a"): (4,), (2, "c"): (3, 2), (3, "none"): (0,)}


class Seen(Workers):
    """Workers that say what they sum, and when somebody waits."""

    def __init__(self):
        self.log = []

    def start_reduce_scatter(self, values, own):
        own[...] = 3 * values  # as if two others had twice as much
        self.log.append(len(values))
        seen = self

        class Logged(Done):
            def Test(self):
                seen.log.append("test")
                return True

            def Wait(self):
                seen.log.append("wait")

        return Logged()


def made(most=7):
    workers = Seen()
    uses = [[(1, "a"), (0, "b"), (0, "a")], [(3, "none"), (2, "c")]]
    chunks = {
        number: Pieces({use: int(np.prod(SHAPES[use])) for use in own}, workers, most)
        for number, own in enumerate(uses)
    }
    sums = PieceSums(SHAPES, np.dtype(float), range(4, 6), chunks)
    sums.begin()
    return sums, workers.log


def test_a_vector_is_summed_as_soon_as_the_last_microbatch_is_in_it():
    sums, log = made()
    for use, shape in SHAPES.items():
        sums.add(use, np.ones(shape), 0)
    sums.done(Task("B", 0, 0))
    assert log == []
    sums.add((2, "c"), np.ones((3, 2)), 1)
    assert log == [6]
    sums.poll()
    sums.done(Task("W", 1, 1))
    assert log == [6, "test"]
    sums.add((1, "a"), np.ones(4), 1)
    assert log == [6, "test"]  # (0, "b") goes with it
    sums.add((0, "b"), np.ones(2), 1)
    assert log == [6, "test", "wait", 6]
    sums.add((0, "a"), np.ones(4), 1)
    sums.done(Task("B", 0, 1))
    sums.close()
    assert log[4:] == ["wait", 4, "wait"]
    for use, shape in SHAPES.items():
        np.testing.assert_array_equal(sums.found[use], np.full(np.prod(shape), 6.0))


def test_vectors_begin_in_one_order_whatever_fails():
    """What a failed task has not added is begun by its end; what nothing was added to is zero."""
    sums, log = made(4)
    sums.uses[1, "a"][...] = 7  # of the step before
    sums.add((0, "a"), np.ones(4), 1)  # which waits for those of layer 1
    assert log == []
    sums.done(Task("B", 0, 1))
    sums.done(Task("B", 1, 1))
    sums.close()
    assert [length for length in log if length != "wait"] == [4, 2, 4, 6]
    assert sums.found[0, "a"].tolist() == [3.0] * 4
    assert sums.found[1, "a"].tolist() == [0.0] * 4
    sums.begin()
    assert not any(piece.size for piece in sums.found.values())


@pytest.mark.parametrize("rank", range(3))
def test_whole_arrays_have_one_owner_and_one_collective_for_each(rank):
    workers = Workers()
    workers.rank, workers.size = rank, 3
    sizes = {"a": 4, "b": 3, "c": 0, "d": 5, "e": 1}
    owners = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}
    pieces = WholeArrays(sizes, workers, owners, most=6)
    assert pieces.vectors == [["a"], ["b"], ["d", "e"]]
    assert pieces.lengths() == [4, 3, 6]
    assert pieces.spans == {n: (0, sizes[n] if owners[n] == rank else 0) for n in sizes}


def test_layers_that_a_failed_task_has_passed_begin_in_the_same_order():
    sums, log = made(4)
    task = Task("B", 0, 1)
    sums.passed(Task("B", 0, 0), 1)  # of a microbatch before the last
    sums.passed(Task("F", 0, 1), 1)
    assert log == []
    sums.passed(task, 1)
    assert log == [4]
    sums.passed(task, 0)
    sums.done(task)
    assert [length for length in log if length != "wait"] == [4, 2, 4]
