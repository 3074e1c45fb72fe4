"""What the death of a rank costs a training, and what it costs to be ready for one.

    python benchmarks/survival.py delay [--launches 20]
    python benchmarks/survival.py price [--rounds 10]
    python benchmarks/survival.py curve

`delay`: milliseconds from SIGKILL of a rank of four to the next step that the others have finished;
another rank in each launch. `price`: processor seconds of a step with `survive` over those without,
in one launch, where both take turns; all ranks together, the median of the rounds. `curve`: the
loss of each step of a run in which two ranks are killed, and of the same run undisturbed. All are
of a multilayer perceptron on mnist5k. Adds lines to results/training/survival-*.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import training  # noqa: E402 - threads first

ROOT = Path(__file__).resolve().parent.parent
#: Ranks of which one dies; and of a price, for which each needs a core of its own.
RANKS, PRICED, LIMIT = 4, 2, 300.0
#: A rank is killed when it begins this step, long after the first; two of them in a curve.
KILLED_AT, CURVE = 60, ((1, 40), (0, 90))
STEPS, BLOCK = 120, 200


def config(**changes: Any) -> Any:
    """The run of all of these measurements."""
    from mpicoll.train import Config

    common: dict[str, Any] = {"dataset": "mnist5k", "model": "mlp", "hidden": (64,), "batch": 64}
    return Config(**{**common, "dtype": "float32", "check_every": 0, "epochs": 100, **changes})


# --- on a rank ---


def delay(victim: int) -> None:
    """Kill a rank; moments are of a clock that all processes of a host share."""
    from mpi4py import MPI

    import mpicoll
    from mpicoll.train import run

    comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
    moments: dict[int, float] = {}

    def on_step(step: Any) -> None:
        moments[step.number] = time.monotonic()
        if comm.rank == victim and step.number == KILLED_AT:
            print(json.dumps({"killed": time.monotonic()}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    result = run(config(survive=True, steps=STEPS), comm, on_step=on_step, quiet=True)
    (loss,) = result.lost
    first = min(moment for number, moment in moments.items() if number > loss.step)
    found = {"rank": comm.rank, "next": first, "recovery": loss.seconds}
    print(json.dumps(found), flush=True)
    comm.leave()


def price(rounds: int) -> None:
    """Blocks of steps with and without, in turn; processor seconds of all ranks."""
    from mpi4py import MPI

    import mpicoll
    from mpicoll.train import run

    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for survive in (False, True):
            marks: list[float] = []
            run(
                config(survive=survive, steps=3 * BLOCK),
                comm,
                on_step=lambda _, marks=marks: marks.append(time.process_time()),
                quiet=True,
            )
            seconds = comm.allreduce(marks[-1] - marks[BLOCK])
            found[survive].append(seconds / (len(marks) - 1 - BLOCK))
    if comm.rank == 0:
        ratios = [with_ / without for without, with_ in zip(*found.values(), strict=True)]
        print(json.dumps({"ratios": ratios, "step": statistics.median(found[False])}), flush=True)


def curve(die: bool) -> None:
    """Losses of a run, whose ranks die where they are to."""
    from mpi4py import MPI

    import mpicoll
    from mpicoll.train import run

    comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
    losses: dict[int, float] = {}

    def on_step(step: Any) -> None:
        losses[step.number] = step.loss
        if die and (comm.rank, step.number) in CURVE:
            os.kill(os.getpid(), signal.SIGKILL)

    changes = {"survive": True, "steps": STEPS, "invariant": 8}
    result = run(config(**changes), comm, on_step=on_step, quiet=True)
    facts = {"losses": [losses[n] for n in sorted(losses)], "lost": [x.step for x in result.lost]}
    print(json.dumps({"rank": comm.rank, **facts}), flush=True)
    comm.leave()


# --- launches ---


def launch(*words: object, ranks: int = RANKS) -> list[dict[str, Any]]:
    """What the ranks of a launch have printed."""
    sys.path.insert(0, str(ROOT / "tests"))
    import launch as launcher

    done = subprocess.run(
        [
            *launcher.mpirun(),
            *("--with-ft", "ulfm", "-n", str(ranks), sys.executable, __file__, *map(str, words)),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:
        raise SystemExit(done.stderr)
    return found


def delays(launches: int) -> None:
    """A launch for each death."""
    found = []
    for number in range(launches):
        victim = number % RANKS
        lines = launch("--rank", "delay", victim)
        (killed,) = (line["killed"] for line in lines if "killed" in line)
        others = [line for line in lines if "next" in line]
        assert len(others) == RANKS - 1, lines
        found.append(1e3 * (max(line["next"] for line in others) - killed))
        recovery = max(line["recovery"] for line in others)
        facts = {"ranks": RANKS, "killed": victim, "milliseconds": round(found[-1], 2)}
        training.write("survival-delay", {**facts, "recovery": round(1e3 * recovery, 2)})
    print(f"median: {statistics.median(found):.0f} ms; wanted: at most 100", flush=True)


def main() -> None:
    """Measure; or, on a rank, what is to be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["delay", "price", "curve"])
    parser.add_argument("number", type=int, nargs="?", default=0, help=argparse.SUPPRESS)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        ways = {"delay": delay, "price": price, "curve": lambda number: curve(bool(number))}
        ways[options.what](options.number)
    elif options.what == "delay":
        delays(options.launches)
    elif options.what == "price":
        (found,) = launch("--rank", "price", options.rounds, ranks=PRICED)
        ratio = statistics.median(found["ratios"])
        facts = {"ranks": PRICED, "ratio": round(ratio, 4), "step": round(found["step"], 7)}
        training.write(
            "survival-price", {**facts, "ratios": [round(r, 4) for r in found["ratios"]]}
        )
        print(f"ratio: {ratio:.3f}; wanted: at most 1.02", flush=True)
    else:
        for die in (0, 1):
            lines = launch("--rank", "curve", die)
            first = max(lines, key=lambda line: len(line["losses"]))
            losses = [round(loss, 5) for loss in first["losses"]]
            training.write("survival-curve", {"lost": first["lost"], "losses": losses})


if __name__ == "__main__":
    main()
