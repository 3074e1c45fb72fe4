"""The backend "mpicoll" of torch.distributed on CUDA tensors against NCCL's, in one launch.

    mpirun -n 2 python benchmarks/gpu_torch.py [--largest 256M] [--samples 21] [--steps 30]
        [--widths 2048 5120] [--json results.jsonl]

A rank a GPU.  ``dist.all_reduce`` of the same bytes (float32, sums, in place) takes turns on a
group of each backend.  Calls follow each other on the current stream; a time is that of one call,
from the first of them to when the GPU is done, of the slowest rank.  Then a step of
DistributedDataParallel and of FSDP2, forward to update, on either backend, for perceptrons of the
widths given, and how far the parameters of both are apart after those steps.  Reported are
minima, medians, and the median of the ratios of neighbours with its 95 % interval.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from typing import Any

import pairs
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_backend import say, summary

import mpicoll
import mpicoll.torch  # registers the backend
from mpicoll.base.sizes import parse_size
from mpicoll.bench import environment

SECONDS = 2e-3  # of a sample, about
CALLS = 200  # of a sample, at most


def main() -> None:
    options = _parse()
    rank = MPI.COMM_WORLD.Get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("mpicoll", init_method="mpi://")
    groups = {"mpicoll": dist.new_group(), "nccl": dist.new_group(backend="nccl")}
    comm = mpicoll.Intracomm(MPI.COMM_WORLD.Dup())
    facts = {k: v for k, v in environment.gather(comm).items() if k in pairs.KEPT}
    facts |= {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    say(comm, options, facts | {"gpu": torch.cuda.get_device_name(), "commit": options.commit})
    for size in pairs.sizes("allreduce", options.largest):
        say(comm, options, all_reduce(comm, groups, size, options.samples))
    for width in options.widths:
        for what in (ddp, fsdp2):
            say(comm, options, steps(comm, groups, what, width, options.steps))
    dist.destroy_process_group()


def all_reduce(
    comm: mpicoll.Intracomm, groups: dict[str, Any], size: int, samples: int
) -> dict[str, Any]:
    """Times of an all-reduce of so many bytes, in microseconds, and whether its sums are right."""
    tensor = torch.zeros(size // 4, device="cuda")
    ways: dict[str, Callable[[], object]] = {
        name: lambda group=group: dist.all_reduce(tensor, group=group)
        for name, group in groups.items()
    }
    wrong = []
    for call in ways.values():
        tensor.copy_(torch.arange(tensor.numel(), device="cuda") % 1000 + comm.rank)
        call()
        others = sum(range(comm.size))
        sums = (torch.arange(tensor.numel(), device="cuda") % 1000) * comm.size + others
        wrong.append(comm.allreduce(int((tensor != sums).sum())))
    tensor.zero_()
    once = comm.allreduce(max(sample(comm, call, 3) for call in ways.values()), MPI.MAX)
    calls = max(1, min(CALLS, int(SECONDS / once)))
    times = {name: [] for name in ways}
    for number in range(samples + 2):
        for name, call in ways.items():
            taken = sample(comm, call, calls)
            if number >= 2:
                times[name].append(taken)
    what = {"what": "all_reduce", "size": size, "calls": calls, "wrong": wrong}
    return summary(comm, what, times)


def sample(comm: mpicoll.Intracomm, call: Callable[[], object], calls: int) -> float:
    """Seconds of one of several calls in a row on this rank, until its GPU is done."""
    torch.cuda.synchronize()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls


class Steps:
    """A perceptron in training."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor) -> None:
        self.model, self._inputs = model, inputs
        self._optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def __call__(self) -> None:
        self.model(self._inputs).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def ddp(net: nn.Module, group: Any) -> nn.Module:
    """The model on all ranks, its gradients averaged."""
    return DistributedDataParallel(net, process_group=group)


def fsdp2(net: nn.Module, group: Any) -> nn.Module:
    """The model in parts, one a rank; each layer is gathered before it computes."""
    mesh = DeviceMesh.from_group(group, "cuda")
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def steps(
    comm: mpicoll.Intracomm,
    groups: dict[str, Any],
    what: Callable[..., Any],
    width: int,
    count: int,
) -> dict[str, Any]:
    """Times of a step, in microseconds, and the largest difference of the parameters after all."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width, device="cuda") for _ in range(4)]
    net = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    parameters = sum(p.numel() for p in net.parameters())
    torch.manual_seed(1 + comm.rank)
    inputs = torch.randn(512, width, device="cuda")
    ways = {name: Steps(what(copy.deepcopy(net), group), inputs) for name, group in groups.items()}
    times = {name: [] for name in ways}
    for number in range(count + 5):
        for name, step in ways.items():
            taken = sample(comm, step, 1)
            if number >= 5:  # DDP makes its buckets anew after the first
                times[name].append(taken)
    pairs_of = zip(*(way.model.parameters() for way in ways.values()), strict=True)
    apart = max((local(a) - local(b)).abs().max().item() for a, b in pairs_of)
    apart = comm.allreduce(apart, MPI.MAX)
    facts = {"what": what.__name__, "parameters": parameters, "apart": f"{apart:.1e}"}
    return summary(comm, facts, times)


def local(parameter: Any) -> torch.Tensor:
    """What this rank holds of a parameter."""
    return getattr(parameter, "to_local", lambda: parameter)().detach()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--largest", type=parse_size, default=256 << 20, help="bytes, as 64M")
    parser.add_argument("--samples", type=int, default=21, help="of each backend and size")
    parser.add_argument("--steps", type=int, default=30, help="of training, on each backend")
    parser.add_argument("--widths", type=int, nargs="*", default=[1600, 5000])
    parser.add_argument("--commit", default=os.environ.get("GPU_COMMIT", ""))
    parser.add_argument("--json", help="append lines to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
