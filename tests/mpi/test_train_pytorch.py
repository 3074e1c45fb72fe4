"""PyTorch modules: trained by the loop and in a loop of one's own, as in one process."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from clouds import clouds
from float64 import Config
from mpi4py import MPI

from mpicoll.train import DistributedSampler, TrainingError, run
from mpicoll.train.data.sampler import Sampler

if MPI.COMM_WORLD.size > 3:
    pytest.skip("3 ranks and fewer show it", allow_module_level=True)
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from mpicoll.train.pytorch import DistributedOptimizer, TorchModel, arrays  # noqa: E402

pytestmark = pytest.mark.mpi


def module(seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4))
    return net.double()


def worst(ours, reference):
    return max(np.abs(a - b).max() for a, b in zip(ours.values(), reference.values(), strict=True))


def tensors():
    data = clouds()
    return torch.from_numpy(data.train_inputs), torch.from_numpy(data.train_targets)


def alone(steps, optimizer_of, batch=8):
    """The same steps in this process, by PyTorch alone."""
    net = module()
    optimizer, (inputs, labels) = optimizer_of(net.parameters()), tensors()
    for number, samples in enumerate(s for e in (1, 2) for s in Sampler(101, batch).batches(e)):
        if number == steps:
            break
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs[samples]), labels[samples]).backward()
        optimizer.step()
    return net


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def test_the_loop_trains_a_module(comm):
    config = Config(optimizer="adam", lr=0.01, batch=8, epochs=1, bucket=200, check_every=1)
    config = replace(config, evaluate_train=True)
    net = module(comm.rank)
    before = dict(net.named_parameters())
    result = run(config, comm, dataset=clouds(), model=TorchModel(net))
    reference = arrays(alone(13, adam))
    assert worst(result.parameters, reference) <= 1e-12
    assert worst(arrays(net), reference) <= 1e-12
    assert all(before[name] is parameter for name, parameter in net.named_parameters())
    assert all(np.shares_memory(arrays(net)[n], result.parameters[n]) for n in before)
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(net(tensors()[0]), tensors()[1])
    assert result.history[0].train["loss"] == pytest.approx(float(losses), rel=1e-12)


def test_a_module_as_a_model_accumulates_and_takes_no_samples(comm):
    config = Config(batch=2, accumulate=4, epochs=1, model="mlp")
    ours = run(config, comm, dataset=clouds(), model=TorchModel(module(), (12,)))
    whole = replace(config, batch=8, accumulate=1)
    assert (
        worst(ours.parameters, run(whole, dataset=clouds(), model=TorchModel(module())).parameters)
        < 1e-12
    )


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd"])
def test_statistics_of_a_module_are_those_of_all_ranks(comm, folder, strategy):
    def normed(seed):
        torch.manual_seed(seed)
        layers = torch.nn.Linear(12, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 4)
        return torch.nn.Sequential(*layers).double()

    config = Config(batch=16, epochs=2, strategy=strategy)
    net, data = normed(comm.rank), clouds(96)
    whole = run(config, comm, dataset=data, model=TorchModel(net))
    assert list(whole.buffers) == [
        f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    ]
    assert whole.buffers["1.num_batches_tracked"] == 12
    everyone = comm.allgather({name: array.tobytes() for name, array in whole.buffers.items()})
    assert everyone == [everyone[0]] * comm.size
    for name, tensor in net.named_buffers():
        assert np.array_equal(tensor.numpy(), whole.buffers[name])
    # Its mean is that of all samples so far, whichever rank had them.
    hidden = data.train_inputs @ arrays(net)["0.weight"].T + arrays(net)["0.bias"]
    assert np.abs(whole.buffers["1.running_mean"] - hidden.mean(axis=0)).max() < 0.5

    first = replace(config, epochs=1, checkpoint=str(folder))
    run(first, comm, dataset=data, model=TorchModel(normed(comm.rank)))
    resumed = replace(config, resume=str(folder))
    found = run(resumed, comm, dataset=data, model=TorchModel(normed(7)))
    assert all(found.buffers[n].tobytes() == whole.buffers[n].tobytes() for n in whole.buffers)


@pytest.mark.parametrize("options", [{}, {"bucket": 200, "algorithm": "ring"}])
def test_a_loop_of_ones_own(comm, options):
    net = module(comm.rank)
    optimizer = DistributedOptimizer(adam(net.parameters()), net, comm, **options)
    inputs, labels = tensors()
    for mine, total in DistributedSampler(101, 8, comm).batches(1):
        optimizer.weight = len(mine) / total
        if len(mine):
            torch.nn.functional.cross_entropy(net(inputs[mine]), labels[mine]).backward()
        optimizer.step()
    assert worst(arrays(net), arrays(alone(13, adam))) <= 1e-12
    assert optimizer.exposed >= 0 and optimizer.hidden >= 0
    optimizer.free()


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_every_sum_of_gradients_is_counted(comm, algorithm):
    ours = comm.Dup()
    net = module()
    optimizer = DistributedOptimizer(adam(net.parameters()), net, ours, algorithm=algorithm)
    before = sums(ours)
    for _ in range(20):
        net(tensors()[0]).sum().backward()
        optimizer.step()
    # Each step sums its buckets, here one, and a header.
    assert sums(ours) - before == 20 * 2
    optimizer.free()
    ours.Free()


def sums(ours):
    return sum(n for (name, _), n in ours.stats().calls.items() if name == "allreduce")


def test_accumulated_passes_are_one_batch(comm):
    nets = module(), module()
    inputs, labels = tensors()
    mine = np.array_split(np.arange(48), comm.size)[comm.rank]
    for net, cuts in zip(nets, (1, 4), strict=True):
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net, comm)
        optimizer.weight = 1.0
        parts = np.array_split(mine, cuts)
        for number, part in enumerate(parts):
            loss = (
                torch.nn.functional.cross_entropy(net(inputs[part]), labels[part], reduction="sum")
                / 48
            )
            if number < len(parts) - 1:
                with optimizer.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        optimizer.free()
    assert worst(arrays(nets[0]), arrays(nets[1])) <= 1e-14


def test_a_second_pass_without_no_sync_is_refused(comm):
    net = module()
    optimizer = DistributedOptimizer(adam(net.parameters()), net, comm)
    inputs, labels = tensors()
    torch.nn.functional.cross_entropy(net(inputs), labels).backward()
    with pytest.raises(RuntimeError, match=r"a second gradient of 2\.\w+ before step\(\)"):
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
    optimizer.step()
    optimizer.free()


def test_parameters_without_a_part_count_as_zeros(comm):
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(3, 2)})
    before = copy.deepcopy(net.state_dict())
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net, comm)
    net["a"](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert torch.equal(net["b"].weight, before["b.weight"])
    assert torch.allclose(net["a"].bias, before["a.bias"] - 0.1)
    optimizer.free()


@pytest.mark.mpi(min_size=2)
def test_modules_that_differ_are_refused(comm):
    net = torch.nn.Linear(3, 2 + comm.rank)
    with pytest.raises(
        TrainingError, match=r"parameter weight is float32 of shape \(2, 3\) on rank"
    ):
        DistributedOptimizer(adam(net.parameters()), net, comm)


def test_modules_without_parameters_are_refused():
    with pytest.raises(ValueError, match="no parameter of the module is trained"):
        TorchModel(torch.nn.ReLU())
