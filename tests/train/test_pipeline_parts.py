"""The parts of a pipeline by themselves: cuts, meshes, sums, timelines."""

import json
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stages import find

from mpicoll.train import TrainingError
from mpicoll.train.exchange import tree
from mpicoll.train.models import Dense, ReLU, Sequential
from mpicoll.train.parallel import Mesh, Pipeline, layer_times, memory, stages
from mpicoll.train.parallel.program import Span
from mpicoll.train.parallel.sums import Sums
from mpicoll.train.parallel.timeline import Record, Timeline
from mpicoll.train.step import core

# --- cuts -----------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 3))
def test_an_even_cut(layers, ranks, chunks):
    count = ranks * chunks
    if count > layers:
        with pytest.raises(ValueError, match=rf"needs {count} layers?, the model has {layers}: "):
            stages.starts(layers, ranks, chunks)
        return
    lengths = np.diff([*stages.starts(layers, ranks, chunks), layers])
    assert len(lengths) == count and lengths.sum() == layers
    assert lengths.max() - lengths.min() <= 1 and lengths.min() >= 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 5))
def test_a_balanced_cut_has_the_least_slowest_chunk(times, chunks):
    if chunks > len(times):
        with pytest.raises(ValueError, match=f"pipe={chunks} needs {chunks} layers"):
            stages.balanced(times, chunks)
        return

    def slowest(cut):
        return max(sum(times[a:b]) for a, b in pairwise([*cut, len(times)]))

    cut = stages.balanced(times, chunks)
    assert stages.starts(len(times), chunks, 1, cut) == cut
    every = combinations(range(1, len(times)), chunks - 1)
    assert slowest(cut) == min(slowest((0, *inner)) for inner in every)


def test_a_cut_of_the_users():
    assert stages.starts(9, 3, 1, "0,3,7") == (0, 3, 7)
    assert stages.starts(9, 1, 3, [0, 1, 2]) == (0, 1, 2)
    for cut, message in (
        ("0,3", "cut 0,3 is of 2 chunks, and there are 3: give the first layer of each"),
        ("1,3,7", "cut 1,3,7 is no ascending list of layers that begins with 0 and ends below 9: "),
        ("0,3,3", "give the first layer of each chunk, as 0,3,6"),
        ("0,3,9", "cut 0,3,9 is no"),
        ("0,3,x", """cut is '0,3,x': give "even", or the first layer of each chunk, as 0,3,7"""),
    ):
        with pytest.raises(ValueError, match=message):
            stages.starts(9, 3, 1, cut)
    message = (
        "pipe=4 with chunks=2 needs 8 layers, the model has 6: give chunks=1, or pipe of at most 3"
    )
    with pytest.raises(ValueError, match=message):
        stages.starts(6, 4, 2)


def test_measured_times_are_of_each_layer():
    model = Sequential([Dense(400), ReLU(), Dense(400), Dense(2)], (400,), "float32")
    times = layer_times.measured(model, np.ones((64, 400), np.float32), repeats=3)
    assert len(times) == 4 and min(times) > 0
    assert stages.balanced(times, 2) in {(0, start) for start in (1, 2, 3)}


# --- meshes ---------------------------------------------------------------------------------------


class Ranks:
    def __init__(self, size):
        self._size = size

    def Get_size(self):
        return self._size

    def Get_rank(self):
        return 0


@pytest.mark.parametrize(
    ("ranks", "axes", "message"),
    [
        (
            6,
            {"data": 2, "pipe": 2},
            "mesh data=2,pipe=2 has 4 ranks and 6 were started: start 4, or give data=3$",
        ),
        (
            3,
            {"data": 3, "pipe": 2},
            "mesh data=3,pipe=2 has 6 ranks and 3 were started: start 6, or give pipe=1$",
        ),
        (5, {"data": 2, "pipe": 2}, "has 4 ranks and 5 were started: start 4$"),
        (1, {"pipe": 4}, "mesh pipe=4 is for multiples of 4 ranks and 1 was started: start 4, or"),
        (6, {"pipe": 4}, "and 6 were started: start 8, or give pipe=3$"),
        (4, {"pipe": 0}, "pipe is 0: give at least 1 rank along each axis"),
        (4, {"data": -1}, "data is -1: give at least 1 rank along each axis"),
    ],
)
def test_meshes_that_do_not_fit(ranks, axes, message):
    with pytest.raises(ValueError, match=message):
        Mesh(Ranks(ranks), **axes)


def test_a_mesh_of_one_process():
    mesh = Mesh()
    assert str(mesh) == "data=1,pipe=1"
    assert (mesh.world, mesh.data, mesh.pipe) == ((1, 0, None),) * 3


# --- one process ----------------------------------------------------------------------------------


def one(schedule="1f1b", **options):
    model = Sequential([Dense(5), ReLU(), Dense(3)], (4,), "float64")
    return model, Pipeline(model, Mesh(), schedule, **options)


def rows(count):
    generator = np.random.default_rng(count)
    return generator.standard_normal((count, 4)), generator.integers(0, 3, count)


def test_a_pipeline_of_one_process_learns():
    model, pipeline = one(microbatches=3)
    inputs, targets = rows(30)
    losses = []
    for _ in range(40):
        loss, gradients = pipeline.step(inputs, targets)
        losses.append(loss)
        norm = pipeline.clip(gradients, 0.5)
        after = np.sqrt(sum(np.square(g).sum() for g in gradients.values()))
        assert after == pytest.approx(min(norm, 0.5))
        for name, gradient in gradients.items():
            pipeline.parameters[name] -= 0.5 * gradient
    assert losses[-1] < 0.8 * losses[0]
    loss, outputs = pipeline.evaluate(inputs, targets)
    expected, scores = model.losses_and_outputs(pipeline.parameters, inputs, targets)
    assert loss == pytest.approx(expected.mean())
    np.testing.assert_allclose(outputs, scores)


def test_layers_without_a_model():
    pipeline = Pipeline([Dense(3)], Mesh(), microbatches=1, inputs=(4,), dtype="float64")
    loss, gradients = pipeline.step(*rows(6))
    assert gradients["layer1.weight"].shape == (4, 3) and loss > 0
    with pytest.raises(ValueError, match=r"give it, as inputs=\(784,\)"):
        Pipeline([Dense(3)], Mesh(), microbatches=1)


def test_what_a_step_refuses():
    _, pipeline = one(microbatches=8)
    inputs, targets = rows(5)
    with pytest.warns(RuntimeWarning, match="3 of 8 microbatches are empty: give at most 5"):
        pipeline.step(inputs, targets)
    pipeline.step(inputs, targets)  # says it once
    with pytest.raises(TrainingError, match="rank 0: the samples: ValueError: the batch has"):
        pipeline.step(inputs[:0], targets[:0])
    with pytest.raises(TrainingError, match="inputs, targets and samples are None on a rank"):
        pipeline.step(None, None)
    with pytest.raises(ValueError, match="1f1b makes no updates by itself: call step"):
        pipeline.stream(inputs, targets, lambda parameters, gradients: None)
    _, pipeline = one("pipedream", microbatches=5)
    with pytest.raises(ValueError, match="updates parameters after each microbatch: call stream"):
        pipeline.step(inputs, targets)
    with pytest.raises(ValueError, match="unknown order '1f1c': known are"):
        one("1f1c", microbatches=2)
    with pytest.raises(ValueError, match="1f1b has no parameter 'chunk': known are ahead"):
        one(microbatches=2, chunk=2)
    with pytest.raises(ValueError, match="microbatches=0 is too small: give at least 1"):
        one(microbatches=0)


def test_what_a_step_holds(monkeypatch):
    stack = [Dense(5), ReLU(), Dense(7), ReLU(), Dense(3)]
    inputs, outputs = 4, 3
    kept = inputs + 5 + 7  # a ReLU's outputs are the next layer's inputs
    for recompute, values in ((False, 4 * (kept + outputs)), (True, 4 * inputs + kept + outputs)):
        model = Sequential(stack, (inputs,), "float64")
        pipeline = Pipeline(model, Mesh(), "gpipe", microbatches=4, recompute=recompute)
        found = pipeline.memory(30)  # 8 samples a microbatch
        assert found["held microbatches"] == values * 8 * 8
        assert found["older versions"] == 0
        pipeline.make_room(30)
    assert Pipeline(model, Mesh(), "pipedream", microbatches=4).memory(4)["older versions"] == 0
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(TrainingError, match=r"MemoryError: the 1 rank.s. of this node need"):
        pipeline.make_room(30)


# --- sums -----------------------------------------------------------------------------------------


@given(st.sampled_from([(1, 6), (2, 3), (3, 2), (6, 1), (2, 5), (4, 2)]), st.integers(0, 99))
def test_sums_along_a_tree_are_those_of_the_tree(shape, seed):
    replicas, microbatches = shape
    count = replicas * microbatches
    values = np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)
    leaves = {(k, k + 1): value for k, value in enumerate(values)}
    nodes = {}
    for replica in range(replicas):
        parts = range(replica * microbatches, (replica + 1) * microbatches)
        sums = Sums({(0, "w"): (3,)}, np.dtype("float32"), parts, count)
        for _ in range(2):  # what a step leaves does not matter to the next
            sums.begin()
            for m, part in enumerate(parts):
                sums.add((0, "w"), values[part], m)
            sums.close()
        nodes.update(zip(tree.subtrees(parts, count), sums.rows, strict=True))
    total = tree.total(leaves, count)
    assert tree.total(nodes, count).tobytes() == total.tobytes()


def test_nothing_added_is_zero():
    sums = Sums({(0, "w"): (2,), (1, "b"): ()}, np.dtype("float64"), range(2), None)
    sums.add((0, "w"), np.array([1.0, np.inf]), 0)
    sums.add((1, "b"), np.array(3.0), 0)
    assert sums.not_finite() == "w"
    sums.begin()
    sums.add((1, "b"), np.array(4.0), 0)
    sums.close()
    totals = sums.totals()
    assert totals["w"].tolist() == [0, 0] and totals["b"] == 4


# --- timelines ------------------------------------------------------------------------------------


def simulated(schedule, durations, message=0.0, late=None):
    """Records of a step in which every task takes what `durations` says, by kind."""
    extra = late or {}
    events = core.run(
        schedule.programs,
        duration=lambda task: durations[task.kind] + extra.get(task, 0),
        message=lambda task: (message, 0),
    )
    spans = [[] for _ in range(schedule.stages)]
    for rank, task, begin, end in events:
        sends = task.kind.startswith("SEND")
        spans[rank].append(Span(task, begin, begin if sends else end))
    whole = max(own[-1].end for own in spans)
    return [Record(0, whole, own) for own in spans]


def timeline(schedule, records, replicas=1):
    found = Timeline(schedule, replicas)
    found.steps = [records]
    return found


def test_where_messages_take_no_time_all_waiting_is_the_bubble():
    schedule = find("1f1b", 3, 4)
    for shares in timeline(schedule, simulated(schedule, {"F": 1, "B": 2})).shares(0):
        assert shares == (18, 12, pytest.approx(6), 0, pytest.approx(0))


def test_messages_under_way_are_exposed_and_slow_tasks_straggle():
    schedule = find("gpipe", 2, 4)
    records = simulated(schedule, {"F": 1, "B": 2}, message=0.5)
    first, last = timeline(schedule, records).shares(0)
    assert last.exposed == 0.5 and first.exposed == pytest.approx(0.5)
    assert (first.bubble, last.bubble) == (pytest.approx(3.5), pytest.approx(3.5))
    assert (first.straggling, last.straggling) == (0, 0)
    [slow] = [s.task for s in records[1].spans if s.task[:3] == ("F", 1, 2)]
    records = simulated(schedule, {"F": 1, "B": 2}, late={slow: 5})
    first, last = timeline(schedule, records).shares(0)
    assert first.straggling == pytest.approx(5) and first.bubble == pytest.approx(3)
    assert last.straggling == pytest.approx(0) and last.computing == 12 + 5
    for shares in (first, last):
        parts = shares.computing + shares.bubble + shares.exposed + shares.straggling
        assert parts == pytest.approx(shares.step)


def test_the_file_for_trace_viewers(tmp_path):
    schedule = find("1f1b", 2, 2)
    records = simulated(schedule, {"F": 1, "B": 2}, message=0.5)
    both = [record for record in records for _ in range(2)]  # two replicas, alike
    found = timeline(schedule, both, replicas=2)
    found.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == [
        f"rank {2 * stage + replica}: stage {stage}, replica {replica}"
        for stage in (0, 1)
        for replica in (0, 1)
    ]
    computing = [e for e in events if e.get("cat") == "computing" and e["pid"] == 3]
    assert [(e["name"], e["dur"]) for e in computing] == [
        (f"{kind} of chunk 1, microbatch {m}", length)
        for m in (0, 1)
        for kind, length in (("F", 1e6), ("B", 2e6))
    ]
    assert {e["cat"] for e in events if e["ph"] == "X"} == {
        *("computing", "sending", "under way", "not yet made")
    }
