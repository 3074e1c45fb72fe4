"""Networks with early exits: what they learn, and how their layers fall on tiers."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.train import Config, load_model, run
from mpicoll.train.data import Dataset
from mpicoll.train.exits import layout, letters
from mpicoll.train.exits.stages import Stage
from mpicoll.train.models import (
    Aggregate,
    Batch,
    BatchNorm,
    Binarize,
    Convolution,
    Dense,
    EachPart,
    EarlyExits,
    Exit,
    MaxPool,
    ReLU,
    Reshape,
    Sequential,
    Split,
    specification,
)
from mpicoll.train.models.parts import aggregated

IMAGE = (8, 8, 1)


def three_tiers(how="mean", dropout=0.0, dtype="float64"):
    """Four devices that see a quarter each, two edges, a cloud."""
    device = EachPart((Convolution(2), MaxPool(), Binarize()))
    edge = EachPart((Convolution(3), ReLU()))
    scores = EachPart((Reshape(), Dense(4)))
    return EarlyExits(
        [
            Split(2, 2),
            device,
            Aggregate("concat", into=2, device_dropout=dropout),
            edge,
            Aggregate(how),
            Reshape(),
            Dense(8),
            ReLU(),
            Dense(4),
        ],
        [
            Exit((scores, Aggregate(how, device_dropout=dropout)), after=2, weight=0.5),
            Exit((scores, Aggregate("concat"), Dense(4)), after=4),
        ],
        IMAGE,
        dtype,
    )


def alone(dtype="float64"):
    """A device that sees all of a sample, and a cloud."""
    return EarlyExits(
        [
            Convolution(2),
            BatchNorm(),
            MaxPool(),
            Binarize(),
            Reshape(),
            Dense(16),
            ReLU(),
            Dense(4),
        ],
        [Exit((Reshape(), Dense(4)), after=4)],
        IMAGE,
        dtype,
    )


def images(count=40, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    inputs = generator.standard_normal((count, *IMAGE))
    for label in range(4):
        y, x = 4 * (label // 2), 4 * (label % 2)
        inputs[labels == label, y : y + 4, x : x + 4] += 1.5
    return inputs, labels


def dataset():
    inputs, labels = images(120)
    return Dataset("quarters", 4, inputs[:100], labels[:100], inputs[100:], labels[100:])


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mean", "max", "concat"])
def test_gradients_are_slopes_of_the_weighted_losses(how):
    """Without signs, whose derivative is no slope."""
    layers = [Split(2, 1), EachPart((Reshape(), Dense(3))), Aggregate(how, device_dropout=0.3)]
    head = (EachPart((Dense(4),)), Aggregate("mean", device_dropout=0.3))
    model = EarlyExits(
        [*layers, ReLU(), Dense(5), ReLU(), Dense(4)],
        [Exit((Dense(4),), after=5, weight=2.0), Exit(head, after=2, weight=0.5)],
        (4, 2, 1),
        "float64",
    )
    assert [found.after for found in model.exits] == [2, 5]
    generator = np.random.default_rng(1)
    inputs, targets = generator.standard_normal((6, 4, 2, 1)), generator.integers(0, 4, 6)
    batch = Batch(inputs, targets, 6, np.arange(6))
    parameters = model.initial_parameters(3)
    loss, gradients = model.loss_and_gradients(parameters, batch)
    assert gradients.keys() == parameters.keys()
    step = 1e-6
    for name, array in parameters.items():
        for index in list(np.ndindex(array.shape))[::3]:
            value, found = array[index], []
            for array[index] in (value - step, value + step):
                found.append(model.loss_and_gradients(parameters, batch)[0])
            array[index] = value
            slope = (found[1] - found[0]) / (2 * step)
            assert gradients[name][index] == pytest.approx(slope, rel=1e-5, abs=1e-8)
    # The loss is the weighted sum of those of all ends.
    whole = Sequential(model.layers, (4, 2, 1), "float64")
    names = whole.initial_parameters(0)
    last, _ = whole.loss_and_gradients({n: parameters[n] for n in names}, batch)
    assert loss > last


def test_without_exits_it_is_the_network_that_it_was():
    model, (inputs, labels) = alone(), images(10)
    parameters = {**model.initial_parameters(0), **model.initial_buffers()}
    plain = Sequential(model.layers, IMAGE, "float64")
    own = {name: parameters[name] for name in parameters if not name.startswith("exit")}
    assert own.keys() == {*plain.initial_parameters(0), *plain.initial_buffers()}
    found = model.losses_and_outputs(parameters, inputs, labels)
    expected = plain.losses_and_outputs(own, inputs, labels)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


def test_parts_of_a_batch_add_up_to_the_batch():
    model, (inputs, labels) = three_tiers(dropout=0.4), images(9)
    parameters = model.initial_parameters(0)
    whole = model.loss_and_gradients(parameters, Batch(inputs, labels, 9, np.arange(9)))
    loss, sums = 0.0, dict.fromkeys(parameters, 0.0)
    for rows in (slice(0, 4), slice(4, 4), slice(4, 9)):
        batch = Batch(inputs[rows], labels[rows], 9, np.arange(9)[rows])
        more, gradients = model.loss_and_gradients(parameters, batch)
        loss += more
        sums = {name: sums[name] + gradients[name] for name in sums}
    assert loss == pytest.approx(whole[0], rel=1e-12)
    for name, gradient in whole[1].items():
        np.testing.assert_allclose(sums[name], gradient, rtol=1e-10, atol=1e-12)


def test_a_device_is_left_out_of_features_and_scores_alike():
    layer = Aggregate("mean", device_dropout=0.5)
    inputs = np.eye(4)[None].repeat(200, axis=0)  # part p says one at place p
    batch = Batch(inputs, None, 200, np.arange(200))
    features, _ = layer.forward({}, inputs, batch)
    scores, _ = Aggregate("max", device_dropout=0.5).forward({}, inputs, batch)
    assert ((features > 0) == (scores > 0)).all()
    there = (features > 0).sum(axis=1)
    assert there.min() == 1
    assert there.mean() == pytest.approx(2, abs=0.3)
    assert features.sum(axis=1) == pytest.approx(np.ones(200))
    again, _ = layer.forward({}, inputs, None)
    assert (again == 0.25).all()


def test_parts_that_are_missing_do_not_count():
    parts = [np.array([[1.0, -5.0]]), np.array([[3.0, -7.0]])]
    here = np.array([[False, True]])
    assert aggregated("mean", parts, here).tolist() == [[3, -7]]
    assert aggregated("max", parts, here).tolist() == [[3, -7]]
    assert aggregated("concat", parts, here).tolist() == [[0, 0, 3, -7]]
    nobody = np.zeros((1, 2), bool)
    for how in ("mean", "max"):
        assert aggregated(how, parts, nobody).tolist() == [[0, 0]]
        everybody = np.ones((1, 2), bool)
        assert (aggregated(how, parts, everybody) == aggregated(how, parts)).all()


def test_the_slope_of_a_sign_is_that_of_the_value_between_one_and_its_negative():
    values = np.array([[-2.0, -0.5, 0.0, 0.5, 2.0]])
    outputs, memory = Binarize().forward({}, values, None)
    assert outputs.tolist() == [[-1, -1, 1, 1, 1]]
    slopes, _ = Binarize().backward_input({}, memory, np.full((1, 5), 3.0), False)
    assert slopes.tolist() == [[0, 3, 3, 3, 0]]


@pytest.mark.parametrize("model", [three_tiers(), alone()], ids=["three tiers", "alone"])
def test_it_learns_and_its_checkpoint_says_what_it_is(model, tmp_path):
    config = Config(dtype="float64", epochs=12, batch=10, lr=0.05, checkpoint=str(tmp_path), keep=1)
    result = run(config, dataset=dataset(), model=model)
    assert result.test["accuracy"] > 0.8
    found = load_model(tmp_path)
    assert isinstance(found.model, EarlyExits)
    assert found.model.exits == model.exits
    assert specification.of(found.model) == specification.of(model)
    assert found.parameters.keys() == result.parameters.keys()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exits": [Exit((Dense(4),), after=0)]}, "exits are after \\[0\\] of 2 layers"),
        ({"exits": [Exit((Dense(4),), after=2)]}, "give other numbers, each from 1 to 1"),
        ({"exits": [Exit((Dense(4),), 1), Exit((Dense(4),), 1)]}, "after \\[1, 1\\]"),
        ({"exits": [Exit((Dense(3),), after=1)]}, "exit 1 has outputs of shape \\(3,\\)"),
        ({"exits": [Exit((Dense(4),), after=1, weight=0.0)]}, "weight of an exit is 0.0"),
    ],
)
def test_exits_that_do_not_fit_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        EarlyExits([Dense(8), Dense(4)], change["exits"], (6,), "float64")


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (Split(3, 2), IMAGE, "cannot be cut into 3 x 2 parts"),
        (Aggregate("mean", into=3), (4, 2), "cannot be aggregated into 3"),
        (EachPart((Dense(2),)), (4,), "are in no parts: put a Split before"),
    ],
)
def test_parts_that_do_not_fit_are_refused(layer, shape, words):
    with pytest.raises(ValueError, match=words):
        layer.output_shape(shape)


def test_unknown_aggregations_are_refused():
    with pytest.raises(ValueError, match="unknown aggregation 'sum': known are max, mean, concat"):
        Aggregate("sum")
    with pytest.raises(ValueError, match=r"device_dropout is 1\.0: give a number from 0"):
        Aggregate("mean", device_dropout=1.0)


# --- tiers ----------------------------------------------------------------------------------------


def through(model, parameters, inputs):
    """Scores of each exit and of the last tier, as the ranks of tiers compute them."""
    counts = layout.parts_of(model)
    stages = [
        [Stage(model, parameters, tier, part, parts) for part in range(parts)]
        for tier, parts in enumerate(counts)
    ]
    found, values = [], []
    for tier, own in enumerate(stages):
        if tier == 0:
            values = [stage.features([stage.sight(inputs)], [True]) for stage in own]
        else:
            each = len(values) // len(own)
            values = [
                stage.features(values[i * each : (i + 1) * each], [True] * each)
                for i, stage in enumerate(own)
            ]
        said = [stage.scores(v) for stage, v in zip(own, values, strict=True)]
        found.append(own[0].decided(said, [True] * len(said)) if len(said) > 1 else said[0])
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", ["mean", "max"])
def test_ranks_of_tiers_compute_what_the_network_does_to_the_bit(how, dtype):
    for model in (three_tiers(how, dtype=dtype), alone(dtype)):
        inputs, labels = images(17)
        inputs = inputs.astype(dtype)
        parameters = {**model.initial_parameters(1), **model.initial_buffers()}
        *exits, last = through(model, parameters, inputs)
        assert last.tobytes() == model.losses_and_outputs(parameters, inputs, labels)[1].tobytes()
        for number, (scores, head) in enumerate(zip(exits, model.heads, strict=True)):
            end = model.exits[number].after
            values, _ = model.chunk(0, end).forward(parameters, inputs, None, lambda x: x)
            _, expected = head.losses_and_outputs(model.of_head(parameters, number), values, labels)
            assert scores.tobytes() == expected.tobytes()


def test_tiers_and_bytes_of_a_network():
    model = three_tiers()
    assert layout.parts_of(model) == [4, 2, 1]
    found = layout.tiers(model, layout.parse("device=4, edge=2,cloud=1"), 7)
    assert [(tier.name, tier.ranks, tier.groups) for tier in found] == [
        ("device", range(4), 1),
        ("edge", range(4, 6), 1),
        ("cloud", range(6, 7), 1),
    ]
    # Devices: 4 scores of 8 bytes; 2 x 2 x 2 signs. Edges: 4 scores; 2 x 2 x 3 numbers.
    assert layout.costs(model, 8) == [(4 * 4 * 8, 4 * 1), (2 * 4 * 8, 2 * 12 * 8)]
    assert layout.costs(alone(), 4) == [(0, 4 * 4 * 2 // 8)]
    several = layout.tiers(alone(), {"phone": 3, "cloud": 2}, 5)
    assert [tier.groups for tier in several] == [3, 2]


@pytest.mark.parametrize(
    ("text", "ranks", "words"),
    [
        ("device=4,cloud=1", 5, "are 2, and the model has 2 exit\\(s\\): give 3 tiers"),
        ("device=4,edge=2,cloud=1", 6, "have 7 ranks and 6 were started: start 7"),
        ("device=3,edge=2,cloud=1", 6, "tier device has 3 rank\\(s\\), and a sample has 4 parts"),
        ("device=4,edge=2,cloud=2", 8, "tier cloud has 2 groups of ranks and edge below it 1"),
        ("device=4,edge", 4, "'edge' is no tier of its own name and ranks"),
        ("device=4,device=4", 4, "'device=4' is no tier of its own name and ranks"),
    ],
)
def test_tiers_that_do_not_fit_are_refused(text, ranks, words):
    with pytest.raises(ValueError, match=words):
        layout.tiers(three_tiers(), layout.parse(text), ranks)


@pytest.mark.parametrize(
    ("layers", "exits", "words"),
    [
        (
            [Split(), EachPart((Reshape(),)), ReLU(), Aggregate(), Dense(4)],
            [Exit((Aggregate(), Dense(4)), after=3)],
            "tier 1 has ReLU over several parts: put it into EachPart",
        ),
        (
            [Split(), EachPart((Reshape(),)), Aggregate(), Dense(5), Dense(4)],
            [Exit((Dense(4),), after=4)],
            "tier 1 has an Aggregate inside",
        ),
        (
            [Convolution(1), Split(), EachPart((Reshape(),)), Aggregate(), Dense(4)],
            [Exit((Aggregate(), Dense(4)), after=3)],
            "tier 1 has a Split behind other layers",
        ),
        (
            [Split(), EachPart((Reshape(),)), Aggregate(), Dense(4)],
            [Exit((Dense(3), Aggregate(), Dense(4)), after=2)],
            "a head of several parts is EachPart and then Aggregate",
        ),
        (
            [Split(), EachPart((Reshape(),)), EachPart((Dense(3),)), Aggregate(), Dense(4)],
            [Exit((Aggregate(), Dense(4)), after=2)],
            "tier 2 begins with EachPart, and 4 parts come from below",
        ),
    ],
)
def test_layers_that_no_rank_can_compute_are_refused(layers, exits, words):
    model = EarlyExits(layers, exits, IMAGE, "float64")
    with pytest.raises(ValueError, match=words):
        layout.parts_of(model)


@given(st.lists(st.lists(st.floats(-50, 50), min_size=3, max_size=3), min_size=1, max_size=5))
def test_entropy_is_from_0_to_1(rows):
    found = layout.entropies(np.array(rows))
    assert ((found >= 0) & (found <= 1)).all()
    assert layout.leaves(np.array(rows), 1.0).all()
    assert not layout.leaves(np.array(rows), -1e-9).any()


def test_entropy_of_what_is_known():
    scores = np.array([[5.0, 5.0], [1000.0, 0.0], [np.nan, 0.0], [np.inf, 0.0], [np.log(3), 0.0]])
    quarter = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / np.log(2)
    assert layout.entropies(scores) == pytest.approx([1, 0, 1, 1, quarter])
    assert layout.leaves(scores, 0.0).tolist() == [False, True, False, False, False]


@given(
    rows=st.lists(st.booleans(), max_size=20),
    values=st.integers(1, 20),
    binary=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_a_letter_arrives_as_it_was_sent(rows, values, binary, dtype):
    there = np.array(rows, bool)
    sent = np.random.default_rng(0).standard_normal((int(there.sum()), values)).astype(dtype)
    if binary:
        sent = np.where(sent >= 0, 1, -1).astype(dtype)
    content = letters.encoded(sent, binary)
    assert len(content) == len(sent) * (-(-values // 8) if binary else values * sent.itemsize)
    letter = letters.Letter(7, there, 1.5, content)
    found = letters.unpacked(letter.packed())
    assert (found.batch, found.began, found.values) == (7, 1.5, content)
    assert found.rows.tolist() == rows
    assert letter.overhead + len(content) == len(letter.packed())
    again = letters.decoded(found.values, (values,), dtype, binary)
    assert again.tobytes() == sent.tobytes()
    assert letters.unpacked(letters.Letter(3, None, 0.0).packed()).rows is None


def kept(model, tmp_path):
    """A checkpoint of a run on a file of data."""
    data = dataset()
    np.savez(
        tmp_path / "quarters.npz",
        train_inputs=data.train_inputs,
        train_labels=data.train_targets,
        test_inputs=data.test_inputs,
        test_labels=data.test_targets,
    )
    name, folder = str(tmp_path / "quarters.npz"), tmp_path / "run"
    run(Config(dataset=name, epochs=3, checkpoint=str(folder)), model=model)
    return folder


@pytest.mark.long
def test_the_command_and_its_page(tmp_path, mpirun):
    folder, page = kept(alone("float32"), tmp_path), tmp_path / "page.html"
    words = ("-m", "mpicoll", "tiers", folder / "best", "--tiers", "phone=2,cloud=1")
    words += ("--batch", "8", "--silent", "1@1", "--patience", "0.2", "--threshold=-1,0.5")
    done = mpirun(3, *words, "-o", page)
    assert done.status == 0, done.err
    assert "raw / bytes" in done.out
    assert "20 samples" in done.out
    text = page.read_text()
    assert "Early exits: phone, cloud" in text
    assert "; device 1 silent from batch 1<" in text
    for plot in ("accuracy", "leaving", "bytes", "time", "accuracy-by-bytes"):
        assert f'data-name="{plot}"' in text
    done = mpirun(2, *words, "--silent", "one")
    assert done.status == 2
    assert done.err.count("write devices by number") == 1


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_the_command_on_devices_edges_and_a_cloud(tmp_path, mpirun):
    folder = kept(three_tiers(dtype="float32"), tmp_path)
    words = ("-m", "mpicoll", "tiers", folder, "--tiers", "device=4,edge=2,cloud=1", "--json")
    done = mpirun(7, *words, "--threshold=-1,0.5,1", "--batch", "8", limit=200)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert [outcome["threshold"] for outcome in found] == [-1, 0.5, 1]
    assert found[0]["leaving"] == {"device": 0, "edge": 0, "cloud": 1}
    assert found[2]["leaving"] == {"device": 1, "edge": 0, "cloud": 0}
    for outcome in found:
        assert outcome["formula"] == outcome["sent"]["scores"] + outcome["sent"]["features"]
        assert outcome["answered"] == 1
    # Scores and signs of four devices, scores and numbers of two edges.
    assert found[0]["formula"] == 4 * (4 * 4 + 1) + 2 * (4 * 4 + 12 * 4)
    for device in ("0", "1@2", "0,1", "0,1,2,3@1"):
        words += ("--silent", device, "--patience", "3")
        done = mpirun(7, *words, "--threshold=-1,0.5", "--batch", "8", limit=200)
        assert done.status == 0, done.err
        for outcome in json.loads(done.out):
            # Two batches of eight and one of four; all are silent from the second one on.
            assert outcome["answered"] == (0.4 if "3@1" in device else 1)
