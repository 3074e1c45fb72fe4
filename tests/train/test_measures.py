"""Targets of any kind: what is learnt, measured and said of them; records of older versions."""

import json
import math

import numpy as np
import pytest
from clouds import clouds

from mpicoll.train import Config, Dataset, TrainingError, history, run
from mpicoll.train.data import from_arrays
from mpicoll.train.driver import checkpoints
from mpicoll.train.driver.named import make_model
from mpicoll.train.models import Accuracy, Dense, RSquared, Sequential, SquaredError
from mpicoll.train.records import Epoch, upgraded


def line(samples=120, outputs=(), validation=True):
    """Real targets, which are sums of the inputs, and a little noise."""
    generator = np.random.default_rng(3)
    inputs = generator.standard_normal((samples, 4))
    slopes = generator.standard_normal((4, *outputs))
    targets = (
        2 + np.tensordot(inputs, slopes, 1) + 0.1 * generator.standard_normal((samples, *outputs))
    )
    sets = np.split(np.arange(samples), [samples // 2, 3 * samples // 4])
    rest = {} if validation else {"validation": None}
    arrays = {}
    for part, rows in zip(("train", "validation", "test"), sets, strict=True):
        if part not in rest:
            arrays |= {f"{part}_inputs": inputs[rows], f"{part}_targets": targets[rows]}
    return from_arrays("line", arrays)


@pytest.mark.parametrize("outputs", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_regression_learns_targets_of_any_shape(outputs, model):
    config = Config(model=model, hidden=(16,), batch=10, epochs=60, lr=0.02)
    result = run(config, dataset=line(outputs=outputs))
    first, last = result.history[0], result.history[-1]
    assert list(last.validation) == list(result.test) == ["loss", "r2"]
    assert last.test == {} == last.train
    assert last.validation["loss"] < 0.1 * first.validation["loss"]
    assert last.validation["r2"] > 0.9 and result.test["r2"] > 0.8
    assert last.loss < first.loss


def test_a_straight_line_is_least_squares():
    data = line()
    config = Config(batch=60, epochs=800, lr=0.1, evaluate_train=True, dtype="float64")
    result = run(config, dataset=data)
    columns = np.column_stack([data.train_inputs, np.ones(60)])
    best, (missed,), *_ = np.linalg.lstsq(columns, data.train_targets, rcond=None)
    np.testing.assert_allclose(result.parameters["layer1.weight"][:, 0], best[:4], rtol=1e-9)
    found = result.history[-1].train
    assert found["loss"] == pytest.approx(missed / 60, rel=1e-9)
    spread = np.square(data.train_targets - data.train_targets.mean()).sum()
    assert found["r2"] == pytest.approx(1 - missed / spread, rel=1e-9)


def test_the_loss_of_an_epoch_is_the_mean_of_its_samples():
    """Of samples, not of steps: the last step has fewer."""
    steps = []
    result = run(
        Config(batch=16, epochs=1, dtype="float64"), dataset=clouds(20), on_step=steps.append
    )
    expected = (16 * steps[0].loss + 4 * steps[1].loss) / 20
    assert result.history[0].loss == pytest.approx(expected, rel=1e-14)


def test_classes_may_have_any_shape():
    """Three labels a sample, each the sign of a value."""
    inputs = np.random.default_rng(0).standard_normal((200, 3))
    data = from_arrays("signs", {"inputs": inputs, "labels": (inputs > 0).astype(int)})
    assert data.classes == 2 and data.train_targets.shape == (160, 3)
    found = run(Config(epochs=30, batch=20, lr=0.2), dataset=data).history[-1].test
    assert found["accuracy"] > 0.9


def test_measures_are_sums_over_parts():
    generator = np.random.default_rng(1)
    scores, classes = generator.standard_normal((9, 4, 5)), generator.integers(0, 5, (9, 4))
    values, targets = generator.standard_normal((9, 2)), generator.standard_normal((9, 2)) + 3
    for measure, outputs, wanted, expected in (
        (Accuracy(), scores, classes, np.mean(scores.argmax(-1) == classes)),
        (
            RSquared(),
            values,
            targets,
            1 - np.square(values - targets).sum() / np.square(targets - targets.mean()).sum(),
        ),
    ):
        parts = [measure.measure(outputs[s], wanted[s]) for s in (slice(2), slice(2, 9))]
        assert all(part.shape == (measure.sums,) for part in parts)
        assert measure.value(sum(parts)) == pytest.approx(expected, rel=1e-12)


class Largest:
    """A measure of a user's own."""

    name, sums = "mean largest", 2

    def measure(self, outputs, targets):
        return np.array([outputs.max(axis=-1).sum(), len(outputs)])

    def value(self, sums):
        return float(sums[0] / sums[1])


class Absolute:
    """A loss of a user's own: the mean distance."""

    def evaluate(self, outputs, targets):
        difference = outputs - targets
        return np.abs(difference).mean(axis=1), np.sign(difference) / difference.shape[1]

    def check(self, shape, targets):
        if targets.shape[1:] != shape:
            raise ValueError("give targets in the shape of the outputs")


def test_a_loss_and_measures_of_ones_own():
    data = line(outputs=(2,))
    model = Sequential([Dense(2, gain=1.0)], (4,), "float64", Absolute())
    result = run(Config(epochs=30, batch=10), dataset=data, model=model, measures=[Largest()])
    assert list(result.test) == ["loss", "mean largest"]
    assert result.history[-1].validation["loss"] < 0.5 * result.history[0].validation["loss"]
    assert list(run(Config(epochs=1), dataset=data, model=model).test) == ["loss"]
    wrong = Sequential([Dense(3)], (4,), "float64", Absolute())
    with pytest.raises(TrainingError, match="give targets in the shape of the outputs"):
        run(Config(), dataset=data, model=wrong)


def test_targets_that_do_not_fit_the_model_are_refused_before_the_first_step():
    model = Sequential([Dense(3)], (4,), "float64", SquaredError())
    with pytest.raises(TrainingError, match=r"making data .*values of shape \(2,\) a sample"):
        run(Config(), dataset=line(outputs=(2,)), model=model)
    few = Sequential([Dense(3)], (12,), "float64")
    with pytest.raises(TrainingError, match="a target is 3, and outputs are scores of 3 classes"):
        run(Config(), dataset=clouds(), model=few)


def test_the_validation_set_alone_says_what_is_best_and_when_to_stop(tmp_path):
    data = line()
    losses = [e.validation["loss"] for e in run(Config(epochs=9, lr=0.3), dataset=data).history]
    wanted = sorted(losses)[4]
    stopped = run(Config(epochs=9, lr=0.3, target_loss=wanted), dataset=data)
    assert stopped.stopped == "target loss"
    assert len(stopped.history) == 1 + next(i for i, loss in enumerate(losses) if loss <= wanted)
    kept = str(tmp_path)
    run(Config(epochs=9, lr=0.3, checkpoint=kept, keep=9), dataset=data)
    best = checkpoints.find(tmp_path / (tmp_path / "best").read_text().strip())
    assert checkpoints.load(best)[1]["number"] == 1 + int(np.argmin(losses))


@pytest.mark.parametrize(
    ("config", "data", "message"),
    [
        (
            {"target_accuracy": 0.5},
            line(),
            "target_accuracy is 0.5, and this run measures loss, r2",
        ),
        (
            {"target_loss": 0.5},
            Dataset("all", None, np.ones((4, 2)), np.ones(4)),
            "target_loss is of a validation or a test set, and all has none",
        ),
        ({"model": "conv"}, line(), "samples are 4 values of shape|model conv gives one class"),
        ({"model": "transformer"}, line(), "inputs are real numbers, and model transformer wants"),
    ],
)
def test_what_does_not_go_together_is_refused(config, data, message):
    with pytest.raises(TrainingError, match=message):
        run(Config(**config), dataset=data)


def test_without_a_set_held_out_nothing_is_measured():
    data = clouds()
    alone = Dataset("all", 4, data.train_inputs, data.train_targets)
    result = run(Config(epochs=2), dataset=alone)
    assert [e.held_out for e in result.history] == [{}, {}] and result.test == {}
    assert result.history[1].judged == result.history[1].loss


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_targets_keep_their_precision(dtype):
    data = line().astype(dtype)
    assert data.train_inputs.dtype == dtype and data.train_targets.dtype == np.float32
    result = run(Config(dtype=dtype, epochs=30, batch=10, lr=0.02), dataset=line())
    assert result.test["r2"] > 0.8


# --- records --------------------------------------------------------------------------------------

OLD = {
    "number": 1,
    "loss": 0.5,
    "train_accuracy": 0.75,
    "test_accuracy": 0.625,
    "seconds": 0.1,
    "communication": 0.2,
    "skipped": 0,
    "compute": [0.05],
}


def test_an_epoch_of_an_older_version_is_read():
    epoch = Epoch(**upgraded(OLD))
    assert epoch.train == {"loss": 0.5, "accuracy": 0.75}
    assert (epoch.validation, epoch.test, epoch.judged) == ({}, {"accuracy": 0.625}, None)
    assert upgraded(upgraded(OLD)) == upgraded(OLD)


def test_metrics_of_an_older_version_are_shown(tmp_path):
    pytest.importorskip("plotly")
    from mpicoll.report import training

    run(Config(batch=16, epochs=1, metrics=str(tmp_path)), dataset=clouds())
    path = tmp_path / "rank-0.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines = [{**entry, **OLD} if entry["event"] == "epoch" else entry for entry in lines]
    for entry in lines:
        if entry["event"] == "epoch":
            for part in ("train", "validation", "test"):
                del entry[part]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = history.read(tmp_path)
    assert found.epochs[0]["test"] == {"accuracy": 0.625}
    text = training.render(found)
    assert "test set: accuracy" in text and "0.6250" in text


def test_a_page_of_a_regression_has_no_accuracy(tmp_path):
    go = pytest.importorskip("plotly.graph_objects")
    import re

    from mpicoll.report import training

    run(Config(batch=16, epochs=2, metrics=str(tmp_path)), dataset=line())
    text = training.render(history.read(tmp_path))
    figures = re.findall(r'<script type="application/json">(.*?)</script>', text)
    losses, r2, _ = (go.Figure(json.loads(figure)) for figure in figures)
    assert [trace.name for trace in losses.data] == ["batch", "validation set"]
    assert r2.layout.yaxis.title.text == "r2" and len(r2.data[0].x) == 2
    assert "set: accuracy" not in text


def test_a_loss_that_never_was_finite_is_null(tmp_path):
    epoch = Epoch(1, math.nan, {}, {}, {}, 0.1, 0.0, 3, (0.1,))
    assert epoch.judged is None


@pytest.mark.parametrize("model", ["softmax", "mlp", "conv"])
def test_models_by_name_take_samples_in_their_shape(model):
    data = clouds(shape=(3, 4))
    config = Config(model=model, channels=(2,), hidden=(5,), dtype="float64", epochs=1)
    made = make_model(config, data)
    assert made.shapes[0] == (3, 4) and made.shapes[-1] == (4,)
    assert run(config, dataset=data).steps == 2
