"""Normalisation over a batch whose parts are on several ranks; buffers; the residual net."""

import numpy as np
import pytest
from fake_ranks import Ranks

from mpicoll.train import Config, TrainingError, run
from mpicoll.train.data import from_arrays
from mpicoll.train.exchange.layer_sums import LayerSums, PeerFailed
from mpicoll.train.models import Batch, BatchNorm, Dense, Sequential, resnet
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.strategies.buffers import Buffers

WEIGHTS = {"weight": np.array([1.5, -1.0, 2.0]), "bias": np.array([0.1, 0.2, 0.3])}


def configured(**options):
    return Config(**{"dtype": "float64", **options})


def net(*sizes, **options):
    return resnet(*sizes, dtype="float64", **options)


def fresh(mean=0.0, dtype=float):
    return {**WEIGHTS, "mean": np.full(3, mean, dtype), "variance": np.ones(3, dtype)}


def batch(total=None):
    return Batch(None, None, 1, sum=total)


def together(cuts, rows, error, mean=0.0):
    """Outputs, slopes, summed gradients and buffers of parts on as many ranks."""
    bounds = [0, *cuts, len(rows)]

    def work(comm):
        def total(values):
            values[...] = np.sum(comm.allgather(values.copy()), axis=0)

        part = slice(bounds[comm.Get_rank()], bounds[comm.Get_rank() + 1])
        known = fresh(mean, rows.dtype)
        outputs, memory = BatchNorm().forward(known, rows[part], batch(total))
        slopes, gradients = BatchNorm().backward(known, memory, error[part], False)
        return outputs, slopes, gradients, known

    outputs, slopes, gradients, known = zip(*Ranks(len(bounds) - 1).run(work), strict=True)
    for other in known[1:]:
        assert all(other[name].tobytes() == known[0][name].tobytes() for name in known[0])
    sums = {name: sum(g[name] for g in gradients) for name in gradients[0]}
    return np.concatenate(outputs), np.concatenate(slopes), sums, known[0]


@pytest.mark.parametrize("cuts", [[3], [1, 1, 9], [0, 4, 5, 12]], ids=["two", "uneven", "none"])
def test_parts_are_normalised_as_one(cuts):
    generator = np.random.default_rng(1)
    rows, error = generator.standard_normal((2, 12, 3)) * 2 + 1
    outputs, slopes, sums, known = together(cuts, rows, error)
    expected = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-5)
    np.testing.assert_allclose(outputs, expected * WEIGHTS["weight"] + WEIGHTS["bias"], rtol=1e-12)
    own = fresh()
    _, memory = BatchNorm().forward(own, rows, batch())
    by_input, gradients = BatchNorm().backward(own, memory, error, False)
    np.testing.assert_allclose(slopes, by_input, rtol=1e-11, atol=1e-14)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(sums[name], gradient, rtol=1e-12)
    for name in ("mean", "variance"):
        np.testing.assert_allclose(known[name], own[name], rtol=1e-13)
    np.testing.assert_allclose(own["variance"], 0.9 + 0.1 * rows.var(axis=0, ddof=1), rtol=1e-13)


@pytest.mark.parametrize(
    ("offset", "known", "dtype", "limit"),
    [
        (1e4, 0.0, "float64", 1e-6),
        (1e4, 1e4 + 1, "float64", 1e-11),
        (1e8, 1e8 + 1, "float64", 1e-7),
        (1e3, 0.0, "float32", 1e-3),
    ],
)
def test_a_mean_far_from_zero_does_not_cancel_the_variance(offset, known, dtype, limit):
    """It costs digits where no rank knows it beforehand, and nearly none where all do."""
    noise = np.random.default_rng(1).standard_normal((64, 3))
    rows = (noise + offset).astype(dtype)
    outputs, *_ = together([20, 21], rows, rows, known)
    exact = rows.astype(np.longdouble)
    expected = (exact - exact.mean(axis=0)) / np.sqrt(exact.var(axis=0) + 1e-5)
    found = (outputs - WEIGHTS["bias"]) / WEIGHTS["weight"]
    assert np.abs(found - expected).max() < limit


def test_evaluation_takes_the_buffers_and_leaves_them():
    known = {**fresh(2.0), "variance": np.full(3, 4.0)}
    rows = np.array([[4.0, 2.0, 0.0]])
    outputs, _ = BatchNorm(epsilon=0).forward(known, rows, None)
    assert outputs.tolist() == [[1.5 * 1 + 0.1, 0.2, -2.0 + 0.3]]
    assert (known["mean"] == 2).all() and (known["variance"] == 4).all()


def test_one_value_and_none_are_no_error():
    known = fresh()
    outputs, memory = BatchNorm().forward(known, np.ones((1, 3)), batch())
    assert outputs.tolist() == [WEIGHTS["bias"].tolist()]
    assert not BatchNorm().backward(known, memory, np.ones((1, 3)), False)[0].any()
    before = {name: array.copy() for name, array in known.items()}
    outputs, _ = BatchNorm().forward(known, np.ones((0, 3)), batch())
    assert outputs.shape == (0, 3)
    assert all(known[name].tobytes() == before[name].tobytes() for name in known)


def test_half_precision_keeps_statistics_in_single():
    model = Sequential([Dense(3, bias=False), BatchNorm(), Dense(2)], (4,), "float16")
    parameters, buffers = model.initial_parameters(0), model.initial_buffers()
    assert list(buffers) == ["layer2.mean", "layer2.variance"]
    assert {array.dtype.name for array in buffers.values()} == {"float32"}
    inputs = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float16)
    _, gradients = model.loss_and_gradients(
        {**parameters, **buffers}, Batch(inputs, np.arange(8) % 2, 8)
    )
    assert list(gradients) == list(parameters)
    assert all(array.dtype == np.float32 and array.all() for array in buffers.values())


def test_a_model_says_which_sums_it_makes():
    model, made = net((4, 4, 1), (2, 3), 3), []
    parameters = {**model.initial_parameters(0), **model.initial_buffers()}
    inputs = np.random.default_rng(0).standard_normal((5, 16))
    model.loss_and_gradients(
        parameters,
        Batch(inputs, np.arange(5) % 3, 5, sum=lambda values: made.append(len(values))),
    )
    assert tuple(made) == model.sums() and len(made) == 12
    assert net((4, 4, 1), (2,), 3, local=True).sums() == ()


# --- sums that a rank does not come to ------------------------------------------------------------


class Joined(Workers):
    """Ranks that are threads."""

    def __init__(self, comm):
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def plan_sum(self, values, short=False):
        comm = self._comm

        class Plan:
            def Start(self):
                values[...] = np.sum(comm.allgather(values.copy()), axis=0)

            def Wait(self):
                pass

            def Free(self):
                pass

        return Plan()


@pytest.mark.parametrize("made", range(6))
@pytest.mark.parametrize("failing", [(0,), (2,), (0, 1)])
def test_ranks_that_fail_between_two_sums_leave_nobody_waiting(made, failing):
    def work(comm):
        sums = LayerSums(Joined(comm), (3, 5, 3))
        for _ in range(2):
            done = []
            try:
                with sums.step(2):
                    for length in (3, 5, 3) * 2:
                        if comm.Get_rank() in failing and len(done) == made:
                            raise OSError("no disk")
                        values = np.full(length, 1.0)
                        sums(values)
                        done.append(values[0])
            except (OSError, PeerFailed) as error:
                found = type(error), len(done)
            assert set(done) <= {3.0}
        return found

    for rank, found in enumerate(Ranks(3).run(work)):
        assert found == (OSError if rank in failing else PeerFailed, made)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((3, 4), r"a sum of shape \(4,\) came where one of shape \(5,\) is awaited: let the model"),
        ((3, 5, 1), r"a sum of shape \(1,\) came where none is awaited"),
        ((3,), r"the model made 1 of 2 sums in a step: let its sums\(\) say"),
    ],
)
def test_other_sums_than_a_model_says_are_refused(lengths, message):
    sums = LayerSums(Workers(), (3, 5))

    def step():
        with sums.step(1):
            for length in lengths:
                sums(np.zeros(length))

    with pytest.raises(ValueError, match=message):
        step()


# --- buffers --------------------------------------------------------------------------------------


def test_sets_of_buffers_become_their_mean_by_samples():
    mask = np.array([0.0, -np.inf])
    start = {"mean": np.array([1.0, 1.0], np.float32), "count": np.array(7), "mask": mask}
    buffers = Buffers(Workers(), start, range(3), 3)
    for index, (samples, mean) in enumerate([(1, 3.0), (0, np.nan), (3, 7.0)]):
        buffers.sets[index]["mean"][...] = mean
        buffers.sets[index]["count"][...] = 8
        buffers.saw(index, samples)
    buffers.average()
    for own in buffers.sets:
        assert own["mean"].tolist() == [6, 6] and own["mean"].dtype == np.float32
        assert own["count"] == 8 and own["count"].dtype == start["count"].dtype
        assert own["mask"].tolist() == mask.tolist()
    buffers.average()
    assert buffers.views["mean"].tolist() == [6, 6]


def test_equal_sets_stay_as_they_are_to_the_bit():
    values = np.random.default_rng(0).standard_normal(50)
    buffers = Buffers(Workers(), {"a": values}, range(5), 5)
    for index in range(5):
        buffers.saw(index, 7 + index)
    buffers.average()
    assert buffers.views["a"].tobytes() == values.tobytes()


def test_a_step_that_does_not_count_is_undone():
    buffers = Buffers(Workers(), {"a": np.zeros(2)}, range(2), 2)
    buffers.keep()
    buffers.sets[0]["a"][...] = np.nan
    buffers.saw(0, 5)
    buffers.undo()
    buffers.average()
    assert not buffers.views["a"].any()


def pictures(name, inputs, labels):
    """A set of pictures, of which the last third is for the test."""
    first = len(labels) * 2 // 3
    parts = {"train": slice(first), "test": slice(first, None)}
    arrays = {f"{part}_inputs": inputs[rows] for part, rows in parts.items()}
    return from_arrays(name, arrays | {f"{part}_labels": labels[r] for part, r in parts.items()})


def clouds(samples=60):
    generator, labels = np.random.default_rng(2), np.arange(samples) % 3
    inputs = generator.standard_normal((samples, 16)) + np.eye(3, 16)[labels] * 3
    return pictures("clouds", inputs.reshape(samples, 4, 4, 1), labels)


def test_statistics_are_of_the_steps_that_count_alone():
    """A batch with a value that is not finite is skipped, and leaves no trace."""

    class Spoilt:
        def __init__(self):
            self._model, self._calls = net((4, 4, 1), (2,), 3), 0
            self.initial_parameters = self._model.initial_parameters
            self.initial_buffers = self._model.initial_buffers
            self.losses_and_outputs = self._model.losses_and_outputs

        def loss_and_gradients(self, parameters, batch):
            self._calls += 1
            if self._calls == 3:
                batch.inputs[0, 0] = np.nan
            return self._model.loss_and_gradients(parameters, batch)

    skipped = []
    result = run(
        configured(batch=8, epochs=1),
        dataset=clouds(),
        model=Spoilt(),
        on_step=lambda step: skipped.append(step.skipped),
    )
    assert skipped == [False, False, True, False, False]
    assert all(np.isfinite(array).all() for array in result.buffers.values())
    assert result.buffers["layer2.mean"].any()


def test_evaluation_uses_the_statistics_and_the_result_has_them():
    data, model = clouds(), net((4, 4, 1), (2,), 3)
    result = run(configured(batch=8, epochs=2, evaluate_train=True), dataset=data, model=model)
    assert result.buffers.keys() == model.initial_buffers().keys()
    known = {**result.parameters, **result.buffers}
    losses, _ = model.losses_and_outputs(known, data.train_inputs, data.train_targets)
    assert result.history[-1].train["loss"] == pytest.approx(losses.mean(), rel=1e-13)


@pytest.mark.parametrize("strategy", ["local_sgd", "gossip", "parameter_server"])
def test_strategies_without_common_steps_take_the_local_one_alone(strategy):
    config = {"model": "resnet", "channels": (2,), "strategy": strategy, "epochs": 1}
    message = f"strategy {strategy} has no step .* give norm local, or layers BatchNorm"
    with pytest.raises(TrainingError, match=message):
        run(configured(**config), dataset=clouds())
    run(configured(norm="local", **config), dataset=clouds())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "batch"}, "unknown norm 'batch': known are global, local"),
        ({"blocks": 0}, "blocks is 0: give a whole number of at least 1"),
        ({"model": "resnet", "channels": ()}, "a resnet needs at least one convolution"),
    ],
)
def test_options_of_the_residual_net_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        configured(**options)


def test_a_residual_net_learns_shapes():
    """Bars that lie and bars that stand, anywhere in a noisy picture."""
    generator = np.random.default_rng(5)
    bars, labels = generator.standard_normal((300, 8, 8)) * 0.3, np.arange(300) % 2
    for picture, label, place in zip(bars, labels, generator.integers(8, size=300), strict=True):
        (picture if label else picture.T)[place] += 1
    data = pictures("bars", bars, labels)
    options = {"optimizer": "adam", "lr": 0.01, "dtype": "float32", "batch": 20, "epochs": 6}
    losses = [
        run(configured(model=model, channels=(4, 6), **options), dataset=data).history[-1].loss
        for model in ("resnet", "softmax")
    ]
    assert losses[0] < 0.3 < 0.5 < losses[1]


@pytest.mark.parametrize("image", [(8, 8, 1), (28, 28, 1), (32, 32, 3)])
def test_residual_nets_of_pictures_of_many_sizes(image):
    model = net(image, (4, 6, 8), 10, blocks=2, dropout=0.2)
    parameters = {**model.initial_parameters(0), **model.initial_buffers()}
    inputs = np.random.default_rng(0).standard_normal((2, np.prod(image)))
    loss, gradients = model.loss_and_gradients(
        parameters, Batch(inputs, np.array([1, 2]), 2, np.arange(2))
    )
    assert np.isfinite(loss) and list(gradients) == list(model.initial_parameters(0))
    assert not [name for name in gradients if "bias" in name and gradients[name].shape == ()]
    with pytest.raises(ValueError, match="give fewer convolutions, or larger images"):
        net((4, 4, 1), (2, 2, 2, 2), 10)
