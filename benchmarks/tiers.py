"""What early exits save: bytes and accuracy of one device a sample, and of four that see quarters.

    python benchmarks/tiers.py train FOLDER [--dataset mnist5k] [--data FOLDER] [--epochs 12]
    mpirun -n 5 python benchmarks/tiers.py serve FOLDER

`train` trains three networks in one process: devices that see all of a sample and decide alone;
four devices that see a quarter each and send scores, with and without `device_dropout`. `serve`
lets the test set through tiers at several thresholds, and once more with each of the four devices
missing. Wanted: at most a point of accuracy for 20 times fewer bytes than raw samples with one
device, 3 times fewer with four; with `device_dropout` a missing device costs at most 5 points.
`serve` adds lines to results/training/tiers.jsonl.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import training  # noqa: E402 - threads first
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train import Config, data, run  # noqa: E402
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

THRESHOLDS = [-1.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0]
#: With a device missing.
_FEW = [-1.0, 0.2]
#: Share of the parts that are left out in training.
_DROPOUT = 0.4
#: Seconds that a device may be late: processors may be busy with other things.
_PATIENCE = 20.0


def cloud(channels: int) -> list[Layer]:
    """The layers of the last tier, after features of some width."""
    layers: list[Layer] = [Convolution(channels), BatchNorm(), ReLU(), MaxPool()]
    return [*layers, Reshape(), Dense(128), ReLU(), Dense(10, gain=1.0)]


def alone(image: tuple[int, ...]) -> EarlyExits:
    """A device that sees all, its exit, and a cloud; 14 x 14 x 2 signs go up."""
    device = [Reshape((28, 28, 1)), Convolution(8), BatchNorm(), ReLU(), MaxPool()]
    device += [Convolution(2), BatchNorm(), Binarize()]
    head = (Reshape(), Dense(128), ReLU(), Dense(10, gain=1.0))
    return EarlyExits([*device, *cloud(16)], [Exit(head, len(device))], image, "float32")


def quarters(image: tuple[int, ...], dropout: float) -> EarlyExits:
    """Four devices that see a quarter each; 7 x 7 x 2 signs of each go up."""
    see = EachPart(
        (Convolution(8), BatchNorm(), MaxPool(), Convolution(2), BatchNorm(), Binarize())
    )
    scores = EachPart((Reshape(), Dense(32), ReLU(), Dense(10, gain=1.0)))
    return EarlyExits(
        [Reshape((28, 28, 1)), Split(2, 2), see, Aggregate("concat", 1, dropout), *cloud(16)],
        [Exit((scores, Aggregate("mean", 1, dropout)), after=3)],
        image,
        "float32",
    )


#: What is trained, by the shape of an image.
CASES: dict[str, Callable[[tuple[int, ...]], EarlyExits]] = {
    "alone": alone,
    "quarters": lambda image: quarters(image, _DROPOUT),
    "quarters, no dropout": lambda image: quarters(image, 0.0),
}


def train(args: argparse.Namespace) -> None:
    """All cases, one after the other."""
    image = data.load(args.dataset, args.data).shape
    for name in args.cases:
        config = Config(
            dataset=args.dataset,
            data=args.data,
            epochs=args.epochs,
            batch=128,
            optimizer="adam",
            lr=0.003,
            schedule="cosine",
            check_every=0,
            checkpoint=str(Path(args.folder, name)),
        )
        start = time.perf_counter()
        result = run(config, model=CASES[name](image), quiet=True)
        print(f"{name}: {result.test} in {time.perf_counter() - start:.0f} s", flush=True)


def serve_all(args: argparse.Namespace) -> None:
    """The test set, through the tiers of each case."""
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    counts = {"device": comm.size - 1, "cloud": 1}
    for name in args.cases:
        folder = Path(args.folder, name)
        missing: list[int | None] = [None, *(range(4) if name != "alone" else ())]
        for device in missing:
            faults = {} if device is None else {device: Fault(silent=0)}
            thresholds = THRESHOLDS if device is None else _FEW
            for outcome in serve(
                *(folder, comm, counts, thresholds), patience=_PATIENCE, faults=faults
            ):
                report(comm, name, outcome, device)


def main() -> None:
    """One of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["train", "serve"])
    parser.add_argument("folder", help="where checkpoints are, or are written")
    parser.add_argument("--dataset", default="mnist5k")
    parser.add_argument("--data", help="folder of the idx files")
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    train(args) if args.what == "train" else serve_all(args)


def report(comm: Any, case: str, outcome: Any, missing: int | None) -> None:
    """Print and keep an outcome."""
    if comm.rank:
        return
    facts = {
        "case": case,
        "missing": missing,
        "threshold": outcome.threshold,
        "accuracy": round(outcome.accuracy, 4),
        "answered": outcome.answered,
        "late": outcome.late,
        "leaving": outcome.leaving,
        "bytes": outcome.payload,
        "formula": outcome.formula,
        "raw": outcome.raw,
        "ratio": outcome.raw / outcome.payload if outcome.payload else None,
        "median_seconds": outcome.seconds.get("median"),
    }
    training.write("tiers", facts)


if __name__ == "__main__":
    main()
