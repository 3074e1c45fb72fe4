"""Plans against measurements: what the planner says of a step, and what it takes.

    mpirun -n 4 python benchmarks/plans.py profile layers.json
    mpirun -n 4 python benchmarks/plans.py steps layers.json [--launch 1]

Layers are small, and padded (`padding`), so that the cores of this machine do not matter: 4, 8, 4,
12, 4, 8, ... milliseconds for a sample in the forward pass, twice that in the backward pass, and a
quarter of it where four ranks share a layer.  Messages cost what the parameters that come with
mpicoll say.  On a machine that has other work, ranks of an emulated host come first, as root::

    python tests/cluster/hosts.py --hosts 1 --per-host 4 -- mpirun -n 4 python ...

`steps` is another launch than `profile`.  Adds lines to results/training/plans.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import plan_steps  # noqa: E402
import training  # noqa: E402
from mpi4py import MPI  # noqa: E402
from padding import Pace, padded  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train.models import MLP, Layer, Sequential  # noqa: E402
from mpicoll.train.planner import measured, modelled, profile  # noqa: E402
from mpicoll.train.planner.cluster import Cluster  # noqa: E402
from mpicoll.train.planner.problem import Problem  # noqa: E402
from mpicoll.train.planner.profile import LayerProfile, Times  # noqa: E402
from mpicoll.train.planner.space import Candidate  # noqa: E402
from mpicoll.tuning import cost_files  # noqa: E402

RANKS, BATCH, STEPS = 4, 32, 5
MODEL = MLP((64, 64, 64, 64, 64, 64, 64, 64, 8))
PAUSES = (0.004, 0.008, 0.004, 0.012)


def pads() -> list[LayerProfile]:
    """How long layers take for a sample; without a matrix, no time."""
    dense, found = cycle(PAUSES), []
    for kind, shape, count in measured.described(MODEL):
        pause = next(dense) if count else 0.0
        found.append(LayerProfile(kind, shape, count, (Times(1, pause, pause, pause),)))
    return found


def made(layers: Sequence[Layer]) -> Sequential:
    """A model of layers that take longer."""
    return padded(layers, MODEL, pads(), Pace())


def candidates() -> Iterator[Candidate]:
    """What is measured: good ones, and bad ones."""
    yield Candidate(4, 1, 1)
    yield Candidate(4, 1, 1, "fsdp")
    yield Candidate(1, 1, 4)
    yield Candidate(2, 1, 2)
    for count in (2, 8):
        yield Candidate(1, 4, 1, "allreduce", count, False, "gpipe")
    for ahead in (0, 1):
        yield Candidate(1, 4, 1, "allreduce", 8, False, "1f1b", (("ahead", ahead),))
    yield Candidate(1, 4, 1, "allreduce", 8, True, "1f1b", (("ahead", 0),))
    yield Candidate(1, 4, 1, "allreduce", 8, False, "interleaved", (("chunks", 2),))
    yield Candidate(1, 4, 1, "allreduce", 8, False, "zb_h1")
    yield Candidate(2, 2, 1, "allreduce", 4, False, "1f1b", (("ahead", 0),))
    yield Candidate(2, 2, 1, "allreduce", 4, True, "1f1b", (("ahead", 0),))
    yield Candidate(2, 2, 1, "allreduce", 8, False, "zb_h1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=("profile", "steps"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--launch", type=int, default=1, help="number of this launch, written down")
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    if comm.size != RANKS:
        raise SystemExit(f"start {RANKS} ranks, not {comm.size}")
    inputs, targets = np.ones((BATCH, 64), np.float32), np.zeros(BATCH, int)
    if options.case == "profile":
        found = measured.measure(made(MODEL.layers), inputs, targets, (1, 4, 16, 32), comm)
        if comm.rank == 0:
            pairs = zip(pads(), found.layers, strict=True)
            layers = tuple(replace(pad, times=layer.times) for pad, layer in pairs)
            profile.write(options.file, replace(found, layers=layers))
        return
    cluster = Cluster(cost_files.built_in(), [0] * RANKS)
    layers_of = modelled.layers_of(MODEL, profile.read(options.file), cluster)
    problem = Problem(RANKS, BATCH, cluster, layers_of)
    for candidate in candidates():
        outcome = plan_steps.planned(problem, candidate)
        ready = plan_steps.ready(comm, outcome, MODEL, inputs, targets, made)
        seconds = [plan_steps.seconds_of(comm, ready.step) for _ in range(STEPS + 1)]
        ready.free()
        median = statistics.median(seconds[1:])  # the first one makes buffers
        if comm.rank == 0:
            facts = {
                "plan": candidate.words,
                "cut": outcome.cut,
                "planned": round(outcome.seconds, 4),
                "seconds": round(median, 4),
                "error": round(outcome.seconds / median - 1, 4),
                "launch": options.launch,
            }
            training.write("plans", facts)


if __name__ == "__main__":
    main()
