"""Whether the planner's pick is the best one where a mesh with stages wins: over a slow network.

As root, in less than ten minutes::

    python benchmarks/plans_on_cluster.py FOLDER

Four hosts with a rank each are joined by a switch that delays and limits (``tests/cluster``); the
links are so slow that summing gradients, or sharing layers, takes longer than waiting for other
stages.  What messages cost is swept (``mpicoll bench``) and fitted (``mpicoll fit``), and
layers are profiled, each in a launch of its own.  Then the planner's pick, its best plans of other
meshes and the plans of `plans.py` are measured.  FOLDER keeps sweep, model and profile, and what is
there is not measured again.  At the end it says how far predictions and the pick are off.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import inter_intra_on_cluster as network

ROOT = network.ROOT
sys.path.append(str(ROOT / "docs"))

from cluster import hosts  # noqa: E402 - network has said where
from plan_figures import judged, lines_of  # noqa: E402

RATE, WIDTH, BEST = 2.5e6, 128, 6
PLACE = f"{network.RANKS} hosts, {RATE / 1e6:g} Mbit/s"
SWEEP = (
    *("allreduce,allgather,reduce_scatter", "--start", "window", "--ranks", "2,4"),
    *("-n", "3", "-w", "1", "--point-time", "0.5", "-s", "8,2K,16K,128K"),
)


def prepare(folder: Path) -> None:
    """The model of the network, and the profile of the layers."""
    sweep, model, layers = (folder / name for name in ("plans.jsonl", "plans.json", "layers.json"))
    if not model.exists():
        with network.place(RATE) as cluster:
            network.run(cluster, "-m", "mpicoll", "bench", *SWEEP, "--resume", "-J", sweep)
            network.fit(cluster, sweep, model)
    if not layers.exists():
        with network.place(None) as cluster:
            plans(cluster, "profile", layers)


def plans(cluster: hosts.Cluster, *words: object, **environment: str) -> None:
    """A launch of `plans.py`."""
    script = ROOT / "benchmarks" / "plans.py"
    network.run(cluster, script, *words, "--width", WIDTH, **environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where sweep, model and profile are kept")
    parser.add_argument("--launches", type=int, default=1)
    options = network.asked(parser)
    folder = options.folder
    prepare(folder)
    model = folder / "plans.json"
    for number in range(1, options.launches + 1):
        with network.place(RATE) as cluster:
            words = ("steps", folder / "layers.json", "--costs", model, "--best", BEST)
            there = ("--place", PLACE, "--launch", number)
            environment = {"MPICOLL_MODEL": str(model), "MPICOLL_PROGRESS": "thread"}
            plans(cluster, *words, *there, **environment)
    print(judged(lines_of(PLACE)))


if __name__ == "__main__":
    main()
