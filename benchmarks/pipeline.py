"""Pipelines: idle time against the formulas, what the executor costs, and two ranks against one.

    mpirun -n 4 python benchmarks/pipeline.py padded [--launch 1]
    mpirun -n 2 python benchmarks/pipeline.py overhead
    mpirun -n 2 python benchmarks/pipeline.py wall

`padded`: tasks sleep, 50 ms forward and 100 ms backward for a rank's share of the layers, so that
the cores of this machine do not matter; `uneven`: stages of 1 : 2 : 1 : 3 times 25 and 50 ms.
`overhead`: layers that do nothing; several ranks also wait with their processors.  `wall`: a
transformer of four blocks, and what the simulator says from the times of its stages, taken while
both ranks compute; in turn, in one launch.  Adds lines to results/training/pipeline.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import training  # noqa: E402
from mpi4py import MPI  # noqa: E402
from padding import Pace, Padded  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train.models import Batch, Layer, Sequential, transformer  # noqa: E402
from mpicoll.train.models.precision import computing  # noqa: E402
from mpicoll.train.parallel import Mesh, Pipeline, Timeline  # noqa: E402
from mpicoll.train.step import Durations, simulate  # noqa: E402

FORWARD, BACKWARD = 0.050, 0.100
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


def samples(count: int) -> tuple[Any, Any]:
    return np.ones((count, 2), np.float32), np.zeros(count, int)


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
    pace = Pace()
    layers = [Padded(Empty(), (f, b / 2, b / 2), pace) for f, b in durations]
    pipeline = Pipeline(layers, mesh, order, microbatches=microbatches, inputs=(2,), **options)
    with pipeline.traced() as timeline:
        pipeline.step(*samples(microbatches))
    whole = [
        Durations(*(round(NANO * t) for t in (forward, backward, backward / 2)))
        for forward, backward in durations
    ]
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


def stage_times(
    pipeline: Pipeline, model: Sequential, rank: int, inputs: Any, comm: mpicoll.Intracomm
) -> Durations:
    """Nanoseconds of this rank's chunk, all ranks computing at the same time."""
    ends = [*pipeline.starts[1:], len(model.layers)]
    chunk = model.chunk(pipeline.starts[rank], ends[rank])
    parameters, rounded = computing(pipeline.parameters, model.dtype)
    batch = Batch(inputs, inputs, len(inputs), np.arange(len(inputs)))
    values = inputs if not rank else np.ones((len(inputs), *model.shapes[ends[0]]), model.dtype)
    times: list[tuple[float, float]] = []
    for _ in range(8):
        comm.Barrier()
        begin = time.perf_counter()
        outputs, memories = chunk.forward(parameters, values, batch, rounded)
        middle = time.perf_counter()
        error = outputs
        if rank == len(ends) - 1:
            error = model.loss.evaluate(outputs, np.zeros(outputs.shape[:-1], int))[1]
        for _ in chunk.backward(parameters, memories, error, rounded):
            pass
        times.append((middle - begin, time.perf_counter() - middle))
    return Durations(*(round(NANO * statistics.median(each)) for each in zip(*times, strict=True)))


def wall(comm: mpicoll.Intracomm, write: Callable[[dict[str, Any]], None]) -> None:
    """A transformer's step on two ranks, against the simulator and against one rank."""
    model = transformer(256, 64, width=128, blocks=4)
    mesh, microbatches = Mesh(comm, pipe=comm.size), 8
    pipeline = Pipeline(model, mesh, "1f1b", microbatches=microbatches, cut="0,6")
    alone = Pipeline(model, Mesh(), "1f1b", microbatches=microbatches)
    tokens = np.random.default_rng(0).integers(0, 256, (8 * microbatches, 65))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    measured, expected, single = [], [], []
    for _ in range(5):
        own = stage_times(pipeline, model, comm.rank, inputs[:8], comm)
        both = comm.allgather(own)
        expected.append(simulate(pipeline.schedule, both).makespan / NANO)
        comm.Barrier()
        begin = time.perf_counter()
        pipeline.step(inputs, targets)
        measured.append(time.perf_counter() - begin)
        if comm.rank == 0:
            begin = time.perf_counter()
            alone.step(inputs, targets)
            single.append(time.perf_counter() - begin)
        comm.Barrier()
    if comm.rank == 0:
        medians = {
            "seconds": statistics.median(measured),
            "simulated": statistics.median(expected),
            "one_rank": statistics.median(single),
        }
        ratio = medians["simulated"] / medians["seconds"]
        write(
            {
                "case": "wall",
                **{name: round(value, 4) for name, value in medians.items()},
                "simulated_to_measured": round(ratio, 3),
            }
        )


CASES = {"padded": padded, "overhead": overhead, "wall": wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--launch", type=int, default=1, help="number of this launch, written down")
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)

    def write(facts: dict[str, Any]) -> None:
        if comm.rank == 0:
            training.write("pipeline", {**facts, "launch": options.launch})

    CASES[options.case](comm, write)


if __name__ == "__main__":
    main()
