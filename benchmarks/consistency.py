"""Test accuracy on Fashion-MNIST by consistency model, beside all-reduce.

    mpirun -n 4 python benchmarks/consistency.py allreduce
    mpirun -n 5 python benchmarks/consistency.py ssp:3 adaptive:1,4

Four workers, and a server where there is one; an MLP of 256, 128 and 100 hidden values, all 60,000
pictures, float32, momentum with a cosine schedule.
Adds lines to results/training/consistency.jsonl.
"""

from __future__ import annotations

import argparse
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import training  # noqa: E402 - threads first
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train import Config, data, run  # noqa: E402


def main() -> None:
    """Train each way with each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    dataset = data.load("fashion-mnist").astype("float32")
    for way in options.ways:
        servers: dict[str, Any] = {}
        if way != "allreduce":
            servers = {"strategy": "parameter_server", "servers": "1", "consistency": way}
        for seed in range(options.seeds):
            config = Config(
                dataset="fashion-mnist",
                model="mlp",
                hidden=(256, 128, 100),
                dtype="float32",
                algorithm="ring",
                optimizer="momentum",
                lr=0.05,
                batch=128,
                schedule="cosine",
                epochs=options.epochs,
                seed=seed,
                workers=4,
                **servers,
            )
            result = run(config, comm, dataset=dataset, quiet=True)
            if comm.rank == 0:
                facts = {"way": way, "seed": seed, "epochs": options.epochs}
                facts["accuracy"] = [round(epoch.test["accuracy"], 4) for epoch in result.history]
                facts["seconds"] = round(sum(epoch.seconds for epoch in result.history), 1)
                training.write("consistency", facts)


if __name__ == "__main__":
    main()
