"""How much of the communication hides behind the backward pass, on two emulated hosts.

    python benchmarks/overlap.py [--launches 5] [--rate 50e6] [--delay 1e-4]

Two ranks, one on each host (tests/cluster; needs root and iproute2), a convolutional net, buckets
of 64 KiB. Of every launch, medians in seconds of the slower rank:

* `all`: all buckets reduced, while nothing is computed; `last`: those alone that are ready last;
* `behind`: from the moment the first bucket is ready to the end of the backward pass;
* `exposed`: a step less the same step with communication off.

At most min(all - last, behind) can hide; `hidden` is the share of it that does, (all - exposed)
over it. Wanted: 0.7, the median of the launches. Adds a line a launch to
results/training/overlap.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import training  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
BUCKET, BATCH, WARM, LIMIT = 64 * 1024, 512, 3, 300.0


def measure(steps: int) -> dict[str, float]:
    """On two ranks: the medians; the same on both."""
    from mpi4py import MPI

    import mpicoll
    from mpicoll.train import Config, data
    from mpicoll.train.driver.named import make_model
    from mpicoll.train.exchange import transfers
    from mpicoll.train.exchange.buckets import Exchange
    from mpicoll.train.models.flat import Flat
    from mpicoll.train.ranks.workers import AllReduceWorkers
    from mpicoll.train.strategies.gradients import Gradients

    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    config = Config(dataset="mnist5k", model="conv", dtype="float32", batch=BATCH, algorithm="ring")
    dataset = data.load("mnist5k").astype("float32")
    model, workers = make_model(config, dataset), AllReduceWorkers(comm, "ring")
    weights = Flat(model.initial_parameters(0))
    source = Gradients(config, dataset, model, weights, comm.rank, comm.size)
    make = transfers.summing(None)
    exchange = Exchange(workers, source.flat, BUCKET, 1, make)
    # The first layer's gradients come last, and with them every bucket that has any of them.
    reached = max(end for name, (_, end) in weights.spans.items() if name.startswith("layer1."))
    length = max(end for start, end in exchange.bounds if start < reached)
    ending = Exchange(workers, Flat({"last": np.zeros(length, np.float32)}), BUCKET, 1, make)
    first, end = exchange.bounds[0]
    samples = np.arange(BATCH)

    def step(ready: Callable[[str], object], finish: Callable[[], None]) -> float:
        exchange.begin()
        comm.Barrier()
        start = time.perf_counter()
        source.compute(weights.views, samples, 1, ready)
        finish()
        return time.perf_counter() - start

    def behind() -> float:
        missing, moments = end - first, [0.0]

        def ready(name: str) -> None:
            nonlocal missing
            low, high = weights.spans[name]
            missing -= max(0, min(end, high) - max(first, low))
            if not missing:
                moments[0] = moments[0] or time.perf_counter()

        step(ready, lambda: None)
        return time.perf_counter() - moments[0]

    def alone(buckets: Exchange, names: list[str]) -> float:
        buckets.begin()
        comm.Barrier()
        start = time.perf_counter()
        for name in names:
            buckets.ready(name)
        buckets.finish()
        return time.perf_counter() - start

    ways: dict[str, Callable[[], float]] = {
        "on": lambda: step(exchange.ready, exchange.finish),
        "off": lambda: step(lambda name: None, lambda: None),
        "behind": behind,
        "all": lambda: alone(exchange, list(reversed(weights.views))),
        "last": lambda: alone(ending, ["last"]),
    }
    times = np.array([[way() for way in ways.values()] for _ in range(steps + WARM)][WARM:])
    slowest = np.empty_like(times)
    comm.Allreduce(times, slowest, op=MPI.MAX)
    found = dict(zip(ways, np.median(slowest, axis=0).tolist(), strict=True))
    found["exposed"] = found["on"] - found["off"]
    most = min(found["all"] - found["last"], found["behind"])
    found["hidden"] = (found["all"] - found["exposed"]) / most
    return found | {"buckets": len(exchange.bounds), "rank": comm.rank}


def launch_one(options: argparse.Namespace) -> dict[str, Any]:
    """What two ranks on two hosts find."""
    sys.path[:0] = [str(ROOT / "tests")]
    import launch
    from cluster import hosts

    with hosts.Cluster(2, options.delay, options.rate) as cluster:
        words = [*launch.mpirun(), "-n", "2", sys.executable, __file__, "--measure"]
        environment = {"PYTHONPATH": str(ROOT)}
        if options.thread:
            environment["MPICOLL_PROGRESS"] = "thread"
        done = cluster.run(
            [*words, "--steps", str(options.steps)],
            environment=environment,
            stdout=subprocess.PIPE,
            timeout=LIMIT,
        )
        done.check_returncode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Launch after launch; or, on a rank, the measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rate", type=float, default=50e6, help="bit/s of each link")
    parser.add_argument("--delay", type=float, default=1e-4, help="seconds from host to host")
    parser.add_argument("--thread", action="store_true", help="a thread moves buckets on")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        found = measure(options.steps)
        if found.pop("rank") == 0:
            print(json.dumps(found), flush=True)
        return
    shares = []
    for _ in range(options.launches):
        load = os.getloadavg()[0]
        found = launch_one(options)
        shares.append(found["hidden"])
        link = {"rate": options.rate, "delay": options.delay, "thread": options.thread}
        training.write("overlap", {**link, **found, "load_before": round(load, 1)})
    print(f"hidden: {statistics.median(shares):.2f}; wanted: at least 0.7", flush=True)


if __name__ == "__main__":
    main()
