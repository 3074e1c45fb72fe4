"""What a search finds and what it costs: ASHA against random search, and groups against one.

    python benchmarks/search.py quality [--dataset fashion-mnist] [--data FOLDER] [--seeds 3]
    mpirun -n 5 python benchmarks/search.py speed

`quality`: 27 trials of an MLP, epochs 9, eta 3, first rung 1, a space in which a third of the
learning rates cannot be learnt with; ASHA, random search of whole runs, and random search that is
stopped when it has spent ASHA's epochs. Best validation accuracy, and epochs, for each seed.

`speed`: groups of one rank, one less than ranks, each epoch padded by a sleep, so that cores do not
decide; seconds of the search. Compare it with one group, `mpirun -n 2`.

Adds lines to results/search.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

from mpicoll.train.search import SearchOptions, Space, crews, search, trials  # noqa: E402 - threads first

RESULTS = Path(__file__).parent / "results" / "search.jsonl"
_PAD = 0.4


def space(dataset: str, data: str | None, epochs: int = 9) -> Space:
    """An MLP; of learning rates up to 1000 by momentum, more than a third learn nothing."""
    run: dict[str, Any] = {"dataset": dataset, "model": "mlp", "epochs": epochs, "batch": 128}
    run |= {"check_every": 0}
    if data is not None:
        run["data"] = data
    ranges = {
        "lr": {"log": [1e-4, 1000.0]},
        "momentum": {"uniform": [0.0, 0.95]},
        "hidden": {"choice": [[64], [128], [256, 128]]},
    }
    return Space.of({"run": run, "space": ranges})


def found(wanted: Space, method: str, seed: int, **more: Any) -> list[dict[str, Any]]:
    """The records of a search."""
    with tempfile.TemporaryDirectory() as folder:
        options = SearchOptions(method=method, trials=27, seed=seed, out=folder, **more)
        search(wanted, options)
        return trials.read(Path(folder) / trials.FILE)


def best(records: list[dict[str, Any]], epochs: int | None = None) -> float:
    """The best validation accuracy that was told of before so many epochs were spent."""
    spent, most = 0, 0.0
    for record in records:
        spent += record["event"] == "epoch"
        if epochs is not None and spent > epochs:
            break
        if record["event"] == "told" and record["score"] is not None:
            most = max(most, record["score"])
    return most


def quality(args: argparse.Namespace) -> None:
    """ASHA and random search on the same trials."""
    wanted = space(args.dataset, args.data)
    lines = []
    for seed in range(args.seeds):
        asha = found(wanted, "asha", seed)
        everything = found(wanted, "random", seed)
        spent, whole = trials.epochs_spent(asha), trials.epochs_spent(everything)
        facts = {
            "what": "quality",
            "dataset": args.dataset,
            "seed": seed,
            "failed": len(trials.failures(everything)),
            "asha": best(asha),
            "random": best(everything),
            "random_stopped": best(everything, spent),
            "epochs": spent,
            "random_epochs": whole,
        }
        # As many as all trials would take, had none failed on its way.
        facts["share_of_full"] = spent / (27 * 9)
        lines.append(facts)
        report(facts)
    for name in ("asha", "random", "random_stopped", "share_of_full"):
        print(f"mean {name}: {statistics.fmean(line[name] for line in lines):.4f}")


def speed(args: argparse.Namespace) -> None:
    """Padded epochs on groups of one rank."""
    from mpi4py import MPI

    import mpicoll

    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    said_of = crews.said_of

    def slowly(epoch: Any) -> dict[str, Any]:
        time.sleep(_PAD)
        return said_of(epoch)

    crews.said_of = slowly
    wanted = space(args.dataset, args.data, epochs=4)
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    options = SearchOptions(method="random", trials=16, out=f"{folder}/found")
    start = time.perf_counter()
    result = search(wanted, options, comm)
    if comm.rank == 0:
        seconds = time.perf_counter() - start
        groups = comm.size - 1
        facts = {"what": "speed", "groups": groups, "pad": _PAD, "epochs": result.epochs}
        report({**facts, "seconds": seconds})
        shutil.rmtree(folder)


def report(facts: dict[str, Any]) -> None:
    """Print and keep a result."""
    line = json.dumps(facts)
    print(line, flush=True)
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def main() -> None:
    """One of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["quality", "speed"])
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data", help="folder of the idx files")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    quality(args) if args.what == "quality" else speed(args)


if __name__ == "__main__":
    main()
