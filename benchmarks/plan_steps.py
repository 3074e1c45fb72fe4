"""Ways to train a model, ready to make steps: what the planner calls a candidate, as it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.train.exchange.buckets import Exchange
from mpicoll.train.exchange.transfers import Sum
from mpicoll.train.models import Batch, Layer, Sequential
from mpicoll.train.models.flat import Flat
from mpicoll.train.models.networks import push_gradients
from mpicoll.train.optimizers import SGD
from mpicoll.train.parallel import Drawn, FullySharded, Mesh, Pipeline, shard
from mpicoll.train.planner.problem import Outcome, Problem
from mpicoll.train.planner.search import search
from mpicoll.train.planner.space import Candidate
from mpicoll.train.ranks.workers import AllReduceWorkers

#: What makes a model of a rank's layers.
Made = Callable[[Sequence[Layer]], Sequential]


def planned(problem: Problem, candidate: Candidate) -> Outcome:
    """What the planner says of a candidate, by its best cut."""
    best = search(problem, [candidate]).best
    assert best is not None, "all layers can be shared by so many, and memory has no limit"
    return best


@dataclass
class Ready:
    """A way to train.

    Attributes:
        step: Makes a step.
        free: Frees what it has of MPI.
        pipeline: None where a rank has all layers whole.
    """

    step: Callable[[], Any]
    free: Callable[[], Any]
    pipeline: Pipeline | None = None


def ready(
    comm: mpicoll.Intracomm,
    outcome: Outcome,
    model: Sequential,
    inputs: Any,
    targets: Any,
    made: Made,
    algorithm: str | None = None,
) -> Ready:
    """Make a plan ready; collective.

    Args:
        comm: All ranks.
        outcome: The plan.
        model: The model, whole.
        inputs, targets: A batch.
        made: Makes a model of a rank's layers; they may take longer.
        algorithm: Of sums over replicas; None for the communicator's choices.
    """
    candidate = outcome.candidate
    own = slice(comm.rank, None, comm.size)
    batch = Batch(inputs[own], targets[own], len(inputs))
    if candidate.strategy == "fsdp":
        return _sharded(comm, made(model.layers), batch, algorithm)
    if candidate.data == comm.size:
        return _whole(comm, made(model.layers), batch, algorithm)
    mesh = Mesh(comm, data=candidate.data, pipe=candidate.pipe, tensor=candidate.tensor)
    shape, sequence = model.shapes[0], candidate.sequence
    layers = shard(model.layers, mesh.tensor.comm, shape, sequence=sequence)
    pipeline = Pipeline(
        made(layers),
        mesh,
        candidate.order or "gpipe",
        microbatches=candidate.microbatches,
        cut=outcome.cut,
        recompute=candidate.recompute,
        algorithm=algorithm,
        **dict(candidate.parameters),
    )

    def free() -> None:
        pipeline.free()
        mesh.free()

    return Ready(partial(pipeline.step, inputs, targets), free, pipeline)


def _sharded(
    comm: mpicoll.Intracomm, model: Sequential, batch: Batch, algorithm: str | None
) -> Ready:
    parameters = FullySharded(Drawn(model, seed=0), comm, algorithm=algorithm)

    def step() -> None:
        parameters.compute(model, batch)
        parameters.update(SGD(), lr=0.0)

    return Ready(step, lambda: None)


def _whole(
    comm: mpicoll.Intracomm, model: Sequential, batch: Batch, algorithm: str | None
) -> Ready:
    """As strategy allreduce: gradients are summed in buckets while others are computed."""
    parameters = model.initial_parameters(0)
    gradients = Flat({name: np.zeros_like(array) for name, array in parameters.items()})
    exchange = Exchange(AllReduceWorkers(comm, algorithm), gradients, None, 1, Sum)

    def push(name: str, gradient: Any) -> None:
        gradients.views[name][...] = gradient
        exchange.ready(name)

    def step() -> None:
        exchange.begin()
        push_gradients(model, parameters, batch, push)
        exchange.finish()

    return Ready(step, exchange.free)


def seconds_of(comm: mpicoll.Intracomm, step: Callable[[], Any]) -> float:
    """How long a step takes, of the rank that takes longest; collective."""
    comm.Barrier()
    begin = MPI.Wtime()
    step()
    return float(comm.allreduce(MPI.Wtime() - begin, op=MPI.MAX))
