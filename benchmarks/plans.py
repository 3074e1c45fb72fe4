"""Plans against measurements: what the planner says of a step, and what it takes.

    mpirun -n 4 python benchmarks/plans.py profile layers.json
    mpirun -n 4 python benchmarks/plans.py steps layers.json [--launch 1]

Layers are small, and sleep, so that the cores of this machine do not matter: 4, 8, 4, 12, 4, 8, ...
milliseconds for a sample in the forward pass, twice that in the backward pass, and a quarter of it
where four ranks share a layer.  Messages cost what the parameters that come with mpicoll say.
`steps` is another launch than `profile`.  Adds lines to results/training/plans.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import training  # noqa: E402
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train.models import MLP, Batch, Layer, Sequential  # noqa: E402
from mpicoll.train.optimizers import SGD  # noqa: E402
from mpicoll.train.parallel import Drawn, FullySharded, Mesh, Pipeline, shard  # noqa: E402
from mpicoll.train.planner import measured, modelled, profile  # noqa: E402
from mpicoll.train.planner.bounds import Bounds  # noqa: E402
from mpicoll.train.planner.cluster import Cluster  # noqa: E402
from mpicoll.train.planner.problem import Outcome, Problem  # noqa: E402
from mpicoll.train.planner.space import Candidate  # noqa: E402
from mpicoll.tuning import cost_files  # noqa: E402

#: What is done in a step, or after all of them.
Step = Callable[[], Any]
RANKS, BATCH, STEPS = 4, 32, 5
MODEL = MLP((64, 64, 64, 64, 64, 64, 64, 64, 8))
PAUSES = (0.004, 0.008, 0.004, 0.012)


class Padded(Layer):
    """A layer, or a rank's part of one, that takes longer."""

    def __init__(self, layer: Layer, seconds: float) -> None:
        self._layer, self._seconds = layer, seconds
        for name in ("initial", "buffers", "output_shape", "kept", "working", "sums"):
            setattr(self, name, getattr(layer, name))

    def forward(self, parameters: Any, inputs: Any, batch: Any) -> Any:
        """See `Layer`."""
        time.sleep(self._seconds * len(inputs))
        return self._layer.forward(parameters, inputs, batch)

    def backward_input(self, parameters: Any, memory: Any, error: Any, first: bool) -> Any:
        """See `Layer`."""
        time.sleep(self._seconds * len(error))
        slopes, kept = self._layer.backward_input(parameters, memory, error, first)
        return slopes, (len(error), kept)

    def backward_weight(self, parameters: Any, memory: Any, kept: Any) -> Any:
        """See `Layer`."""
        samples, inner = kept
        time.sleep(self._seconds * samples)
        return self._layer.backward_weight(parameters, memory, inner)


def padded(layers: list[Layer], share: float = 1.0) -> Sequential:
    """A model of layers that take longer; of layers without a matrix, no longer."""
    dense = iter(range(len(layers)))
    found = [
        Padded(layer, share * PAUSES[next(dense) % len(PAUSES)]) if sizes else layer
        for layer, (_, _, sizes) in zip(layers, measured.described(MODEL), strict=True)
    ]
    return Sequential(found, MODEL.shapes[0], MODEL.dtype.name, MODEL.loss)


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


def planned(problem: Problem, candidate: Candidate) -> Outcome:
    """What the planner says, by the cut that is best for its chunks."""
    layers = problem.layers(candidate)
    assert layers is not None, "all layers can be shared by four"
    cut = Bounds(problem, candidate, layers).balanced if candidate.order else (0,)
    return problem.outcome(candidate, cut)


def stepper(comm: mpicoll.Intracomm, outcome: Outcome) -> tuple[Step, Step]:
    """What makes a step of a plan, and what frees it."""
    candidate = outcome.candidate
    inputs, targets = np.ones((BATCH, 64), np.float32), np.zeros(BATCH, int)
    if candidate.strategy == "fsdp":
        model = padded(list(MODEL.layers))
        parameters = FullySharded(Drawn(model, seed=0), comm)
        own = slice(comm.rank, None, comm.size)
        batch = Batch(inputs[own], targets[own], BATCH)

        def step() -> None:
            parameters.compute(model, batch)
            parameters.update(SGD(), lr=0.0)

        return step, lambda: None
    tensor = comm.Split(comm.rank // candidate.tensor)
    rest = comm.Split(comm.rank % candidate.tensor)
    layers = list(MODEL.layers)
    if candidate.tensor > 1:
        layers = shard(layers, tensor, MODEL.shapes[0], samples=BATCH)
    mesh = Mesh(rest, data=candidate.data, pipe=candidate.pipe)
    pipeline = Pipeline(
        padded(layers, 1 / candidate.tensor),
        mesh,
        candidate.order or "gpipe",
        microbatches=candidate.microbatches,
        cut=outcome.cut,
        recompute=candidate.recompute,
        **dict(candidate.parameters),
    )

    def free() -> None:
        pipeline.free()
        mesh.free()
        tensor.Free()
        rest.Free()

    return lambda: pipeline.step(inputs, targets), free


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=("profile", "steps"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--launch", type=int, default=1, help="number of this launch, written down")
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    if comm.size != RANKS:
        raise SystemExit(f"start {RANKS} ranks, not {comm.size}")
    if options.case == "profile":
        inputs, targets = np.ones((BATCH, 64), np.float32), np.zeros(BATCH, int)
        found = measured.measure(padded(list(MODEL.layers)), inputs, targets, (1, 4, 16, 32), comm)
        if comm.rank == 0:
            kinds = (kind for kind, _, _ in measured.described(MODEL))
            pairs = zip(found.layers, kinds, strict=True)
            layers = tuple(replace(layer, kind=kind) for layer, kind in pairs)
            profile.write(options.file, replace(found, layers=layers))
        return
    cluster = Cluster(cost_files.built_in(), [0] * RANKS)
    layers_of = modelled.layers_of(MODEL, profile.read(options.file), cluster)
    problem = Problem(RANKS, BATCH, cluster, layers_of)
    for candidate in candidates():
        outcome = planned(problem, candidate)
        step, free = stepper(comm, outcome)
        seconds = []
        for _ in range(STEPS + 1):
            comm.Barrier()
            begin = time.perf_counter()
            step()
            seconds.append(comm.allreduce(time.perf_counter() - begin, op=MPI.MAX))
        free()
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
