"""mpicoll's data-parallel training of a PyTorch module against DistributedDataParallel on gloo.

    mpirun -n 2 python benchmarks/vs_ddp.py [--model mlp conv] [--batch 64] [--steps 400]
        [--json results.jsonl]

Three copies of one network learn from the same samples in the same launch, one thread a rank: by
`mpicoll.train.pytorch.DistributedOptimizer`, by DistributedDataParallel, and by each rank alone
without any exchange.  They take turns step by step, from a common start, in another order in each
round; the time of a step is that of the slowest rank, to the end of the update.  Exposed
communication is what a step takes longer than alone.  Reported are medians, the median of the
ratios of mpicoll's to DDP's in a round with its 95 % interval, and how far the weights are apart in
the end.  Both have their own default buckets.  Needs PyTorch (pip install torch).
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np
import pairs
import torch
import vs_gloo
from mpi4py import MPI
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import mpicoll
from mpicoll.bench import environment, stats
from mpicoll.bench.start import Barrier
from mpicoll.train.pytorch import DistributedOptimizer, arrays

WARM = 20


def network(name: str) -> tuple[torch.nn.Module, tuple[int, ...]]:
    """A network for pictures of 28 x 28 pixels, and the shape of a sample."""
    nn = torch.nn
    torch.manual_seed(0)
    if name == "mlp":
        sizes = (784, 256, 128, 100, 10)
        layers: list[torch.nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1]), (784,)
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*convolutions, *head), (1, 28, 28)


def ways(net: torch.nn.Module, ours: mpicoll.Intracomm) -> dict[str, Callable[..., None]]:
    """A step by each way: a function of inputs and labels; and the networks they change."""

    def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)

    nets = {name: copy.deepcopy(net) for name in ("mpicoll", "ddp", "alone")}
    optimizer = DistributedOptimizer(sgd(nets["mpicoll"]), nets["mpicoll"], ours)
    wrapped = DistributedDataParallel(nets["ddp"])
    optimizers = {"ddp": sgd(wrapped), "alone": sgd(nets["alone"])}

    def by_mpicoll(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        functional.cross_entropy(nets["mpicoll"](inputs), labels).backward()
        optimizer.step()

    def by_torch(name: str, module: torch.nn.Module) -> Callable[..., None]:
        def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
            functional.cross_entropy(module(inputs), labels).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()

        return step

    found = {"mpicoll": by_mpicoll, "ddp": by_torch("ddp", wrapped)}
    found["alone"] = by_torch("alone", nets["alone"])
    found["apart"] = lambda: apart(nets["mpicoll"], nets["ddp"])
    return found


def apart(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference of an array, relative to its largest value."""
    left, right = arrays(one), arrays(other)
    return max(float(np.abs(left[n] - right[n]).max() / np.abs(right[n]).max()) for n in left)


def measure(name: str, options: argparse.Namespace, ours: mpicoll.Intracomm) -> dict[str, Any]:
    """Times of all ways for a network; the same on all ranks."""
    comm, start = MPI.COMM_WORLD, Barrier(MPI.COMM_WORLD.Dup())
    net, shape = network(name)
    steps = ways(net, ours)
    distance = steps.pop("apart")
    generator = torch.Generator().manual_seed(comm.Get_rank())
    names, times = list(steps), np.zeros((options.steps, len(steps)))
    others = pairs.Others(ours)
    for number in range(-WARM, options.steps):
        inputs = torch.rand(options.batch, *shape, generator=generator)
        labels = torch.randint(0, 10, (options.batch,), generator=generator)
        for turn in range(len(names)):
            column = (number + turn) % len(names)
            start()
            begin = time.perf_counter()
            steps[names[column]](inputs, labels)
            if number >= 0:
                times[number, column] = time.perf_counter() - begin
    slowest = np.empty_like(times)
    comm.Allreduce(times, slowest, MPI.MAX)
    mine, ddp, alone = 1e6 * np.median(slowest, axis=0)
    ratios = stats.summarise(list(slowest[:, 0] / slowest[:, 1]))
    return {
        "model": name,
        "parameters": sum(a.size for a in arrays(net).values()),
        "batch_per_rank": options.batch,
        "steps": options.steps,
        "mpicoll_us": mine,
        "ddp_us": ddp,
        "alone_us": alone,
        "ratio": ratios.median,
        "low": ratios.low,
        "high": ratios.high,
        "exposed_mpicoll_us": mine - alone,
        "exposed_ddp_us": ddp - alone,
        "apart": distance(),
        "others": others.share(),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=("mlp", "conv"), default=["mlp", "conv"])
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank and step")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", help="append a line a network to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    vs_gloo.join(MPI.COMM_WORLD)
    ours = mpicoll.Intracomm(MPI.COMM_WORLD.Dup())
    found = environment.gather(MPI.COMM_WORLD)
    facts = {key: found[key] for key in pairs.KEPT} | {"torch": torch.__version__}
    for name in options.model:
        point = facts | measure(name, options, ours)
        if MPI.COMM_WORLD.Get_rank() == 0:
            pairs.keep(point, options.json)
            print(
                f"{name}: a step {point['mpicoll_us']:.0f} us, DDP {point['ddp_us']:.0f}, alone "
                f"{point['alone_us']:.0f}; ratio {point['ratio']:.2f} ({point['low']:.2f}-"
                f"{point['high']:.2f}); exposed {point['exposed_mpicoll_us']:.0f}, DDP "
                f"{point['exposed_ddp_us']:.0f}; weights apart {point['apart']:.1e}; others' share "
                f"{point['others']:.2f}",
                flush=True,
            )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
