"""PyTorch's DataLoader as the source of samples; chains of modules, by every strategy."""

import warnings

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from mpi4py import MPI

from mpicoll.train import Dataset, DistributedSampler, TrainingError, run
from mpicoll.train.driver import parity

if MPI.COMM_WORLD.size not in (1, 2, 3, 5):
    pytest.skip("1, 2, 3 and 5 ranks show it", allow_module_level=True)
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from mpicoll.train.models import Dense, ReLU, Sequential  # noqa: E402
from mpicoll.train.pytorch import TorchLayer, TorchModel, from_loader  # noqa: E402

pytestmark = pytest.mark.mpi


class Counting(torch.utils.data.Dataset):
    """Reads are counted; labels are not told apart."""

    def __init__(self):
        self.reads = []

    def __len__(self):
        return 101

    def __getitem__(self, number):
        self.reads.append(number)
        data = clouds()
        return data.train_inputs[number], int(data.train_targets[number])


def held_out():
    data = clouds()
    held = torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_targets)
    return DataLoader(TensorDataset(*held), batch_size=7)


def sampled(comm, batch=8, seed=0, source=None, **options):
    sampler = DistributedSampler(101, batch, comm, seed)
    loader = DataLoader(source or Counting(), batch_sampler=sampler, **options)
    return from_loader(loader, held_out())


def largest(ours, reference):
    return max(parity.differences(ours.parameters, reference.parameters).values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate": 2, "batch": 4},
        {"batch": 3},
        {"strategy": "zero1"},
        {"strategy": "parameter_server"},
    ],
    ids=["allreduce", "accumulated", "ranks without samples", "zero1", "servers"],
)
def test_a_loader_with_our_sampler_gives_the_batches_of_one_process(comm, changes):
    config = Config(**{"batch": 8, "epochs": 2, **changes})
    ours = run(config, comm, dataset=sampled(comm, config.batch))
    reference = run(config.alone(comm.size), dataset=clouds())
    assert largest(ours, reference) <= 1e-12
    for own, other in zip(ours.history, reference.history, strict=True):
        assert own.test["accuracy"] == other.test["accuracy"]


@pytest.mark.skipif(MPI.COMM_WORLD.size > 2, reason="1 and 2 ranks show it")
@pytest.mark.timeout(180)
def test_processes_of_the_loader_read_ahead(comm):
    data = clouds()
    pairs = TensorDataset(torch.from_numpy(data.train_inputs), torch.from_numpy(data.train_targets))
    options = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    config = Config(batch=8, epochs=1)
    ours = run(config, comm, dataset=sampled(comm, source=pairs, **options))
    assert largest(ours, run(config, dataset=data)) <= 1e-12


def test_a_run_goes_on_in_the_middle_of_an_epoch(comm, folder):
    config = {"batch": 8, "epochs": 2}
    saved = Config(**config, steps=18, checkpoint=str(folder), checkpoint_every=9)
    assert run(saved, comm, dataset=sampled(comm)).steps == 18
    data = sampled(comm)
    on = Config(**config, resume=str(folder))
    resumed = run(on, comm, dataset=data)
    assert largest(resumed, run(Config(**config), dataset=clouds())) <= 1e-12


def test_a_sampler_of_another_seed_is_refused(comm):
    message = "ValueError: the sampler of the loader gives other samples than the run asks for"
    with pytest.raises(TrainingError, match=message):
        run(Config(batch=8), comm, dataset=sampled(comm, seed=1))


@pytest.mark.parametrize("kind", ["real numbers", "tokens"])
def test_targets_of_any_kind(comm, kind):
    if kind == "tokens":
        numbers = np.arange(9 * 60).reshape(60, 9) * 7 % 11
        inputs, targets, vocabulary = numbers[:, :-1], numbers[:, 1:], 11
        options = {"model": "transformer", "width": 8, "heads": 2, "layers": 1}
    else:
        inputs = clouds().train_inputs[:60]
        targets, vocabulary, options = inputs @ np.ones((inputs.shape[1], 2)), None, {}
    pairs = TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))
    sampler = DistributedSampler(60, 8, comm)
    loader = DataLoader(pairs, batch_sampler=sampler)
    ours = from_loader(loader, DataLoader(pairs, batch_size=60), vocabulary=vocabulary)
    whole = Dataset("whole", ours.classes, inputs, targets, inputs, targets, vocabulary=vocabulary)
    assert ours.classes == (11 if kind == "tokens" else None)
    config = Config(batch=8, epochs=2, lr=0.01, **options)
    alone = run(config.alone(comm.size), dataset=whole)
    assert largest(run(config, comm, dataset=ours), alone) <= 1e-12


def test_other_loaders_are_read_in_their_order(comm):
    source = Counting()
    with pytest.warns(UserWarning, match="goes on with other samples of it; give the DataLoader"):
        data = from_loader(DataLoader(source, batch_size=5, shuffle=True), held_out())
    source.reads.clear()
    steps = []
    config = Config(batch=20, epochs=6, optimizer="sgd", lr=0.1)
    result = run(config, comm, dataset=data, on_step=steps.append)
    assert len(steps) == 6 * 6 and result.history[-1].loss < result.history[0].loss
    same = comm.allgather(result.parameters["layer1.weight"].tobytes())
    assert len(set(same)) == 1


def test_a_loader_in_a_loop_of_ones_own(comm):
    """The batches of a loader are those of the sampler, from any step on."""
    data = clouds()
    pairs = TensorDataset(torch.from_numpy(data.train_inputs), torch.arange(101))
    sampler = DistributedSampler(101, 8, comm, seed=3)
    loader = DataLoader(pairs, batch_sampler=sampler)
    assert len(loader) == 13
    for epoch, done in ((1, 0), (2, 5), (2, 0)):
        sampler.set_epoch(epoch, done)
        found = [numbers.tolist() for _, numbers in loader]
        assert found == [mine.tolist() for mine, _ in sampler.batches(epoch)][done:]


def chain():
    torch.manual_seed(0)
    first, last = torch.nn.Linear(12, 9).double(), torch.nn.Linear(9, 4).double()
    return Sequential([TorchLayer(first), ReLU(), Dense(9), TorchLayer(last)], (12,), "float64")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "zero1", "optimizer": "adam", "lr": 0.01},
        {"strategy": "local_sgd", "average_every": 1},
        {"strategy": "parameter_server", "servers": "decentralized"},
        {"groups": ("layer3.*:lr=0",)},
    ],
    ids=lambda changes: ", ".join(map(str, changes.values())) or "allreduce",
)
def test_modules_in_a_chain_are_trained_as_by_one_process(comm, changes):
    config = Config(**{"batch": 8, "epochs": 2, **changes})
    ours = run(config, comm, dataset=clouds(), model=chain())
    reference = run(config.alone(comm.size), dataset=clouds(), model=chain())
    assert largest(ours, reference) <= 1e-12


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["chain", "module"])
def test_modules_compute_in_narrow_types(comm, kind, dtype):
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4))
    seen = []
    net[0].register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    model = TorchModel(net) if kind == "module" else Sequential([TorchLayer(net)], (12,), "float32")
    config = Config(dtype=dtype, batch=16, epochs=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(config, comm, dataset=clouds(), model=model)
    assert result.history[-1].loss < 0.8 * result.history[0].loss
    assert {array.dtype for array in result.parameters.values()} == {np.dtype("float32")}
    assert set(seen[1:]) == {getattr(torch, dtype) if kind == "module" else torch.float32}
