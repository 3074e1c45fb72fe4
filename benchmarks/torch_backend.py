"""The backend "mpicoll" of torch.distributed against gloo, in one launch.

    mpirun -n 2 python benchmarks/torch_backend.py [--largest 64M] [--samples 15] [--steps 30]
        [--width 512] [--json results.jsonl]

Three ways to all-reduce the same bytes (float32, sums, in place) take turns: ``dist.all_reduce`` on
a group of each backend, and ``comm.Allreduce`` of a NumPy array, which tells what PyTorch and the
backend add.  Then a step of DistributedDataParallel, forward to update, on either backend, for a
perceptron whose parameters ``--width`` sets (512: 2 million).  A time is that of the slowest rank.
Reported are minima, medians, and the median of the ratios of neighbours with its 95 % interval.
The first line is what PyTorch and the backend add to ``comm.Allreduce`` where calls follow each
other.  gloo's messages go through the loopback device if all ranks share a host.  Needs PyTorch
(pip install torch).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np
import pairs
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mpicoll
import mpicoll.torch  # registers the backend
from mpicoll.base.sizes import parse_size
from mpicoll.bench import environment, stats
from mpicoll.bench.start import Barrier

BACKENDS = ("mpicoll", "gloo")


def main() -> None:
    options = _parse()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("mpicoll", init_method="mpi://")
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    comm = mpicoll.Intracomm(MPI.COMM_WORLD.Dup())
    start = Barrier(comm)
    facts = {k: v for k, v in environment.gather(comm).items() if k in pairs.KEPT}
    facts |= {"torch": torch.__version__, **pairs.probes(comm)}
    say(comm, options, facts)
    say(comm, options, overhead(comm, start, options.samples))
    for size in pairs.sizes("allreduce", options.largest):
        say(comm, options, all_reduce(comm, start, groups, size, options.samples))
    say(comm, options, ddp(comm, start, groups, options.width, options.steps))
    dist.destroy_process_group()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--largest", type=parse_size, default=64 << 20, help="bytes, as 64M")
    parser.add_argument("--samples", type=int, default=15, help="of each way and size")
    parser.add_argument("--steps", type=int, default=30, help="of training, on each backend")
    parser.add_argument("--width", type=int, default=512, help="of the perceptron's layers")
    parser.add_argument("--json", help="append lines to this file")
    return parser.parse_args()


def all_reduce(
    comm: mpicoll.Intracomm, start: Barrier, groups: dict[str, Any], size: int, samples: int
) -> dict[str, Any]:
    """Times of an all-reduce of so many bytes, in microseconds."""
    tensor, array = torch.zeros(size // 4), np.zeros(size // 4, np.float32)
    ways: dict[str, Callable[[], object]] = {
        name: lambda group=group: dist.all_reduce(tensor, group=group)
        for name, group in groups.items()
    }
    ways["Allreduce"] = lambda: comm.Allreduce(MPI.IN_PLACE, array)
    for call in ways.values():
        call()
    once = comm.allreduce(
        max(pairs.sample(call, start, 3, False) for call in ways.values()), MPI.MAX
    )
    calls = max(1, min(pairs.CALLS, int(3 * pairs.SECONDS / once)))
    times = {name: [] for name in ways}
    for _ in range(samples):
        for name, call in ways.items():
            times[name].append(pairs.sample(call, start, calls, False))
    return summary(comm, {"what": "all_reduce", "size": size}, times)


def overhead(comm: mpicoll.Intracomm, start: Barrier, samples: int) -> dict[str, Any]:
    """What PyTorch and the backend add to an all-reduce of 8 bytes, in microseconds.

    By 200 calls in a row of either: beside those of gloo both would begin with cold caches.
    """
    tensor, array = torch.zeros(2), np.zeros(2, np.float32)
    ways: dict[str, Callable[[], object]] = {
        "mpicoll": lambda: dist.all_reduce(tensor),
        "Allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, array),
    }
    times = {name: [] for name in ways}
    for number in range(samples + 1):
        for name, call in ways.items():
            taken = pairs.sample(call, start, 200, False)
            if number:
                times[name].append(taken)
    slowest = np.empty((2, samples))
    comm.Allreduce(np.array(list(times.values())), slowest, MPI.MAX)
    more = stats.summarise(list(1e6 * (slowest[0] - slowest[1])))
    found = {"what": "overhead", "size": 8, "ranks": comm.Get_size(), "us": more.median}
    return found | {
        "min_us": 1e6 * float(slowest[0].min() - slowest[1].min()),
        "low": more.low,
        "high": more.high,
    }


class Steps:
    """A perceptron in training on one group."""

    def __init__(self, net: nn.Module, group: Any) -> None:
        self._model = DistributedDataParallel(copy.deepcopy(net), process_group=group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.01)
        self._inputs = torch.randn(32, 784)

    def __call__(self) -> None:
        self._model(self._inputs).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def ddp(
    comm: mpicoll.Intracomm, start: Barrier, groups: dict[str, Any], width: int, steps: int
) -> dict[str, Any]:
    """Times of a step of DDP, in microseconds."""
    torch.manual_seed(0)
    sizes = [784, *[width * 2] * 2, width, 10]
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    net = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    ways = {name: Steps(net, group) for name, group in groups.items()}
    times = {name: [] for name in ways}
    for number in range(steps + 5):
        for name, step in ways.items():
            taken = pairs.sample(step, start, 1, False)
            if number >= 5:  # DDP makes its buckets anew after the first
                times[name].append(taken)
    count = sum(p.numel() for p in net.parameters())
    return summary(comm, {"what": "ddp_step", "parameters": count}, times)


def summary(
    comm: mpicoll.Intracomm, what: dict[str, Any], times: dict[str, list[float]]
) -> dict[str, Any]:
    """What is reported of times on each rank; the same on all."""
    mine = np.array(list(times.values()))
    slowest = np.empty_like(mine)
    comm.Allreduce(mine, slowest, MPI.MAX)
    ratio = stats.summarise(list(slowest[0] / slowest[1]))
    found = {**what, "ranks": comm.Get_size()}
    for name, row in zip(times, slowest, strict=True):
        found |= {f"{name}_min_us": 1e6 * row.min(), f"{name}_us": 1e6 * float(np.median(row))}
    least = slowest.min(axis=1)
    return {
        **found,
        "ratio_min": float(least[0] / least[1]),
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
    }


def say(comm: mpicoll.Intracomm, options: argparse.Namespace, line: dict[str, Any]) -> None:
    """Print a line, and append it to the file."""
    if comm.Get_rank() == 0:
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()}
        print(json.dumps(rounded), flush=True)
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(rounded) + "\n")


if __name__ == "__main__":
    main()
