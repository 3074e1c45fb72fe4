"""Training in one process, without MPI: it learns, it is SGD to the letter, it fails clearly."""

import subprocess
import sys
import time

import numpy as np
import pytest
from float64 import MLP, Config

from mpicoll.train import Dataset, TrainingError, run, threads
from mpicoll.train.data.pictures import load_mnist5k
from mpicoll.train.data.sampler import Sampler
from mpicoll.train.driver import parity
from mpicoll.train.exchange import transfers
from mpicoll.train.models import Batch
from mpicoll.train.models.flat import Flat


def blobs(samples=120, classes=3, features=4, seed=0):
    """Classes that overlap little: a cloud of points around a centre for each."""
    generator = np.random.default_rng(seed)
    centres = 4 * generator.standard_normal((classes, features))
    labels = np.arange(samples) % classes
    inputs = centres[labels] + generator.standard_normal((samples, features))
    half = samples // 2
    return Dataset("blobs", classes, inputs[:half], labels[:half], inputs[half:], labels[half:])


@pytest.mark.parametrize("model", ["softmax", "mlp"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_it_learns(model, dtype):
    history = run(Config(model=model, dtype=dtype, batch=16), dataset=blobs()).history
    assert history[-1].loss < 0.5 * history[0].loss
    assert history[-1].test["accuracy"] > 0.9


def test_softmax_regression_reads_digits():
    history = run(Config(epochs=5), dataset=load_mnist5k()).history
    assert history[-1].test["accuracy"] > 0.88


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_sgd(momentum):
    """The method written out plainly: v = m v + g, w = w - lr v."""
    config = Config(batch=16, epochs=2, lr=0.1, momentum=momentum)
    data, model = blobs(), MLP((4, 3))
    weights = model.initial_parameters(config.seed)
    velocity = {name: np.zeros_like(array) for name, array in weights.items()}
    for epoch in (1, 2):
        for samples in Sampler(60, 16, config.seed).batches(epoch):
            batch = Batch(data.train_inputs[samples], data.train_targets[samples], len(samples))
            for name, gradient in model.loss_and_gradients(weights, batch)[1].items():
                velocity[name] = momentum * velocity[name] + gradient
                weights[name] = weights[name] - 0.1 * velocity[name]
    result = run(config, dataset=data)
    assert max(parity.differences(result.parameters, weights).values()) < 1e-14


def test_a_run_repeats_to_the_bit_and_another_seed_does_not():
    runs = [run(Config(seed=seed, epochs=2), dataset=blobs()) for seed in (5, 5, 6)]
    name = "layer1.weight"
    assert np.array_equal(runs[0].parameters[name], runs[1].parameters[name])
    assert not np.array_equal(runs[0].parameters[name], runs[2].parameters[name])


def test_accuracy_and_loss_are_exact_over_the_sets():
    data = blobs()
    result = run(Config(epochs=1, evaluate_train=True), dataset=data)
    model = MLP((4, 3))
    losses, scores = model.losses_and_outputs(
        result.parameters, data.train_inputs, data.train_targets
    )
    epoch = result.history[0]
    assert epoch.train["loss"] == pytest.approx(losses.mean(), rel=1e-14)
    assert epoch.train["accuracy"] == np.mean(scores.argmax(axis=1) == data.train_targets)


def test_a_batch_larger_than_the_set_is_the_full_batch():
    steps = []
    run(
        Config(batch=1000, epochs=2),
        dataset=blobs(),
        on_step=lambda step: steps.append((step.epoch, step.position, step.of)),
    )
    assert steps == [(1, 1, 1), (2, 1, 1)]


def test_a_loss_that_is_not_finite_stops_the_run():
    with pytest.raises(TrainingError, match=r"of epoch 1 failed on rank 0: .*lower the learning"):
        run(Config(lr=1e308, momentum=0, batch=1, skip_limit=0), dataset=blobs())


def test_weights_ruined_by_the_last_step_stop_the_run():
    with pytest.raises(TrainingError, match="measuring after epoch 1 failed on rank 0"):
        run(Config(lr=1e308, batch=1000, epochs=1), dataset=blobs(features=40))


class Broken:
    """A model whose gradients are changed before they are returned."""

    def __init__(self, change):
        self._change = change
        self._model = MLP((4, 3))
        self.initial_parameters = self._model.initial_parameters
        self.losses_and_outputs = self._model.losses_and_outputs

    def loss_and_gradients(self, parameters, batch):
        loss, gradients = self._model.loss_and_gradients(parameters, batch)
        self._change(gradients)
        return loss, gradients


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.pop("layer1.bias"), "arrays are layer1.weight, parameters are"),
        (lambda g: g.update(extra=np.zeros(3)), "one gradient for each parameter"),
        (lambda g: g.update({"layer1.weight": np.zeros(3)}), r"has shape \(3,\), its parameter"),
        (lambda g: g["layer1.bias"].fill(np.inf), "not finite"),
    ],
)
def test_wrong_gradients_are_refused(change, message):
    with pytest.raises(TrainingError, match=message):
        run(Config(skip_limit=0), dataset=blobs(), model=Broken(change))


def test_a_model_that_does_not_fit_the_data_is_refused():
    with pytest.raises(TrainingError, match="step 1 of epoch 1 failed on rank 0: ValueError"):
        run(Config(), dataset=blobs(features=4), model=MLP((5, 3)))


def test_flat_views_share_the_vector():
    flat = Flat({"a": np.ones((2, 2)), "b": np.full(3, 2.0)})
    assert flat.vector.tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert flat.spans == {"a": (0, 4), "b": (4, 7)}
    flat.vector += 1
    assert flat.views["b"].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "arrays", [{"a": np.ones(1), "b": np.ones(1, "float32")}, {"a": np.ones(1, int)}]
)
def test_flat_wants_one_floating_type(arrays):
    with pytest.raises(TypeError, match="the same floating type"):
        Flat(arrays)


def test_differences_are_relative_to_the_largest_value():
    reference = {"a": np.array([1e-9, 4.0]), "zero": np.zeros(2)}
    assert parity.differences(
        {"a": np.array([2e-9, 4.0]), "zero": np.zeros(2)}, reference
    ) == pytest.approx({"a": 2.5e-10, "zero": 0})
    away = parity.differences({"a": np.array([np.nan, 4]), "zero": np.ones(2)}, reference)
    assert np.isnan(away["a"])
    assert away["zero"] == np.inf


def test_accumulation_is_the_larger_batch():
    data = blobs()
    apart = run(Config(batch=4, accumulate=4, epochs=13, model="mlp"), dataset=data)
    whole = run(Config(batch=16, epochs=13, model="mlp"), dataset=data)
    assert apart.steps == whole.steps == 13 * 4
    assert max(parity.differences(apart.parameters, whole.parameters).values()) <= 1e-12


def test_clipping_scales_the_whole_gradient():
    data, model = blobs(), MLP((4, 3))
    weights = model.initial_parameters(0)
    batch = Batch(data.train_inputs, data.train_targets, 60)
    _, gradients = model.loss_and_gradients(weights, batch)
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    config = Config(optimizer="sgd", batch=60, epochs=1, lr=0.1, clip=norm / 5)
    clipped = run(config, dataset=data).parameters
    for name, gradient in gradients.items():
        np.testing.assert_allclose(clipped[name], weights[name] - 0.02 * gradient, rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "steps", "stopped"),
    [
        ({"epochs": 2}, 8, "epochs"),
        ({"steps": 6}, 6, "steps"),
        ({"target_loss": 0.9}, 4, "target loss"),
        ({"target_accuracy": 0.5}, 4, "target accuracy"),
    ],
)
def test_stop_rules(changes, steps, stopped):
    result = run(Config(batch=16, **changes), dataset=blobs())
    assert (result.steps, result.stopped) == (steps, stopped)


def test_a_step_says_what_it_did():
    steps = []
    run(Config(batch=16, epochs=2, warmup=4), dataset=blobs(), on_step=steps.append)
    assert [(s.number, s.epoch, s.position, s.of) for s in steps[3:5]] == [
        (4, 1, 4, 4),
        (5, 2, 1, 4),
    ]
    assert [s.lr for s in steps[:5]] == pytest.approx([0.0125, 0.025, 0.0375, 0.05, 0.05])
    assert steps[-1].loss < steps[0].loss and steps[0].compute > 0
    assert (steps[0].waiting, steps[0].slowest, steps[0].skipped) == (0, 0, False)


def test_what_the_start_of_a_transfer_takes_is_communication(monkeypatch):
    """As where gradients have to leave a GPU before they can travel."""
    steps, own = [], transfers.Sum.start

    def start(transfer):
        time.sleep(0.01)
        own(transfer)

    monkeypatch.setattr(transfers.Sum, "start", start)
    result = run(Config(batch=16, bucket=8 * 8), dataset=blobs(), on_step=steps.append)
    assert all(step.exposed >= 2 * 0.01 for step in steps)  # 15 parameters, 8 in a bucket
    epoch = result.history[0]
    assert epoch.communication * epoch.seconds >= 2 * 0.01 * 4
    assert sum(epoch.compute) + epoch.communication * epoch.seconds <= epoch.seconds


def test_a_gradient_that_comes_twice_or_not_at_all_is_refused():
    class Odd(MLP):
        def push_gradients(self, parameters, batch, push):
            push("layer1.bias", np.zeros(3))
            for name in self.extra:
                push(name, np.zeros(3))
            return 1.0

    model = Odd((4, 3))
    for model.extra, message in ((["layer1.bias"], "of layer1.bias came"), ([], "no gradient of")):
        with pytest.raises(TrainingError, match=message):
            run(Config(), dataset=blobs(), model=model)


def test_the_small_convolutional_net_learns_digits():
    config = Config(model="conv", channels=(4,), hidden=(16,), batch=32, dtype="float32", steps=100)
    assert run(config, dataset=load_mnist5k()).history[-1].test["accuracy"] > 0.75


def test_a_convolutional_net_wants_images():
    with pytest.raises(TrainingError, match="samples are 4 values and no images"):
        run(Config(model="conv"), dataset=blobs())


def test_alone_does_what_the_ranks_do():
    config = Config(batch_per_rank=8, lr=0.1, lr_scaling="sqrt").alone(4)
    assert (config.batch, config.batch_per_rank) == (32, None)
    assert (config.lr, config.lr_scaling) == (0.2, "none")
    assert Config(batch=8).alone(4) == Config(batch=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "mnist"}, "unknown dataset 'mnist': known are digits, mnist5k, fashion-mnist"),
        (
            {"model": "cnn"},
            "unknown model 'cnn': known are softmax, mlp, conv, resnet, tr",
        ),
        ({"dtype": "int8"}, "unknown dtype 'int8': known are float64, float32, float16"),
        ({"model": "conv", "channels": ()}, "at least one convolution"),
        ({"channels": (0,)}, "number of channels is 0"),
        ({"optimizer": "adamax"}, "unknown optimizer 'adamax': known are sgd, momentum"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': known are constant"),
        ({"lr_scaling": "log"}, "unknown lr_scaling 'log': known are none, linear, sqrt"),
        ({"strategy": "zero2"}, "unknown strategy 'zero2': known are allreduce, zero1"),
        ({"strategy": "zero1", "wire": "bf16"}, "zero1 sends gradients as they are, not as bf16"),
        ({"wire": "fp8"}, "unknown wire format 'fp8': known are full, fp16, bf16, int8 and topk"),
        ({"wire": "topk:2"}, "unknown wire format 'topk:2'"),
        ({"loss_scale": 1000.0}, r"loss_scale is 1000\.0: give a power of two"),
        ({"strategy": "gossip", "clip": 1.0}, "gossip does not take clip"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"device": "gpu", "wire": "bf16"}, "wire bf16 is encoded by the host"),
        ({"device": "gpu", "augment": "flip"}, "device gpu does not take augment"),
        ({"strategy": "local_sgd", "wire": "bf16"}, "local_sgd sends gradients as they are"),
        ({"strategy": "gossip", "graph": "star"}, "unknown graph 'star': known are ring"),
        ({"average_every": 0}, "average_every is 0"),
        ({"clip": 0.0}, r"clip is 0\.0: give a finite norm above 0"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"weight_decay": -0.1}, r"weight_decay is -0\.1"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"batch_per_rank": 0}, "batch_per_rank is 0"),
        ({"bucket": 0}, "bucket is 0"),
        ({"algorithm": "rng"}, "unknown all-reduce algorithm 'rng': known are .*ring.*native"),
        ({"model": "mlp", "hidden": ()}, "at least one hidden layer"),
        ({"hidden": (64, 0)}, "hidden layer size is 0: give a whole number of at least 1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch": 2.5}, r"batch is 2\.5: give a whole number"),
        ({"batch": True}, "batch is True"),
        ({"seed": -1}, "seed is -1"),
        ({"lr": 0.0}, r"lr is 0\.0: give a finite"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
    ],
)
def test_a_bad_configuration_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**changes)


def test_threads_are_limited_unless_the_user_chose(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    fresh = {}
    assert threads.limit_blas_threads(fresh)
    assert fresh == dict.fromkeys(threads.VARIABLES, "1")
    assert threads.describe_blas_threads(fresh) == "1"

    chosen = {"OMP_NUM_THREADS": "2"}
    assert not threads.limit_blas_threads(chosen)
    assert chosen == {"OMP_NUM_THREADS": "2"}
    assert threads.describe_blas_threads(chosen) == "OMP_NUM_THREADS=2"


def test_threads_cannot_be_limited_once_numpy_is_loaded():
    environ = {}
    assert not threads.limit_blas_threads(environ)
    assert threads.describe_blas_threads(environ) == "not limited"


def test_importing_threads_loads_neither_numpy_nor_mpi():
    program = (
        "import sys; from mpicoll.train import threads; "
        "sys.exit(bool({'numpy', 'mpi4py.MPI'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_training_in_one_process_does_not_load_mpi():
    program = (
        "import sys; from mpicoll.train import Config, run; "
        "run(Config(epochs=1)); sys.exit('mpi4py.MPI' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pause_keeps_the_learning_rates_of_the_whole_run(tmp_path):
    config = {"batch": 10, "epochs": 4, "schedule": "linear", "lr": 0.05}
    whole = run(Config(**config), dataset=blobs())
    kept = {"checkpoint": str(tmp_path), "resume": "auto"}
    paused = run(Config(**config, **kept, pause_after=1), dataset=blobs())
    assert (paused.stopped, len(paused.history), paused.test) == ("pause", 1, {})
    again = run(Config(**config, **kept, pause_after=1), dataset=blobs())
    assert (again.stopped, again.steps) == ("pause", paused.steps)
    found = run(Config(**config, **kept), dataset=blobs())
    assert (found.stopped, found.test) == ("epochs", whole.test)
    assert all((found.parameters[n] == whole.parameters[n]).all() for n in whole.parameters)
