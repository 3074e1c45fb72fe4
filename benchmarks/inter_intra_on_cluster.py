"""The table of `inter_intra.py` on one node and on emulated networks, and where ways cross.

As root, on a machine that is quiet::

    python benchmarks/inter_intra_on_cluster.py FOLDER

Four ranks of one host share memory; then each has a host of its own, joined by a switch that
delays and limits (``tests/cluster``).  What messages cost there is swept (``mpicoll bench``) and
fitted (``mpicoll fit``) in launches of their own; so is the profile of the layers.  At last the
rate of the links is bisected: at the lower one the pipeline is faster, at the higher one tensor
parallelism.  FOLDER keeps sweep, model and profile, and what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import launch  # noqa: E402
from cluster import hosts  # noqa: E402

RANKS, DELAY, RATE = 4, 1e-3, 200e6
SWEEP = (
    *("allreduce,allgather,reduce_scatter", "--start", "window", "--ranks", "2,4"),
    *("-n", "5", "-w", "1", "--point-time", "1", "-s", "8,1K,8K,32K,128K,512K,1M"),
)
#: Rates between which tensor parallelism and the pipeline cross, and how near they are brought.
SLOWEST, FASTEST, NEAR = 50e6, 800e6, 1.2
CROSSING = "tensor", "1F1B ahead"
RESULTS = ROOT / "benchmarks" / "results" / "training" / "inter_intra.jsonl"


@contextmanager
def place(rate: float | None) -> Iterator[hosts.Cluster]:
    """Hosts of a rank each; without a rate, one host of all ranks."""
    if rate is None:
        with hosts.Cluster(1, DELAY, RATE, RANKS) as cluster:
            yield cluster
        return
    with hosts.Cluster(RANKS, DELAY, rate, 1) as cluster:
        yield cluster


def run(cluster: hosts.Cluster, *words: object, **environment: str) -> None:
    """A launch of all ranks."""
    command = [*launch.mpirun(), "-n", str(RANKS), sys.executable, *map(str, words)]
    beside = {"PYTHONPATH": str(ROOT), "MPICOLL_FALLBACK": "silent", **environment}
    cluster.run(command, environment=beside, timeout=900).check_returncode()


def fit(cluster: hosts.Cluster, sweep: Path, model: Path) -> None:
    """Fit a model to a sweep, on the first host."""
    words = [sys.executable, "-m", "mpicoll", "fit", str(sweep), "-o", str(model)]
    environment = {"PYTHONPATH": str(ROOT)}
    cluster.run(words, environment=environment, timeout=600).check_returncode()


def asked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What the command line says, with a folder that is there; ends where hosts cannot be made."""
    options = parser.parse_args()
    if reason := hosts.missing():
        parser.exit(2, f"{reason}\n")
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


def script(cluster: hosts.Cluster, *words: object, **environment: str) -> None:
    """A launch of `inter_intra.py`."""
    run(cluster, ROOT / "benchmarks" / "inter_intra.py", *words, **environment)


def prepare(folder: Path) -> None:
    """The profile of the layers, and the models of one node and of the network."""
    layers = folder / "layers.json"
    for name, rate in (("node", None), ("network", RATE)):
        sweep, model = folder / f"{name}.jsonl", folder / f"{name}.json"
        if model.exists():
            continue
        for number in range(2):
            kept = ("--launch-id", number, "--resume", "-J", sweep)
            with place(rate) as cluster:
                run(cluster, "-m", "mpicoll", "bench", *SWEEP, *kept)
        with place(rate) as cluster:
            fit(cluster, sweep, model)
    if not layers.exists():
        with place(None) as cluster:
            script(cluster, "profile", layers)


def steps(folder: Path, rate: float | None, launch_number: int, ways: str | None = None) -> None:
    """Measure steps in a launch."""
    name = "node" if rate is None else "network"
    words: list[object] = ["steps", folder / "layers.json", "--launch", launch_number]
    words += ["--place", "one node" if rate is None else f"{rate / 1e6:g} Mbit/s"]
    words += ["--costs", folder / f"{name}.json"]
    if rate is not None:
        words += ["--alpha", DELAY, "--beta", 8 / rate]
    if ways is not None:
        words += ["--ways", ways]
    with place(rate) as cluster:
        model = {"MPICOLL_MODEL": str(folder / f"{name}.json"), "MPICOLL_PROGRESS": "thread"}
        script(cluster, *words, **model)


def count(folder: Path) -> None:
    """Count what ranks send and hold."""
    rings = {f"MPICOLL_{name}": "ring" for name in ("ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER")}
    with place(None) as cluster:
        script(cluster, "count", folder / "layers.json", MPICOLL_TRACE="/mnt/shared/trace", **rings)


def seconds(way: str, rate: float) -> float:
    """What steps of a way take at a rate: the median of the launches."""
    lines = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    own: list[dict[str, Any]] = [line for line in lines if line.get("way") == way]
    return median(line["seconds"] for line in own if line.get("place") == f"{rate / 1e6:g} Mbit/s")


def bisect(folder: Path) -> tuple[float, float]:
    """Two rates, near each other: at the lower one the pipeline is faster, at the other tensor."""
    low, high = SLOWEST, FASTEST

    def tensor_wins(rate: float) -> bool:
        steps(folder, rate, 1, ";".join(CROSSING))
        tensor, pipeline = (seconds(way, rate) for way in CROSSING)
        return tensor < pipeline

    if tensor_wins(low) or not tensor_wins(high):
        raise SystemExit(f"they do not cross between {low / 1e6:g} and {high / 1e6:g} Mbit/s")
    while high / low > NEAR:
        middle = round((low * high) ** 0.5, -6)
        if tensor_wins(middle):
            high = middle
        else:
            low = middle
    return low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where sweep, model and profile are kept")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--only", choices=("prepare", "count", "node", "network", "crossing"))
    options = asked(parser)
    folder = options.folder
    wanted = [options.only] if options.only else ["prepare", "count", "node", "network", "crossing"]
    if "prepare" in wanted:
        prepare(folder)
    if "count" in wanted:
        count(folder)
    for number in range(1, options.launches + 1):
        for name, rate in (("node", None), ("network", RATE)):
            if name in wanted:
                steps(folder, rate, number)
    if "crossing" in wanted:
        low, high = bisect(folder)
        print(f"they cross between {low / 1e6:g} and {high / 1e6:g} Mbit/s")


if __name__ == "__main__":
    main()
