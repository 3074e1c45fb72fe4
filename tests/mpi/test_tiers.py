"""Networks with early exits on ranks: all strategies learn them, tiers serve them."""

import time

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.base.sleeping import meet
from mpicoll.train import Config, Dataset, TrainingError, load_model, run
from mpicoll.train.driver import parity
from mpicoll.train.exits import Fault, serve
from mpicoll.train.models import (
    Aggregate,
    Binarize,
    Convolution,
    Dense,
    EachPart,
    EarlyExits,
    Exit,
    MaxPool,
    ReLU,
    Reshape,
    Split,
)

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size not in (3, 4, 5), reason="3, 4 and 5 ranks show it"),
    *([pytest.mark.long] if MPI.COMM_WORLD.size == 4 else []),
]

IMAGE = (8, 8, 1)


def quarters(train=100, test=45):
    """Images of which a quarter is bright; which one is the class."""
    generator = np.random.default_rng(5)
    labels = np.arange(train + test) % 4
    inputs = generator.standard_normal((train + test, *IMAGE))
    for label in range(4):
        y, x = 4 * (label // 2), 4 * (label % 2)
        inputs[labels == label, y : y + 4, x : x + 4] += 0.7
    return Dataset("quarters", 4, inputs[:train], labels[:train], inputs[train:], labels[train:])


def model_for(ranks, dtype="float32"):
    """Three ranks: devices that see all. Four: two devices and an edge. Five: four devices."""
    scores = EachPart((Reshape(), Dense(4)))
    cloud = [Reshape(), Dense(8), ReLU(), Dense(4)]
    if ranks == 3:
        device = [Convolution(2), MaxPool(), Binarize()]
        return EarlyExits([*device, *cloud], [Exit((Reshape(), Dense(4)), 3)], IMAGE, dtype)
    see = [Split(2, 1 if ranks == 4 else 2), EachPart((Convolution(2), MaxPool(), Binarize()))]
    exits = [Exit((scores, Aggregate("mean", device_dropout=0.25)), after=2)]
    layers = [*see, Aggregate("concat", device_dropout=0.25)]
    if ranks == 4:
        layers += [Convolution(3), ReLU()]
        exits.append(Exit((Reshape(), Dense(4)), after=5))
    return EarlyExits([*layers, *cloud], exits, IMAGE, dtype)


TIERS = {
    3: {"phone": 2, "cloud": 1},
    4: {"device": 2, "edge": 1, "cloud": 1},
    5: {"device": 4, "cloud": 1},
}
#: Numbers a sample that go up: scores where it reaches an exit, bytes of features where it goes on.
COSTS = {
    3: [(0, 4)],
    4: [(2 * 4 * 4, 2 * 2), (0, 2 * 4 * 3 * 4)],
    5: [(4 * 4 * 4, 4 * 1)],
}


@pytest.fixture(scope="module")
def trained(comm, tmp_path_factory):
    """A checkpoint, and a file of the data."""
    folder = comm.bcast(tmp_path_factory.mktemp("tiers"))
    data = quarters()
    if comm.rank == 0:
        np.savez(
            folder / "quarters.npz",
            train_inputs=data.train_inputs,
            train_labels=data.train_targets,
            test_inputs=data.test_inputs,
            test_labels=data.test_targets,
        )
        config = Config(
            dataset=str(folder / "quarters.npz"),
            epochs=8,
            batch=10,
            lr=0.05,
            checkpoint=str(folder / "run"),
        )
        run(config, model=model_for(comm.size))
    meet(comm)
    return folder / "run"


@pytest.mark.skipif(MPI.COMM_WORLD.size != 3, reason="3 ranks show it")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "zero1", "optimizer": "adam", "lr": 0.01},
        {"strategy": "parameter_server"},
        {"strategy": "parameter_server", "servers": "1", "consistency": "ssp:2"},
        {"strategy": "local_sgd"},
        {"strategy": "gossip"},
    ],
    ids=str,
)
def test_every_strategy_learns_all_exits(comm, changes):
    config = {"dtype": "float64", "batch": 10, "epochs": 3, "check_every": 0, **changes}
    model = model_for(comm.size, "float64")
    found = run(Config(**config), comm, dataset=quarters(), model=model)
    first = model.initial_parameters(0)
    assert all(np.abs(found.parameters[name] - first[name]).max() > 1e-4 for name in first)
    if parity.limit(Config(**config)) is not None:
        one = run(Config(**config).alone(comm.size), dataset=quarters(), model=model)
        assert max(parity.differences(found.parameters, one.parameters).values()) < 1e-10


@pytest.mark.skipif(MPI.COMM_WORLD.size != 3, reason="3 ranks show it")
@pytest.mark.parametrize("changes", [{"strategy": "fsdp"}, {"mesh": "pipe=3"}], ids=str)
def test_what_knows_no_exits_refuses_them(comm, changes):
    model = model_for(comm.size, "float64")
    with pytest.raises(TrainingError, match=r"the model is a? ?EarlyExits"):
        run(Config(dtype="float64", batch=10, **changes), comm, dataset=quarters(), model=model)


def test_nobody_leaves_below_0_and_all_do_at_1(comm, trained):
    counts, batch = TIERS[comm.size], 8
    model, parameters, buffers = load_model(trained)
    data = quarters().astype("float32")
    below, half, all_leave = serve(*(trained, comm, counts, [-1, 0.6, 1]), batch=batch, patience=30)
    names = list(counts)
    assert below.leaving[names[-1]] == 1
    scores = np.concatenate(
        [
            model.losses_and_outputs(
                {**parameters, **buffers},
                data.test_inputs[start : start + batch],
                data.test_targets[start : start + batch],
            )[1]
            for start in range(0, 45, batch)
        ]
    )
    assert below.scores.astype("float32").tobytes() == scores.tobytes()
    assert below.accuracy == np.mean(scores.argmax(axis=1) == data.test_targets)
    assert all_leave.leaving[names[0]] == 1
    assert all_leave.sent["features"] == 0
    assert 0 < half.leaving[names[0]] < 1
    assert sum(half.leaving.values()) == pytest.approx(1)
    for outcome in (below, half, all_leave):
        assert outcome.answered == 1
        assert outcome.late == 0
        assert outcome.raw == 64
        expected = 0
        for tier, (reaching, going_on) in enumerate(COSTS[comm.size]):
            expected += reaching * np.count_nonzero(outcome.tiers >= tier)
            expected += going_on * np.count_nonzero(outcome.tiers > tier)
        assert outcome.payload == outcome.formula == expected / 45
        assert 0 < outcome.seconds["median"] <= outcome.seconds["p95"]


@pytest.mark.parametrize(
    ("fault", "first"),
    [(Fault(silent=0), 0), (Fault(silent=3), 3), (Fault(late=1.0), 0)],
    ids=["silent from the start", "falls silent", "answers late"],
)
def test_a_device_that_is_missing_is_left_out(comm, trained, fault, first):
    """What comes of the others' samples, or of what they see, is what it would be without it."""
    whole = serve(trained, comm, TIERS[comm.size], [-1], batch=8, patience=30)[0]
    patience = 0.3 if fault.late else 2.0
    start = time.perf_counter()
    (found,) = serve(
        *(trained, comm, TIERS[comm.size], [-1]),
        batch=8,
        patience=patience,
        faults={1: fault},
        samples=45 if fault.late == 0 else 24,
    )
    seconds = time.perf_counter() - start
    assert found.formula is None
    batches = np.arange(found.samples) // 8
    if comm.size == 3:  # each device has samples of its own
        mine = batches % 2 == 1
        lost = mine & (batches >= first)
        if fault.late:
            assert (found.tiers[~mine] >= 0).all()
            return
        assert ((found.tiers < 0) == lost).all()
        assert found.late == 0
        assert found.answered == np.mean(~lost)
        assert (found.scores[~lost] == whole.scores[~lost]).all()
        return
    assert found.answered == 1
    before = batches < first
    assert (found.scores[before] == whole.scores[: found.samples][before]).all()
    assert (found.scores[~before] != whole.scores[: found.samples][~before]).any()
    if fault.late:
        assert found.late > 0
        # Nobody waits for it again and again: it is alone at the end.
        assert seconds < 60
    assert found.accuracy > 0.3


def test_what_does_not_fit_is_said_by_all(comm, trained):
    with pytest.raises(TrainingError, match="exit\\(s\\): give"):
        serve(trained, comm, {"device": comm.size}, [0.5])
    with pytest.raises(TrainingError, match="9 does not exist, there are"):
        serve(trained, comm, TIERS[comm.size], [0.5], faults={9: Fault(silent=0)})
    with pytest.raises(TrainingError, match="a threshold is nan: give numbers"):
        serve(trained, comm, TIERS[comm.size], [0.5, float("nan")])
    with pytest.raises(TrainingError, match="patience nan: give a batch of at least 1, and sec"):
        serve(trained, comm, TIERS[comm.size], [0.5], patience=float("nan"))
    with pytest.raises(TrainingError, match=r"samples of .* have shape .*, and the model takes"):
        serve(trained, comm, TIERS[comm.size], [0.5], data="mnist5k")
    with pytest.raises(TrainingError, match="holds no checkpoint"):
        serve(trained / "nowhere", comm, TIERS[comm.size], [0.5])
