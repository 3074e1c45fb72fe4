"""Asynchronous SGD by learning rate and number of workers, unscaled and scaled by staleness.

    for workers in 1 4 8; do mpirun -n $((workers + 1)) python benchmarks/async_sgd.py; done

Plain SGD on Fashion-MNIST (all of it), an MLP of 256, 128 and 100 hidden values, 64 samples in each
push, one server. `full`: each push is an update at the whole learning rate; `staleness`: divided by
one plus the updates made since its parameters were pulled. Adds lines to
results/training/async.jsonl.
"""

from __future__ import annotations

import argparse

from mpicoll.train import threads

threads.limit_blas_threads()

import training  # noqa: E402 - threads first
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train import Config, Epoch, TrainingError, data, run  # noqa: E402


def main() -> None:
    """Train with each learning rate and each way to scale it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.3])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    dataset = data.load("fashion-mnist").astype("float32")
    for lr in options.rates:
        for push_rate in ("full", "staleness"):
            config = Config(
                dataset="fashion-mnist",
                model="mlp",
                hidden=(256, 128, 100),
                dtype="float32",
                optimizer="sgd",
                lr=lr,
                batch_per_rank=64,
                epochs=options.epochs,
                seed=options.seed,
                strategy="parameter_server",
                servers="1",
                consistency="async",
                push_rate=push_rate,
                skip_limit=1_000_000,
            )
            seen: list[Epoch] = []
            diverged = False
            try:
                run(config, comm, dataset=dataset, on_epoch=seen.append, quiet=True)
            except TrainingError as error:
                if "not finite" not in str(error):
                    raise
                diverged = True  # what is not a number is taken for the first of ten classes
            if comm.rank == 0:
                accuracy = [round(epoch.test["accuracy"], 4) for epoch in seen]
                accuracy += [0.1] * (options.epochs - len(accuracy))
                facts = {"workers": comm.size - 1, "lr": lr, "push_rate": push_rate}
                facts |= {"accuracy": accuracy, "diverged": diverged, "seed": options.seed}
                training.write("async", facts)


if __name__ == "__main__":
    main()
