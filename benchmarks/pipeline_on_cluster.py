"""Pipelines over slow networks: steps of padded layers, beside what the simulator says.

As root, in less than eight minutes::

    python benchmarks/pipeline_on_cluster.py FOLDER

Four hosts of a rank each are joined by a switch that delays (``tests/cluster``): 5 and 15 ms one
way, 1 Gbit/s.  For each delay, messages are swept (``mpicoll bench``) and fitted (``mpicoll fit``)
in launches of their own; then come the steps of `pipeline.py network`, whose simulation takes the
costs of messages from the fit.  FOLDER keeps sweeps and models, and what is there is not measured
again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import inter_intra_on_cluster as network

ROOT = network.ROOT

import launch  # noqa: E402 - network has said where
from cluster import hosts  # noqa: E402

RANKS, DELAYS, RATE = 4, (5e-3, 15e-3), 1e9
#: Messages of these lengths, one after the other.
SWEEP = (
    *("allreduce", "-a", "recursive_doubling", "--start", "window", "--ranks", "2,4"),
    *("-n", "5", "-w", "1", "--point-time", "1", "-s", "1K,4K,32K,64K,256K,512K"),
)


def run(delay: float, *words: object) -> None:
    """A launch on hosts of their own."""
    with hosts.Cluster(RANKS, delay, RATE, 1) as cluster:
        command = [*launch.mpirun(), "-n", str(RANKS), sys.executable, *map(str, words)]
        beside = {"PYTHONPATH": str(ROOT), "MPICOLL_FALLBACK": "silent"}
        cluster.run(command, environment=beside, timeout=300).check_returncode()


def fitted(folder: Path, delay: float) -> Path:
    """The model of a network, fitted to a sweep."""
    name = f"{1e3 * delay:g}ms"
    sweep, model = folder / f"{name}.jsonl", folder / f"{name}.json"
    if not model.exists():
        for number in range(2):
            kept = ("--launch-id", number, "--resume", "-J", sweep)
            run(delay, "-m", "mpicoll", "bench", *SWEEP, *kept)
        with hosts.Cluster(RANKS, delay, RATE, 1) as cluster:
            network.fit(cluster, sweep, model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where sweeps and models are kept")
    parser.add_argument("--launches", type=int, default=1)
    options = network.asked(parser)
    folder = options.folder
    for delay in DELAYS:
        model = fitted(folder, delay)
        for number in range(options.launches):
            own = ("--model", model, "--delay", delay, "--launch", number + 1)
            run(delay, ROOT / "benchmarks" / "pipeline.py", "network", *own)


if __name__ == "__main__":
    main()
