"""What early exits save: bytes and accuracy of one device a sample, and of four that see quarters.

    mpirun -n 5 python benchmarks/tiers.py [--dataset fashion-mnist] [--data FOLDER] [--epochs 12]

Trains three networks on all ranks: devices that see all of a sample and decide alone; four devices
that see a quarter each and send scores, with and without `device_dropout`. Then lets the test set
through tiers at several thresholds, and once more with each of the four devices missing. Wanted:
at most a point of accuracy for 20 times fewer bytes than raw samples with one device, 3 times fewer
with four; with `device_dropout` a missing device costs at most 5 points. Adds lines to
results/tiers.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

from mpi4py import MPI  # noqa: E402 - threads first

import mpicoll  # noqa: E402
from mpicoll.train import Config, run  # noqa: E402
from mpicoll.train.exits import Fault, serve  # noqa: E402
from mpicoll.train.models import (  # noqa: E402
    Aggregate,
    BatchNorm,
    Binarize,
    Convolution,
    Dense,
    EachPart,
    EarlyExits,
    Exit,
    Layer,
    MaxPool,
    ReLU,
    Reshape,
    Split,
)

RESULTS = Path(__file__).parent / "results" / "tiers.jsonl"
THRESHOLDS = [-1.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0]


def cloud(channels: int) -> list[Layer]:
    """The layers of the last tier, after features of some width."""
    layers: list[Layer] = [Convolution(channels), BatchNorm(), ReLU(), MaxPool()]
    return [*layers, Reshape(), Dense(128), ReLU(), Dense(10, gain=1.0)]


def alone() -> EarlyExits:
    """A device that sees all, its exit, and a cloud; 14 x 14 x 2 signs go up."""
    device = [Reshape((28, 28, 1)), Convolution(16), BatchNorm(), ReLU(), MaxPool()]
    device += [Convolution(2), BatchNorm(), Binarize()]
    head = (Reshape(), Dense(128), ReLU(), Dense(10, gain=1.0))
    return EarlyExits([*device, *cloud(32)], [Exit(head, len(device))], (28, 28), "float32")


def quarters(dropout: float) -> EarlyExits:
    """Four devices that see a quarter each; 7 x 7 x 2 signs of each go up."""
    see = EachPart(
        (Convolution(8), BatchNorm(), MaxPool(), Convolution(2), BatchNorm(), Binarize())
    )
    scores = EachPart((Reshape(), Dense(32), ReLU(), Dense(10, gain=1.0)))
    return EarlyExits(
        [Reshape((28, 28, 1)), Split(2, 2), see, Aggregate("concat", 1, dropout), *cloud(32)],
        [Exit((scores, Aggregate("mean", 1, dropout)), after=3)],
        (28, 28),
        "float32",
    )


def main() -> None:
    """Train, serve, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data", help="folder of the idx files")
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    four, one = {"device": 4, "cloud": 1}, {"device": comm.size - 1, "cloud": 1}
    cases = {"alone": (alone(), one), "quarters": (quarters(0.2), four)}
    cases["quarters, no dropout"] = quarters(0.0), four
    for name, (model, counts) in cases.items():
        config = Config(
            dataset=args.dataset,
            data=args.data,
            epochs=args.epochs,
            batch=128,
            optimizer="adam",
            lr=0.003,
            schedule="cosine",
            check_every=0,
            checkpoint=f"{folder}/{name}",
        )
        shaped = model
        if args.dataset == "mnist5k":  # whose images have an axis of channels
            layers = model.layers[1:]
            exits = [Exit(e.head, e.after - 1, e.weight) for e in model.exits]
            shaped = EarlyExits(layers, exits, (28, 28, 1), "float32")
        run(config, comm, model=shaped)
        for outcome in serve(f"{folder}/{name}", comm, counts, THRESHOLDS):
            report(comm, name, outcome, None)
        if counts == four:
            for device in range(4):
                faults = {device: Fault(silent=0)}
                for outcome in serve(f"{folder}/{name}", comm, counts, [-1, 0.5], faults=faults):
                    report(comm, name, outcome, device)
    if comm.rank == 0:
        shutil.rmtree(folder)


def report(comm: Any, case: str, outcome: Any, missing: int | None) -> None:
    """Print and keep an outcome."""
    if comm.rank:
        return
    facts = {
        "case": case,
        "missing": missing,
        "threshold": outcome.threshold,
        "accuracy": round(outcome.accuracy, 4),
        "leaving": outcome.leaving,
        "bytes": outcome.payload,
        "formula": outcome.formula,
        "raw": outcome.raw,
        "ratio": outcome.raw / outcome.payload if outcome.payload else None,
        "median_seconds": outcome.seconds.get("median"),
    }
    line = json.dumps(facts)
    print(line, flush=True)
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()
