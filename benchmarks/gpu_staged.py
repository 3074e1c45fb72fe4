"""All-reduce of arrays on GPUs through the host, and training on them, one rank a GPU.

mpirun -n 2 python benchmarks/gpu_staged.py --json staged.jsonl

Each finished point is printed and written at once; first all that the GPUs do by the transport that
they agree on, then through the host.  A time of an all-reduce is from a barrier to the end of the
work on the stream, of the slowest rank; of several, the median.

Training is on 1, 2, 4, ... GPUs, and on all: with as many samples a GPU (weak scaling), or with
``--global-batch`` as many on all of them together (strong scaling).  Its seconds are means of the
ranks, as the host sees them, without the first epoch: computing; communicating while nothing is
computed, waiting for slower ranks included; loading samples; and ``other``, updates and what is
between steps.  What is put on a stream is counted where it is waited for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import cupy
import gpu_records
import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.train import Config, Dataset, Step, run

WORLD = MPI.COMM_WORLD
#: Steps of an epoch.
STEPS = 20
PHASES = ("loading", "compute", "exposed", "waiting", "hidden")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    sizes = [1 << k for k in range(16, 29, 2)]
    parser.add_argument("--transports", nargs="+", default=["auto", "staged"])
    parser.add_argument("--sizes", type=int, nargs="*", default=sizes)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--steps", type=int, default=60, help="of training; 0: none")
    parser.add_argument("--batch", type=int, default=8192, help="of a GPU")
    parser.add_argument("--global-batch", type=int, help="of all GPUs together, instead")
    gpu_records.options(parser)
    options = parser.parse_args()
    gpu_records.use_own_gpu()
    records = gpu_records.Records(options)
    records.describe()
    for transport in options.transports:
        comm = communicator(transport, WORLD)
        found = comm.gpu_transport()
        for nbytes in options.sizes:
            records.write({"transport": found, **allreduce(comm, nbytes, options.repetitions)})
        comm.Free()
        for size in sizes_up_to(WORLD.size) if options.steps else ():
            batch = options.global_batch
            batch = options.batch if batch is None else -(-batch // size)
            point = training(size, transport, options.steps, batch)
            records.write({"transport": found, **point})


def communicator(transport: str, ranks: MPI.Intracomm) -> mpicoll.Intracomm:
    """Ranks whose arrays in device memory go this way, if it can be had."""
    os.environ["MPICOLL_GPU"] = transport
    return mpicoll.Intracomm(ranks.Dup())


def slowest(call: Callable[[], object]) -> float:
    """Seconds until a call is complete on all ranks' GPUs."""
    WORLD.Barrier()
    start = time.perf_counter()
    call()
    cupy.cuda.get_current_stream().synchronize()
    return WORLD.allreduce(time.perf_counter() - start, MPI.MAX)


def allreduce(comm: mpicoll.Intracomm, nbytes: int, repetitions: int) -> dict[str, object]:
    """A float32 sum in place."""
    values = cupy.random.default_rng(WORLD.rank).integers(-99, 99, nbytes // 4).astype("f4")
    expected = values.get()
    WORLD.Allreduce(MPI.IN_PLACE, expected)
    array = values.copy()
    comm.Allreduce(MPI.IN_PLACE, array)
    wrong = WORLD.allreduce(int((array != cupy.asarray(expected)).sum()))
    seconds = []
    for _ in range(repetitions):
        array[...] = values
        seconds.append(slowest(lambda: comm.Allreduce(MPI.IN_PLACE, array)))
    median = statistics.median(seconds)
    return {
        "collective": "allreduce",
        "ranks": WORLD.size,
        "bytes": nbytes,
        "seconds": median,
        "least": min(seconds),
        "most": max(seconds),
        "algbw_GBps": nbytes / median / 1e9,
        "wrong": wrong,
    }


def sizes_up_to(most: int) -> list[int]:
    """Powers of two, and the largest."""
    return [*(1 << k for k in range(most.bit_length()) if 1 << k < most), most]


def training(size: int, transport: str, steps: int, batch: int) -> dict[str, object]:
    """Samples a second of an MLP on the first ranks' GPUs; the others wait."""
    part = WORLD.Split(0 if WORLD.rank < size else MPI.UNDEFINED)
    point: dict[str, object] = {}
    if part != MPI.COMM_NULL:
        comm = communicator(transport, part)
        point = trained(comm, steps, batch)
        comm.Free()
        part.Free()
    WORLD.Barrier()
    return point


def trained(comm: mpicoll.Intracomm, steps: int, batch: int) -> dict[str, object]:
    """Train for so many steps, and an epoch before in which kernels are compiled."""
    generator = np.random.default_rng(0)
    samples = STEPS * batch * comm.size
    inputs = generator.standard_normal((samples, 784), "f4")
    labels = generator.integers(0, 10, samples)
    data = Dataset("noise", 10, inputs, labels, inputs[:100], labels[:100])
    config = Config(
        model="mlp", hidden=(2048, 2048), dtype="float32", device="gpu", batch_per_rank=batch,
        epochs=steps // STEPS + 1, check_every=0, lr=1e-3, algorithm=None,
    )  # fmt: skip
    phases = dict.fromkeys(PHASES, 0.0)

    def add(step: Step) -> None:
        for name in phases if step.epoch > 1 else ():
            phases[name] += getattr(step, name)

    history = run(config, comm, dataset=data, on_step=add, quiet=True).history[1:]
    own = np.array([*phases.values(), *(epoch.seconds for epoch in history)])
    MPI.Intracomm(comm).Allreduce(MPI.IN_PLACE, own)
    own /= comm.size
    mean = dict(zip(PHASES, own.tolist(), strict=False))
    epochs = own[len(PHASES) :]
    seconds = float(epochs.sum())
    communication = mean["exposed"] + mean["waiting"]
    return {
        "training": "mlp 784-2048-2048-10, float32, all-reduce",
        "ranks": comm.size,
        "batch_per_rank": batch,
        "steps": len(history) * STEPS,
        "samples_per_second": len(history) * samples / seconds,
        "of_epochs": (samples / epochs).tolist(),
        "seconds": seconds,
        "compute_seconds": mean["compute"],
        "communication_seconds": communication,
        "waiting_seconds": mean["waiting"],
        "loading_seconds": mean["loading"],
        "other_seconds": seconds - mean["compute"] - communication - mean["loading"],
        "hidden_seconds": mean["hidden"],
        "loss": history[-1].loss,
    }


if __name__ == "__main__":
    main()
