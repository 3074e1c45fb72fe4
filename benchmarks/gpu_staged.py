"""All-reduce of arrays on GPUs through the host, and training on them, one rank a GPU.

mpirun -n 2 python benchmarks/gpu_staged.py --json staged.jsonl

Each finished point is printed and written at once.  A time is from a barrier to the end of the work
on the stream, of the slowest rank; of several, the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import cupy
import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.train import Config, Dataset, Epoch, run

WORLD = MPI.COMM_WORLD
#: Steps of an epoch.
STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1 << k for k in range(16, 29, 2)])
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--steps", type=int, default=60, help="of training; 0: none")
    parser.add_argument("--batch", type=int, default=8192, help="of a GPU")
    parser.add_argument("--json", help="a file to which each point is appended")
    options = parser.parse_args()
    cupy.cuda.Device(WORLD.rank % cupy.cuda.runtime.getDeviceCount()).use()

    def write(**point: object) -> None:
        if WORLD.rank == 0:
            print(json.dumps(point), flush=True)
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps(point) + "\n")

    write(
        ranks=WORLD.size,
        device=cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        mpi=MPI.Get_library_version().splitlines()[0],
        mpicoll=mpicoll.__version__,
        cupy=cupy.__version__,
    )
    for transport in ("staged", "auto"):
        os.environ["MPICOLL_GPU"] = transport
        comm = mpicoll.Intracomm(WORLD.Dup())
        for nbytes in options.sizes:
            write(transport=comm.gpu_transport(), **allreduce(comm, nbytes, options.repetitions))
        if options.steps:
            for point in training(comm, options.steps, options.batch):
                write(transport=comm.gpu_transport(), **point)
        comm.Free()


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
        "bytes": nbytes,
        "seconds": median,
        "least": min(seconds),
        "most": max(seconds),
        "algbw_GBps": nbytes / median / 1e9,
        "wrong": wrong,
    }


def training(comm: mpicoll.Intracomm, steps: int, batch: int) -> list[dict[str, object]]:
    """Samples a second of an MLP on one GPU and on all, with as many samples a GPU."""
    points = []
    alone = mpicoll.Intracomm(WORLD.Split(WORLD.rank))
    for one in (alone, comm):
        epochs = trained(one, steps, batch) if one is comm or WORLD.rank == 0 else None
        WORLD.Barrier()
        if epochs is None:
            continue
        measured = epochs[1:]  # the first has compiled kernels
        seconds = sum(epoch.seconds for epoch in measured)
        computed = sum(sum(epoch.compute) for epoch in measured) / one.size
        points.append(
            {
                "training": "mlp 784-2048-2048-10, float32, all-reduce",
                "ranks": one.size,
                "batch_per_rank": batch,
                "steps": len(measured) * STEPS,
                "samples_per_second": len(measured) * STEPS * batch * one.size / seconds,
                "compute_seconds": computed,
                "communication_seconds": sum(e.seconds * e.communication for e in measured),
            }
        )
    alone.Free()
    return points


def trained(comm: mpicoll.Intracomm, steps: int, batch: int) -> tuple[Epoch, ...]:
    """Epochs of a few steps, one more than it takes for so many."""
    generator = np.random.default_rng(0)
    samples = STEPS * batch * comm.size
    inputs = generator.standard_normal((samples, 784), "f4")
    labels = generator.integers(0, 10, samples)
    data = Dataset("noise", 10, inputs, labels, inputs[:100], labels[:100])
    config = Config(
        model="mlp", hidden=(2048, 2048), dtype="float32", device="gpu", batch_per_rank=batch,
        epochs=steps // STEPS + 1, check_every=0, lr=1e-3,
    )  # fmt: skip
    return run(config, comm, dataset=data).history


if __name__ == "__main__":
    main()
