"""How long workers of different speed take to a target loss, by consistency model.

    mpirun -n 5 python benchmarks/stragglers.py [--seeds 5]

Four workers and a server train softmax regression on the digits of scikit-learn. Each step is
padded by sleeping to 20 ms for its even share of the samples, so that the cores of this machine do
not matter. `transient`: each step takes three times as long with probability 1/4; `permanent`: each
step of one worker does. Workers that are not slow for good look at the loss over the training set
in their padding; the time is that at which the first sees the target. Adds lines to
results/training/stragglers.jsonl.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import training  # noqa: E402
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train import MLP, Config, Dataset, data, run  # noqa: E402

WORKERS, BATCH, PAD, SLOW, TARGET = 4, 64, 0.020, 3.0, 0.45


class Padded(MLP):
    """Softmax regression whose steps take as long as they are told to."""

    def __init__(self, dataset: Dataset, rank: int, stragglers: str, seed: int) -> None:
        super().__init__((dataset.features, 10))
        self._whole = dataset.train_inputs[:], dataset.train_targets[:]
        self._rank, self._kind = rank, stragglers
        self._generator = np.random.default_rng((seed, rank))
        self.reached = math.inf

    def push_gradients(self, parameters: Any, batch: Any, push: Any) -> float:
        """See `Model`."""
        start = time.perf_counter()
        length = PAD * len(batch.targets) * WORKERS / BATCH
        last = self._rank == WORKERS - 1
        if self._kind == "transient":
            length *= SLOW if self._generator.random() < 0.25 else 1.0
        elif last:
            length *= SLOW
        if self.reached == math.inf and not last:
            losses, _ = self.losses_and_outputs(parameters, *self._whole)
            if losses.mean() <= TARGET:
                self.reached = time.time()
        found: dict[str, Any] = {}
        loss = super().push_gradients(parameters, batch, found.__setitem__)
        time.sleep(max(0.0, start + length - time.perf_counter()))
        for name, gradient in found.items():
            push(name, gradient)
        return loss


def seconds(comm: mpicoll.Intracomm, way: str, stragglers: str, seed: int) -> float:
    """Until the target, on rank 0."""
    parts = data.load("digits").parts
    flat = {part: (rows[:].reshape(-1, 64), wanted[:]) for part, (rows, wanted) in parts.items()}
    whole = Dataset("digits", 10, *flat["train"], *flat["test"])
    times = 40  # one epoch is enough: workers are not brought together before the target
    dataset = Dataset(
        "digits, repeated",
        10,
        np.tile(flat["train"][0], (times, 1)),
        np.tile(flat["train"][1], times),
        *flat["test"],
    )
    common: dict[str, Any] = {"optimizer": "sgd", "lr": 0.3, "batch": BATCH, "epochs": 1}
    if way == "balance":
        config = Config(balance="speed", seed=seed, check_every=0, **common)
    else:
        config = Config(
            strategy="parameter_server", servers="1", consistency=way, seed=seed, **common
        )
    group = comm.Split(comm.rank == WORKERS and way == "balance", comm.rank)
    reached = math.inf
    start = time.time()
    if group.size > 1:
        model = Padded(whole, comm.rank, stragglers, seed)
        run(
            config,
            group,
            dataset=dataset,
            model=model,
            on_step=lambda _: model.reached < math.inf,
            quiet=True,
        )
        reached = model.reached
    group.Free()
    return comm.allreduce(reached, MPI.MIN) - comm.allreduce(start, MPI.MAX)


def main() -> None:
    """Each way with each kind of stragglers; medians over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=["bsp", "ssp:3", "async", "balance"])
    parser.add_argument("--kinds", nargs="+", default=["transient", "permanent"])
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    if comm.size != WORKERS + 1:
        raise SystemExit(f"start {WORKERS + 1} ranks: {WORKERS} workers and a server")
    for stragglers in options.kinds:
        for way in options.ways:
            found = [seconds(comm, way, stragglers, seed) for seed in range(options.seeds)]
            if comm.rank == 0:
                facts = {"stragglers": stragglers, "way": way, "target": TARGET}
                facts |= {"seconds": [round(t, 3) for t in found]}
                training.write(
                    "stragglers", {**facts, "median": round(statistics.median(found), 3)}
                )


if __name__ == "__main__":
    main()
