"""What a search finds and what it costs: ASHA against random search, and groups against one.

    python benchmarks/search.py quality [--dataset fashion-mnist] [--data FOLDER] [--seeds 0 1 2]
    mpirun -n 5 python benchmarks/search.py speed

`quality`: 27 trials of an MLP, epochs 9, eta 3, first rung 1, a space in which a third of the
learning rates cannot be learnt with; ASHA, random search of whole runs, and random search that is
stopped when it has spent ASHA's epochs. Best validation accuracy, and epochs, for each seed.

`speed`: 16 trials of mnist5k on groups of one rank, one less than ranks, each epoch padded by a
sleep of a second, so that cores do not decide; seconds from the first trial to the end of the last.
Compare it with one group, `mpirun -n 2`.

Adds lines to results/training/search.jsonl.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import training  # noqa: E402 - threads first

from mpicoll.train.search import SearchOptions, Space, crews, search, trials  # noqa: E402

#: Seconds that each epoch of `speed` sleeps.
_PAD = 1.0
#: Trials, and epochs of a whole run.
_TRIALS, _EPOCHS = 27, 9
#: A validation accuracy that is hardly better than chance, with ten classes.
_NOTHING = 0.2


def space(dataset: str, data: str | None, epochs: int, seed: int = 0) -> Space:
    """An MLP; of learning rates up to 1000, times momentum, more than a third learn nothing."""
    run: dict[str, Any] = {"dataset": dataset, "model": "mlp", "epochs": epochs, "batch": 256}
    run |= {"seed": seed, "check_every": 0}
    if data is not None:
        run["data"] = data
    ranges = {
        "lr": {"log": [1e-4, 1000.0]},
        "momentum": {"uniform": [0.0, 0.95]},
        "hidden": {"choice": [[32], [64], [128]]},
    }
    return Space.of({"run": run, "space": ranges})


def found(wanted: Space, method: str, seed: int, **more: Any) -> list[dict[str, Any]]:
    """The records of a search."""
    with tempfile.TemporaryDirectory() as folder:
        options = SearchOptions(method=method, trials=_TRIALS, seed=seed, out=folder, **more)
        search(wanted, options)
        return trials.read(Path(folder) / trials.FILE)


def best(records: list[dict[str, Any]], epochs: int | None = None) -> float:
    """The best validation accuracy of trials that were told of.

    Stopped after `epochs`, also that of the trial under way, as far as it has come.
    """
    spent, scores = 0, [0.0]
    for record in records:
        if record["event"] == "epoch":
            spent += 1
            if spent == epochs:
                return max(*scores, record["validation"]["accuracy"])
        elif record["event"] == "told" and record["score"] is not None:
            scores.append(record["score"])
    return max(scores)


def learnt_nothing(records: list[dict[str, Any]]) -> int:
    """Trials that have failed, or are hardly better than chance after all their epochs."""
    told = [record for record in records if record["event"] == "told"]
    return sum(record["score"] is None or record["score"] < _NOTHING for record in told)


def quality(args: argparse.Namespace) -> None:
    """ASHA and random search on the same trials, seed by seed."""
    for seed in args.seeds:
        wanted = space(args.dataset, args.data, _EPOCHS, seed)
        start = time.perf_counter()
        asha = found(wanted, "asha", seed)
        everything = found(wanted, "random", seed)
        spent, whole = trials.epochs_spent(asha), trials.epochs_spent(everything)
        training.write(
            "search",
            {
                "what": "quality",
                "dataset": args.dataset,
                "seed": seed,
                "learnt_nothing": learnt_nothing(everything),
                "failed": len(trials.failures(everything)),
                "asha": best(asha),
                "random": best(everything),
                "random_stopped": best(everything, spent),
                "epochs": spent,
                "random_epochs": whole,
                "seconds": round(time.perf_counter() - start, 1),
            },
        )


def speed() -> None:
    """Padded epochs on groups of one rank."""
    from mpi4py import MPI

    import mpicoll

    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    said_of = crews.said_of

    def slowly(epoch: Any) -> dict[str, Any]:
        time.sleep(_PAD)
        return said_of(epoch)

    crews.said_of = slowly
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    options = SearchOptions(method="random", trials=16, out=f"{folder}/found")
    search(space("mnist5k", None, epochs=4), options, comm)
    if comm.rank == 0:
        records = trials.read(Path(options.out) / trials.FILE)
        begin = next(record["seconds"] for record in records if record["event"] == "asked")
        end = max(record["seconds"] for record in records if record["event"] == "told")
        facts = {"what": "speed", "groups": comm.size - 1, "pad": _PAD}
        facts |= {"epochs": trials.epochs_spent(records), "seconds": round(end - begin, 2)}
        training.write("search", facts)
        shutil.rmtree(folder)


def main() -> None:
    """One of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["quality", "speed"])
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data", help="folder of the idx files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    quality(args) if args.what == "quality" else speed()


if __name__ == "__main__":
    main()
