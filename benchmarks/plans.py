"""Plans against measurements: what the planner says of a step, and what it takes.

    mpirun -n 4 python benchmarks/plans.py profile layers.json
    mpirun -n 4 python benchmarks/plans.py steps layers.json [--launch 1]
    mpirun -n 4 python benchmarks/plans.py steps layers.json --costs model.json --best 9

Layers are small, and padded (`padding`), so that the cores of this machine do not matter: 4, 8, 4,
12, 4, 8, ... milliseconds for a sample in the forward pass, twice that in the backward pass, and a
quarter of it where four ranks share a layer.  Messages cost what the parameters that come with
mpicoll say, or those of a file.  On a machine that has other work, ranks of an emulated host come
first, as root::

    python tests/cluster/hosts.py --hosts 1 --per-host 4 -- mpirun -n 4 python ...

`steps` is another launch than `profile`.  With ``--best`` it measures what the planner picks of the
whole space, and its best of other meshes, and after them the plans that are measured without.
`plans_on_cluster.py` does so over a slow network.  Adds lines to results/training/plans.jsonl.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
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
from mpicoll.train.planner import comparison, measured, modelled, profile  # noqa: E402
from mpicoll.train.planner.cluster import Cluster  # noqa: E402
from mpicoll.train.planner.problem import Outcome, Problem  # noqa: E402
from mpicoll.train.planner.profile import LayerProfile, Times  # noqa: E402
from mpicoll.train.planner.search import search  # noqa: E402
from mpicoll.train.planner.space import Candidate  # noqa: E402
from mpicoll.tuning import cost_files  # noqa: E402

RANKS, BATCH, STEPS = 4, 32, 5
PAUSES = (0.004, 0.008, 0.004, 0.012)


def make_model(width: int) -> Sequential:
    """A perceptron of eight matrices."""
    return MLP((*[width] * 8, 8))


def pads(model: Sequential) -> list[LayerProfile]:
    """How long layers take for a sample; without a matrix, no time."""
    dense, found = cycle(PAUSES), []
    for kind, shape, count in measured.described(model):
        pause = next(dense) if count else 0.0
        found.append(LayerProfile(kind, shape, count, (Times(1, pause, pause, pause),)))
    return found


def longer(model: Sequential, layers: Sequence[Layer]) -> Sequential:
    """Layers of a model that take longer; meanwhile messages move."""
    return padded(layers, model, pads(model), Pace(MPI.COMM_WORLD.Iprobe))


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


def best(problem: Problem, model: Sequential, count: int) -> list[Outcome]:
    """So many plans: that of the whole space, and the best ones of other meshes."""
    # Batches whose gradients are added up, and zero1, are not among what `plan_steps` makes.
    every = [
        candidate
        for candidate in problem.candidates(len(model.layers), measured.halves(model))
        if candidate.pipe * candidate.tensor > 1
        or (candidate.microbatches == 1 and candidate.strategy != "zero1")
    ]
    found = search(problem, every)
    assert found.best is not None, "memory has no limit"
    return [found.best, *comparison.rivals(problem, every, found, count - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=("profile", "steps"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--launch", type=int, default=1, help="number of this launch, written down")
    parser.add_argument("--width", type=int, default=64, help="values between layers")
    parser.add_argument("--costs", type=Path, help="what `mpicoll fit` wrote of these hosts")
    parser.add_argument("--place", default="one node", help="where, written down")
    parser.add_argument("--best", type=int, default=0, help="so many of the planner's best, too")
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    if comm.size != RANKS:
        raise SystemExit(f"start {RANKS} ranks, not {comm.size}")
    model = make_model(options.width)
    made = partial(longer, model)
    inputs, targets = np.ones((BATCH, options.width), np.float32), np.zeros(BATCH, int)
    if options.case == "profile":
        found = measured.measure(made(model.layers), inputs, targets, (1, 4, 16, 32), comm)
        if comm.rank == 0:
            pairs = zip(pads(model), found.layers, strict=True)
            layers = tuple(replace(pad, times=layer.times) for pad, layer in pairs)
            profile.write(options.file, replace(found, layers=layers))
        return
    names = comm.allgather(os.uname().nodename)
    costs = cost_files.read(options.costs) if options.costs else cost_files.built_in()
    cluster = Cluster(costs, [names.index(name) for name in names])
    layers_of = modelled.layers_of(model, profile.read(options.file), cluster)
    problem = Problem(RANKS, BATCH, cluster, layers_of)
    outcomes = best(problem, model, options.best) if options.best else []
    known = {outcome.candidate for outcome in outcomes}
    outcomes += [plan_steps.planned(problem, c) for c in candidates() if c not in known]
    for outcome in outcomes:
        ready = plan_steps.ready(comm, outcome, model, inputs, targets, made)
        seconds = [plan_steps.seconds_of(comm, ready.step) for _ in range(STEPS + 1)]
        ready.free()
        median = statistics.median(seconds[1:])  # the first one makes buffers
        if comm.rank == 0:
            facts = {
                "place": options.place,
                "plan": outcome.candidate.words,
                "cut": outcome.cut,
                "planned": round(outcome.seconds, 4),
                "seconds": round(median, 4),
                "error": round(outcome.seconds / median - 1, 4),
                "launch": options.launch,
            }
            training.write("plans", facts)


if __name__ == "__main__":
    main()
