"""Pipelines: idle time against the formulas, what the executor costs, and two ranks against one.

    mpirun -n 4 python benchmarks/pipeline.py padded [--launch 1]
    mpirun -n 2 python benchmarks/pipeline.py overhead
    mpirun -n 2 python benchmarks/pipeline.py wall
    mpirun -n 4 python benchmarks/pipeline.py network --model model.json --delay 5e-3

`padded`: tasks sleep, 50 ms forward and 100 ms backward for a rank's share of the layers, so that
the cores of this machine do not matter; `uneven`: stages of 1 : 2 : 1 : 3 times 25 and 50 ms.
`overhead`: layers that do nothing; several ranks also wait with their processors.  `wall`: a
transformer of four blocks, and what the simulator says from the times of its stages, each a
pipeline of its own with the same microbatches, while both ranks compute; in turn, in one launch, in
half a minute.  The ratio of both has a 95 % interval.  `network`: padded steps over a network, for
which a model was fitted; `pipeline_on_cluster.py` emulates one.  Adds lines to
results/training/pipeline.jsonl, and `network` to pipeline_network.jsonl beside it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import training  # noqa: E402
from mpi4py import MPI  # noqa: E402
from padding import Pace, Padded  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.bench.stats import summarise  # noqa: E402
from mpicoll.simulate.machine import Machine  # noqa: E402
from mpicoll.train.models import Layer, Loss, Sequential, transformer  # noqa: E402
from mpicoll.train.parallel import Mesh, Pipeline, Timeline  # noqa: E402
from mpicoll.train.step import Durations, simulate  # noqa: E402
from mpicoll.tuning import cost_files  # noqa: E402

FORWARD, BACKWARD = 0.050, 0.100
#: Of `network`: values on an edge, 4 KiB and 256 KiB; orders and microbatches; steps of each.
EDGES = 1024, 65536
NETWORK: tuple[tuple[str, dict[str, int], int], ...] = (
    *(("1f1b", {"ahead": ahead}, count) for ahead in (0, 1) for count in (8, 16)),
    ("gpipe", {}, 16),
    ("zb_h1", {}, 16),
)
STEPS = 2
#: Rounds of `wall`: not counted, and counted.
WARM, ROUNDS = 2, 25
#: Seconds to nanoseconds, which the simulator counts in.
NANO = 1e9
ORDERS: dict[str, dict[str, int]] = {
    **{order: {} for order in ("naive", "gpipe", "1f1b", "zb_h1")},
    "interleaved": {"chunks": 2},
}


class Empty(Layer):
    """Does nothing."""

    keeps_inputs = False

    def forward(self, parameters: Any, inputs: Any, batch: Any) -> Any:
        """See `Layer`."""
        return inputs, None

    def backward_input(self, parameters: Any, memory: Any, error: Any, first: bool) -> Any:
        """See `Layer`."""
        return error, None


class Same(Loss):
    """Slopes like the outputs: what reads them needs neither their values nor targets."""

    def evaluate(self, outputs: Any, targets: Any) -> tuple[Any, Any]:
        """See `Loss`."""
        return np.zeros(len(outputs)), outputs.copy()


def samples(count: int, values: int = 2) -> tuple[Any, Any]:
    return np.ones((count, values), np.float32), np.zeros(count, int)


def sleeping(
    mesh: Mesh,
    order: str,
    microbatches: int,
    durations: list[tuple[float, float]],
    values: int = 2,
    poll: Callable[[], object] = lambda: None,
    **options: Any,
) -> tuple[Pipeline, list[Durations]]:
    """A pipeline of layers that sleep, a chunk each, and their nanoseconds.

    Args:
        mesh, order, microbatches, options: Of the pipeline.
        durations: Of each chunk: seconds of a forward and a backward pass.
        values: Of a sample, on all edges.
        poll: Called while a layer sleeps.
    """
    pace = Pace(poll)
    layers = [Padded(Empty(), (f, b / 2, b / 2), pace) for f, b in durations]
    given = {"microbatches": microbatches, "inputs": (values,), "loss": Same(), **options}
    whole = [
        Durations(*(round(NANO * t) for t in (forward, backward, backward / 2)))
        for forward, backward in durations
    ]
    return Pipeline(layers, mesh, order, **given), whole


def idle(timeline: Timeline, step: int) -> float:
    """The part of all ranks' time in which they do not compute, from first task to last."""
    records = timeline.steps[step]
    begin = min(record.spans[0].start for record in records)
    end = max(record.spans[-1].end for record in records)
    computing = sum(shares.computing for shares in timeline.shares(step))
    return 1 - computing / (len(records) * (end - begin))


def measure_idle(
    mesh: Mesh, order: str, microbatches: int, durations: list[tuple[float, float]], **options: Any
) -> dict[str, Any]:
    """Idle of a step of padded layers, a chunk each, beside what the simulator says."""
    pipeline, whole = sleeping(mesh, order, microbatches, durations, **options)
    with pipeline.traced() as timeline:
        pipeline.step(*samples(microbatches))
    expected = simulate(pipeline.schedule, whole)
    pipeline.free()
    return {
        "order": order,
        "S": mesh.pipe.size,
        "M": microbatches,
        "idle": round(idle(timeline, 0), 4),
        "expected": round(expected.idle, 4),
    }


def padded(comm: mpicoll.Intracomm, write: Callable[[dict[str, Any]], None]) -> None:
    """Idle against the formulas."""
    mesh = Mesh(comm, pipe=comm.size)
    for order, options in ORDERS.items():
        chunks = options.get("chunks", 1)
        durations = [(FORWARD / chunks, BACKWARD / chunks)] * (chunks * comm.size)
        for microbatches in (4, 8, 16):
            write(
                {"case": "padded", **measure_idle(mesh, order, microbatches, durations, **options)}
            )
    factors = (1, 2, 1, 3)
    if comm.size == len(factors):
        durations = [(factor * FORWARD / 2, factor * BACKWARD / 2) for factor in factors]
        for order in ("gpipe", "1f1b", "zb_h1"):
            write({"case": "uneven", **measure_idle(mesh, order, 8, durations)})


def overhead(comm: mpicoll.Intracomm, write: Callable[[dict[str, Any]], None]) -> None:
    """Microseconds a task, with layers that do nothing."""
    for mesh in (Mesh(), Mesh(comm, pipe=comm.size)):
        for order in ("gpipe", "1f1b", "zb_h1"):
            layers = [Empty()] * mesh.pipe.size
            pipeline = Pipeline(layers, mesh, order, microbatches=200, inputs=(2,))
            tasks = len(pipeline.schedule.program(mesh.pipe.rank))
            seconds, processor = [], []
            for _ in range(9):
                comm.Barrier()
                begin, computed = time.perf_counter(), time.process_time()
                pipeline.step(*samples(200))
                processor.append(time.process_time() - computed)
                seconds.append(time.perf_counter() - begin)
            pipeline.free()
            wall, used = (1e6 * statistics.median(each) / tasks for each in (seconds, processor))
            facts = {"case": "overhead", "order": order, "S": mesh.pipe.size, "tasks": tasks}
            found = {"microseconds_a_task": wall, "processor_microseconds_a_task": used}
            write({**facts, **{name: round(value, 1) for name, value in found.items()}})


def stage_alone(model: Sequential, starts: tuple[int, ...], rank: int, microbatches: int) -> Any:
    """A stage as a pipeline of its own, and what its first layer reads of a batch."""
    ends = [*starts[1:], len(model.layers)]
    layers, shape = model.layers[starts[rank] : ends[rank]], model.shapes[starts[rank]]
    if rank:  # behind a layer that does nothing, the others have slopes by their inputs, too
        layers = (Empty(), *layers)
    loss = model.loss if ends[rank] == len(model.layers) else Same()
    own = Sequential(layers, shape, model.dtype.name, loss)
    return Pipeline(own, Mesh(), "1f1b", microbatches=microbatches), shape


def task_times(pipeline: Pipeline) -> Durations:
    """Nanoseconds of the tasks of the last step of a pipeline, medians."""
    lengths = {
        kind: [span.end - span.start for span in pipeline.spans if span.task.kind == kind]
        for kind in "FB"
    }
    return Durations(*(round(NANO * statistics.median(lengths[kind])) for kind in "FB"))


def wall(comm: mpicoll.Intracomm, write: Callable[[dict[str, Any]], None]) -> None:
    """A transformer's step on two ranks, against the simulator and against one rank."""
    model = transformer(256, 64, width=128, blocks=4)
    mesh, microbatches = Mesh(comm, pipe=comm.size), 8
    pipeline = Pipeline(model, mesh, "1f1b", microbatches=microbatches, cut="0,6")
    alone = Pipeline(model, Mesh(), "1f1b", microbatches=microbatches)
    stage, shape = stage_alone(model, pipeline.starts, comm.rank, microbatches)
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 256, (8 * microbatches, 65))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    read = generator.standard_normal((len(tokens), *shape), np.float32) if comm.rank else inputs

    def seconds(step: Callable[[], object]) -> float:
        comm.Barrier()
        begin = time.perf_counter()
        step()
        return float(comm.allreduce(time.perf_counter() - begin, MPI.MAX))

    def one_rank() -> None:
        if comm.rank == 0:
            alone.step(inputs, targets)

    found: dict[str, list[float]] = {"seconds": [], "simulated": [], "one_rank": [], "ratio": []}
    for number in range(-WARM, ROUNDS):
        seconds(lambda: stage.step(read, targets))
        stages = comm.allgather(task_times(stage))
        expected = simulate(pipeline.schedule, stages).makespan / NANO
        measured = seconds(lambda: pipeline.step(inputs, targets))
        single = seconds(one_rank)
        if number >= 0:
            values = measured, expected, single, expected / measured
            for name, value in zip(found, values, strict=True):
                found[name].append(value)
    summaries = {name: summarise(values) for name, values in found.items()}
    ratio = summaries.pop("ratio")
    assert ratio.low is not None and ratio.high is not None  # there are enough rounds for one
    medians = {name: round(summary.median, 4) for name, summary in summaries.items()}
    interval = {
        "simulated_to_measured": round(ratio.median, 3),
        "interval": [round(bound, 3) for bound in (ratio.low, ratio.high)],
    }
    write({"case": "wall", "rounds": ROUNDS, **medians, **interval})


def network(
    comm: mpicoll.Intracomm, write: Callable[[dict[str, Any]], None], model: Path, delay: float
) -> None:
    """Steps of padded layers over a network, beside what the simulator says with a fitted model.

    Args:
        comm: A rank on each host.
        write: Takes results.
        model: What `mpicoll fit` wrote of these hosts.
        delay: Seconds from host to host, written down.
    """
    mesh, size = Mesh(comm, pipe=comm.size), comm.size
    costs = Machine.of(cost_files.read(model).general, int(NANO))
    machine = replace(costs, nodes=tuple(range(size)))
    for values in EDGES:
        nbytes = 4 * values
        for order, options, microbatches in NETWORK:
            pipeline, whole = sleeping(
                mesh,
                order,
                microbatches,
                [(FORWARD, BACKWARD)] * size,
                values,
                MPI.COMM_WORLD.Iprobe,
                **options,
            )
            with pipeline.traced() as timeline:
                for _ in range(1 + STEPS):
                    pipeline.step(*samples(microbatches, values))
            taken = [
                max(record.end for record in records) - records[0].spans[0].start
                for records in timeline.steps[1:]
            ]
            expected = simulate(pipeline.schedule, whole, machine, nbytes).makespan / NANO
            pipeline.free()
            facts = {"case": "network", "delay": delay, "bytes": nbytes, "order": order, **options}
            found = {
                "seconds": statistics.median(taken),
                "simulated": expected,
                "message": machine.message(0, 1, nbytes) / NANO,
            }
            rounded = {name: round(value, 5) for name, value in found.items()}
            write({**facts, "S": size, "M": microbatches, **rounded})


CASES = {"padded": padded, "overhead": overhead, "wall": wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=[*CASES, "network"])
    parser.add_argument("--launch", type=int, default=1, help="number of this launch, written down")
    parser.add_argument("--model", type=Path, help="of `network`: what `mpicoll fit` wrote")
    parser.add_argument("--delay", type=float, help="of `network`: seconds, written down")
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    name = "pipeline_network" if options.case == "network" else "pipeline"

    def write(facts: dict[str, Any]) -> None:
        if comm.rank == 0:
            training.write(name, {**facts, "launch": options.launch})

    if options.case == "network":
        network(comm, write, options.model, options.delay)
    else:
        CASES[options.case](comm, write)


if __name__ == "__main__":
    main()
