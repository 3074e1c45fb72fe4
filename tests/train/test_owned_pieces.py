"""Replicas that own pieces: what they need memory for, and what happens where there is none."""

from types import SimpleNamespace

import numpy as np
import pytest
from stages import find

from mpicoll.train.models import Dense, Sequential
from mpicoll.train.parallel import replicas
from mpicoll.train.parallel.replicas import FreedBehindLayers, OwnedPieces
from mpicoll.train.parallel.stage import Stage
from mpicoll.train.ranks.workers import Workers


class Seen(Workers):
    """The first of two ranks, which notes bytes of the whole vectors of its collectives."""

    size = 2

    def __init__(self):
        self.gathered, self.summed = [], []

    def start_share(self, values):
        self.gathered.append(values.nbytes)
        return super().start_share(values)

    def start_reduce_scatter(self, values, own):
        self.summed.append(values.nbytes)
        return super().start_reduce_scatter(values[: own.size], own)


def made(kind, chunks=1):
    """Replicas of a kind, with two layers, and the workers along the axis of the data."""
    model = Sequential([Dense(64), Dense(64)], (64,), "float32")
    schedule = find("interleaved", 1, 1, chunks=chunks) if chunks > 1 else find("1f1b", 1, 1)
    stage = Stage(model, schedule, [0, 1][:chunks], 0)
    stage.begin(0, None, None)
    workers = Seen()
    group = SimpleNamespace(data=workers, parts=range(1), tree_over=None)
    return kind(stage, group, np.dtype(np.float32)), schedule, workers


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_estimate_has_the_longest_vector_of_a_step(chunks):
    found, _, workers = made(OwnedPieces, chunks)
    found.changed()
    found.sums.begin()
    for use, shape in found.sums.uses.items():
        found.sums.add(use, np.ones(shape.shape, np.float32), 0)
    found.sums.close()
    assert len(workers.summed) == chunks and len(workers.gathered) == 1
    longest = max(workers.summed + workers.gathered)
    assert found.step_nbytes()["exchanged pieces"] == longest


def test_a_rank_without_memory_for_gradients_has_met_the_others_before(monkeypatch):
    seen = []
    monkeypatch.setattr(Seen, "connect", lambda _: seen.append("connected"))

    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(replicas, "PieceSums", no_memory)
    with pytest.raises(MemoryError):
        made(OwnedPieces)
    assert seen == ["connected"]


class ShortVectors(FreedBehindLayers):
    """With a collective for each parameter."""

    def _divided(self, sizes, most=1):
        return super()._divided(sizes, 1)


@pytest.mark.parametrize("fails", [1, 2])
def test_no_vector_of_a_layer_is_gathered_before_there_is_memory_for_all(monkeypatch, fails):
    found, schedule, workers = made(ShortVectors)
    empty, calls = replicas.Pieces._empty, []

    def failing(pieces, index, dtype):
        calls.append(index)
        if len(calls) == fails:
            raise MemoryError
        return empty(pieces, index, dtype)

    monkeypatch.setattr(replicas.Pieces, "_empty", failing)
    tasks = schedule.programs[0]
    weights = found.versions(tasks)  # begins to gather the first layer
    assert workers.gathered == []
    own, _ = weights.of(tasks[0])
    assert own["layer1.weight"].shape == (64, 64)
    # Bias and weight of this layer and of the next one, each of them once.
    assert workers.gathered == [256, 4 * 64 * 64] * 2
