"""Pipelines whose stages are threads of this process: bits, memory, messages, failures."""

from types import SimpleNamespace

import numpy as np
import pytest
from stages import (
    Breaks,
    alone,
    batches,
    find,
    layers,
    pipedream_alone,
    problem,
    run,
    uneven,
    updated,
)

from mpicoll.train.models import (
    BatchNorm,
    Dense,
    Dropout,
    Gelu,
    Layer,
    ReLU,
    Residual,
    Sequential,
    transformer,
)
from mpicoll.train.parallel import checks, memory
from mpicoll.train.parallel.agreement import Failure

ORDERS = {
    "naive": {},
    "gpipe": {},
    "1f1b": {},
    "1f1b ahead": {"ahead": 1},
    "interleaved": {"chunks": 2},
    "zb_h1": {},
    "zb_h2": {},
    "zb_v": {},
}
STAGES = (1, 2, 3, 4, 5, 8)


def same_bits(ranks, gradients):
    found = {name: array for rank in ranks for name, array in rank.gradients.items()}
    assert found.keys() == gradients.keys()
    for name, array in found.items():
        assert array.tobytes() == gradients[name].tobytes(), name


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_has_the_bits_of_one_process(order, stages, recompute):
    dtype = ("float32", "float64")[(stages + recompute) % 2]
    microbatches = 2 * stages
    schedule = find(order.split()[0], stages, microbatches, recompute=recompute, **ORDERS[order])
    model, inputs, targets = problem(dtype, 3 * microbatches - 1)
    given = batches(inputs, targets, microbatches)
    ranks = run(model, schedule, uneven(20, schedule.chunks), given)
    losses, gradients, _ = alone(model, given)
    same_bits(ranks, gradients)
    last = ranks[schedule.place(schedule.chunks - 1)].executor
    assert [last.losses[m] for m in range(microbatches)] == losses

    named = dict(schedule.parameters)
    samples = sum(len(batch.samples) for batch in given)
    edges = [model.shapes[start] for start in uneven(20, schedule.chunks)[1:]]
    across = [
        edge
        for edge in range(1, schedule.chunks)
        if schedule.place(edge - 1) != schedule.place(edge)
    ]
    values = sum(int(np.prod(edges[edge - 1])) for edge in across)
    sent = sum(rank.wires.sent_bytes for rank in ranks)
    assert sent == 2 * samples * values * model.dtype.itemsize
    assert sum(rank.wires.sent.total() for rank in ranks) == schedule.order.messages(
        stages, microbatches, **named
    )
    for number, rank in enumerate(ranks):
        most = schedule.order.held(number, stages, microbatches, **named)
        held = rank.executor.held
        assert held <= most if schedule.order.held_is_bound else held == most
        assert rank.weights.most == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("microbatches", [1, 2, 3, 5])
def test_fewer_microbatches_than_stages(order, microbatches):
    schedule = find(order.split()[0], 4, microbatches, **ORDERS[order])
    try:
        checks.require_progress(schedule)
    except ValueError:
        assert order == "interleaved" and microbatches % 4
        return
    model, inputs, targets = problem("float64", 2 * microbatches + 1)
    given = batches(inputs, targets, microbatches)
    ranks = run(model, schedule, uneven(20, schedule.chunks), given)
    same_bits(ranks, alone(model, given)[1])


@pytest.mark.parametrize("order", ["1f1b", "zb_h1", "interleaved"])
def test_fewer_samples_than_microbatches(order):
    schedule = find(order, 2, 6)
    model, inputs, targets = problem("float64", 4)
    given = batches(inputs, targets, 6)
    assert [len(batch.samples) for batch in given] == [1, 1, 1, 1, 0, 0]
    losses, gradients, _ = alone(model, given)
    ranks = run(model, schedule, uneven(20, schedule.chunks), given, steps=2)
    same_bits(ranks, gradients)
    assert [*ranks[schedule.place(schedule.chunks - 1)].executor.losses.values()] == losses


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_rounded_at_the_same_places(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    model, inputs, targets = problem("float32", 10)
    model = Sequential(layers(), (6,), dtype)
    given = batches(inputs.astype(model.dtype), targets, 4)
    _, gradients, _ = alone(model, given)
    # One stage has no parameters.
    ranks = run(model, find("1f1b", 3, 4), (0, 1, 2), given)
    same_bits(ranks, gradients)
    assert sum(rank.wires.sent_bytes for rank in ranks) == 2 * 10 * (7 + 7) * 2


def test_a_parameter_of_two_stages_is_one():
    model = transformer(11, 5, 8, blocks=3, heads=2, dtype="float64")
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 11, (7, 5))
    given = batches(inputs, np.roll(inputs, 1, axis=1), 4)
    _, expected, _ = alone(model, given)
    found = []
    for stages in (1, 2, 3, 5):
        ranks = run(model, find("1f1b", stages, 4), uneven(10, stages), given)
        assert ranks[0].stage.ties.keys() == ({"embedding.weight"} if stages > 1 else set())
        own = [r.gradients for r in ranks if "embedding.weight" in r.gradients]
        assert len(own) == min(stages, 2)
        found += [gradients["embedding.weight"] for gradients in own]
        first = {n: a for r in ranks for n, a in r.stage.parameters.items()}
        for name, array in model.initial_parameters(0).items():
            assert first[name].tobytes() == array.tobytes()
        expected["embedding.weight"] = np.asarray(found[0])
        same_bits(ranks, expected)
    assert len({array.tobytes() for array in found}) == 1
    _, whole, _ = alone(model, given)
    np.testing.assert_allclose(found[0], whole["embedding.weight"], rtol=1e-12, atol=1e-15)


class ForwardPasses:
    """The first half of a schedule, after which everything is held."""

    def __init__(self, schedule):
        self._whole = schedule

    def __getattr__(self, name):
        return getattr(self._whole, name)

    def program(self, rank):
        return [task for task in self._whole.program(rank) if task.kind.endswith("F")]


def arrays_in(kept):
    """Bytes of the arrays in nested tuples and lists, by where they are."""
    if isinstance(kept, np.ndarray):
        return {kept.__array_interface__["data"][0]: kept.nbytes}
    nested = kept if isinstance(kept, (list, tuple)) else ()
    return {place: size for part in nested for place, size in arrays_in(part).items()}


@pytest.mark.parametrize("recompute", [False, True])
def test_held_bytes_are_those_of_the_formula(recompute):
    stack = [Dense(5), ReLU(), Dense(7), Gelu(), Dropout(0.3, 1), Dense(6), ReLU(), Dense(3)]
    model = Sequential(stack, (6,), "float64")
    _, inputs, targets = problem("float64", 32)
    schedule, starts = find("gpipe", 3, 4, recompute=recompute), (0, 2, 5)
    ranks = run(model, ForwardPasses(schedule), starts, batches(inputs, targets, 4))
    for rank in ranks:
        found = sum(arrays_in(list(rank.executor._kept.values())).values())
        formula = memory.needed(model, rank.stage, schedule, 8)["held microbatches"]
        if recompute:  # of which one chunk is passed over again later
            formula = 4 * 8 * 8 * model.shapes[starts[rank.stage.rank]][0]
        assert found == formula


# --- pipedream ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vertical", [0, 1])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_pipedream_has_the_bits_of_a_simulator(stages, vertical):
    schedule = find("pipedream", stages, 9, vertical=vertical)
    model, inputs, targets = problem("float64", 25)
    given = batches(inputs, targets, 9, alone=True)
    starts = uneven(20, stages)
    losses, expected = pipedream_alone(model, given, stages, starts, vertical)
    ranks = run(model, schedule, starts, given, updated)
    assert [*ranks[-1].executor.losses.values()] == losses
    found = {name: array for rank in ranks for name, array in rank.stage.parameters.items()}
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.tobytes() == expected[name].tobytes(), name
    for number, rank in enumerate(ranks):
        shape = number, stages, 9
        assert rank.executor.held == schedule.order.held(*shape, vertical=vertical)
        assert rank.weights.most == schedule.order.versions(*shape, vertical=vertical)


def test_pipedream_leaves_out_what_is_not_finite():
    schedule = find("pipedream", 3, 6)
    model, inputs, targets = problem("float64", 12)
    inputs[4:6] = np.nan  # microbatch 2
    ranks = run(model, schedule, (0, 6, 12), batches(inputs, targets, 6, alone=True), updated)
    assert ranks[-1].executor.skipped == {2: "the loss is nan"}
    assert all(rank.executor.failure is None for rank in ranks)
    for rank in ranks:
        for array in rank.stage.parameters.values():
            assert np.isfinite(array).all()


# --- failures -------------------------------------------------------------------------------------


def failed(ranks):
    found = {n: r.executor.failure for n, r in enumerate(ranks) if r.executor.failure}
    assert all(rank.executor.is_lost for rank in ranks) or len(found) == 1
    return found


@pytest.mark.parametrize("order", ["naive", "gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"])
@pytest.mark.parametrize("kind", ["forward", "backward", "weight"])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_all_ranks_come_to_the_end_of_a_step_that_fails(order, kind, rank, recompute):
    schedule = find(order, 3, 6, recompute=recompute)
    chunk = schedule.chunks_of(rank)[-1]
    starts = tuple(2 * number for number in range(schedule.chunks))
    model = [Dense(4), ReLU()] * schedule.chunks
    model[2 * chunk + 1] = Breaks(kind, 2)
    model = Sequential([*model, Dense(2)], (4,), "float32")
    inputs = np.ones((12, 4), np.float32)
    ranks = run(model, schedule, starts, batches(inputs, np.zeros(12, int), 6))
    found = failed(ranks)
    assert found.keys() == {rank}
    assert f"OSError: the {kind} pass is on fire" in found[rank].text
    assert f"chunk {chunk}, microbatch" in found[rank].text


@pytest.mark.parametrize("kind", ["forward", "backward", "update"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_all_ranks_come_to_the_end_of_pipedream_that_fails(kind, rank):
    stack = [layer for _ in range(3) for layer in (Dense(4), Breaks("forward", -1))]
    if kind != "update":
        stack[2 * rank + 1] = Breaks(kind, 2)
    model = Sequential([*stack, Dense(2)], (4,), "float32")
    inputs, left = np.ones((12, 4), np.float32), [2]

    def update(parameters, gradients):
        if kind == "update" and f"layer{2 * rank + 1}.weight" in parameters:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("the update is on fire")
        updated(parameters, gradients)

    given = batches(inputs, np.zeros(12, int), 6, alone=True)
    ranks = run(model, find("pipedream", 3, 6), (0, 2, 4), given, update)
    found = {n: r.executor.failure for n, r in enumerate(ranks) if r.executor.failure}
    assert found.keys() == {rank}
    assert found[rank].text == (
        f"{kind[0].upper()} of chunk {rank}, microbatch 2: OSError: the {kind}"
        f"{' pass' * (kind != 'update')} is on fire"
    )


def test_what_is_not_finite_ends_a_step():
    model, inputs, targets = problem("float32", 12)
    inputs[5] = np.inf
    with np.errstate(all="ignore"):
        ranks = run(model, find("1f1b", 3, 6), (0, 6, 12), batches(inputs, targets, 6))
    assert failed(ranks) == {
        2: Failure("F of chunk 2, microbatch 2: the loss is nan"),
    }
    assert all(rank.executor.is_lost for rank in ranks)


class Lies(Layer):
    """Gives other outputs than it says."""

    def __init__(self, change):
        self._change = change

    def forward(self, parameters, inputs, batch):
        return self._change(inputs), None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[:, :2], r"chunk 0 made float32 of shape \(2, 2\) where float32 of shape"),
        (lambda a: a.astype(float), r"chunk 0 made float64 of shape \(2, 4\) where float32 of"),
    ],
)
def test_layers_that_hand_on_what_they_do_not_say(change, message):
    model = Sequential([Lies(change), Dense(2)], (4,), "float32")
    inputs = np.ones((4, 4), np.float32)
    ranks = run(model, find("gpipe", 2, 2), (0, 1), batches(inputs, np.zeros(4, int), 2))
    found = failed(ranks)
    assert found.keys() == {0}
    with pytest.raises(ValueError, match=message):
        raise found[0].error


# --- recomputation --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["1f1b", "gpipe", "zb_h1"])
def test_statistics_change_once_where_passes_run_again(order):
    stack = [Dense(5), BatchNorm(), ReLU(), Dense(5), Residual((BatchNorm(),)), Dense(3)]
    model = Sequential(stack, (6,), "float64")
    _, inputs, targets = problem("float64", 24)
    given = batches(inputs, targets, 6)
    _, gradients, expected = alone(model, given)
    for recompute in (False, True):
        ranks = run(model, find(order, 3, 6, recompute=recompute), (0, 2, 4), given)
        same_bits(ranks, gradients)
        found = {name: array for rank in ranks for name, array in rank.stage.buffers.items()}
        assert len(found) == 4
        for name, array in found.items():
            assert array.tobytes() == expected[name].tobytes(), name


# --- what is refused ------------------------------------------------------------------------------


class Whole(Layer):
    """Has its backward pass in one part."""

    def initial(self, shape, generator):
        return {"weight": np.ones(1)}

    def forward(self, parameters, inputs, batch):
        return inputs * parameters["weight"], inputs

    def backward(self, parameters, memory, error, first):
        return error * parameters["weight"], {"weight": (error * memory).sum().reshape(1)}


def require(
    name, stages=2, microbatches=4, stack=None, ties=(), replicas=1, invariant=None, **options
):
    model = Sequential(stack or layers(), (6,), "float32")
    checks.require(model, find(name, stages, microbatches, **options), ties, replicas, invariant)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "forward"}, "forward has forward passes alone: give a schedule that trains"),
        (
            {"name": "interleaved", "stages": 5, "microbatches": 7},
            "interleaved chunks=2, S=5, M=7 comes to a deadlock: .* give microbatches=5 or 10, or",
        ),
        (
            {"name": "zb_h1", "stack": [Dense(4), Whole(), Dense(2)]},
            "zb_h1 needs backward passes in two parts, and layer 1, Whole, has one: define",
        ),
        ({"name": "pipedream", "replicas": 2}, "data=2 replicas: give data=1, or schedule 1f1b"),
        ({"name": "pipedream", "ties": ["a.weight"]}, "and several share a.weight: cut the model"),
        ({"name": "pipedream", "invariant": 4}, "adds no microbatches up, and invariant is 4"),
        (
            {"name": "1f1b", "replicas": 2, "invariant": 16},
            "invariant is 16, and data=2 with microbatches=4 makes 8 parts: give invariant=8, or "
            "microbatches=8",
        ),
        ({"name": "1f1b", "invariant": 3}, "makes 4 parts: give invariant=4, or microbatches=3"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        require(**arguments)


def test_what_is_not_refused():
    require("interleaved", 4, 6)  # not a multiple, and no deadlock
    require("1f1b", 4, 16, ahead=4)  # would deadlock if senders waited for room
    require("1f1b", stack=[Dense(4), Whole(), Dense(2)])
    require("1f1b", replicas=2, invariant=8)


def test_messages_are_not_longer_than_mpi_counts():
    plan = SimpleNamespace(shapes={1: (3,), 2: (1 << 20,)}, dtype=np.dtype("float32"))
    rows = np.zeros((1024, 1))
    checks.require_short(plan, batches(rows, rows, 8))
    message = "4294967296 bytes between two stages is longer than 2147483647: give microbatches=3$"
    with pytest.raises(ValueError, match=message):
        checks.require_short(plan, batches(rows, rows, 1))
