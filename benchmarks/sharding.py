"""What sharding costs: fsdp beside zero1, and layers shared by two ranks beside their halves.

    mpirun -n 2 python benchmarks/sharding.py fsdp [--launch 1]
    mpirun -n 2 python benchmarks/sharding.py tensor [--launch 1]

`fsdp`: steps of both strategies in turn, of eight layers of 1024 x 1024.  Layers are padded
(`padding`), so that the cores of this machine do not matter: once longer than their gather takes,
and once shorter.  Wanted: at most 1.05 where they are longer.

`tensor`: a pair of Dense layers of 1024 to 4096 on two ranks; both halves, timed while both ranks
compute, plus what the cost model says of the collectives (MODEL, or the one that comes with
mpicoll); and the whole layers on one rank, while the other computes the same.  Wanted: a step
within a tenth of that sum.

All in turn, in one launch; a sample is the time of the rank that takes longest.  Adds lines to
results/training/sharding.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import training  # noqa: E402
from mpi4py import MPI  # noqa: E402
from padding import Pace, Padded  # noqa: E402
from plan_steps import seconds_of  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.bench.stats import interval_ranks  # noqa: E402
from mpicoll.train import Config  # noqa: E402
from mpicoll.train.data import from_arrays  # noqa: E402
from mpicoll.train.driver import preparation  # noqa: E402
from mpicoll.train.models import Batch, Dense, ReLU, Sequential  # noqa: E402
from mpicoll.train.parallel import shard  # noqa: E402
from mpicoll.train.parallel.sharded import Sharded, collectives  # noqa: E402
from mpicoll.train.planner.cluster import PICO, Cluster  # noqa: E402
from mpicoll.train.strategies.fully_sharded import ShardTrainer  # noqa: E402
from mpicoll.train.strategies.protocol import strategy_of  # noqa: E402
from mpicoll.tuning import cost_files  # noqa: E402

WIDTH, LAYERS, PAIRS, SAMPLES = 1024, 8, 40, 4
#: Seconds of a layer's forward pass; twice that of its backward pass.
PADS = {"covered": 0.010, "not covered": 0.0005}
BATCH = 64
#: How often a pair of layers of some width is timed.
REPEATS = {1024: 31, 1536: 31, 2048: 21, 3072: 11, 4096: 11}
Write = Callable[[dict[str, Any]], None]


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median and interval of the quotients of samples that were taken in turn."""
    found = sorted(a / b for a, b in zip(above, below, strict=True))
    ranks = interval_ranks(len(found))
    assert ranks is not None, "there are enough samples for an interval"
    low, high = (found[rank - 1] for rank in ranks)
    named = {"ratio": statistics.median(found), "low": low, "high": high}
    return {name: round(value, 4) for name, value in named.items()}


def in_turn(
    comm: mpicoll.Intracomm, ways: Mapping[str, Callable[[], Any]], count: int
) -> dict[str, list[float]]:
    """Seconds of each way, one after the other, so many times; collective."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + 2):
        for name, way in ways.items():
            seconds = seconds_of(comm, way)
            if number > 1:  # the first ones make buffers
                found[name].append(seconds)
    return found


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(times), 6) for name, times in found.items()}


class Moving:
    """Moves on the collectives of a training, which is made after its layers."""

    training: Any = None

    def poll(self) -> None:
        if isinstance(self.training, ShardTrainer):
            self.training._shards.poll()
        elif self.training is not None:
            self.training._exchange._poll()


def fsdp(comm: mpicoll.Intracomm, options: argparse.Namespace, write: Write) -> None:
    """Steps of the trainers themselves, whose collectives go on while layers are padded."""
    batch = SAMPLES * comm.size
    inputs = np.ones(((PAIRS + 2) * batch, WIDTH), np.float32)
    arrays = {"train_inputs": inputs, "train_labels": np.arange(len(inputs)) % WIDTH}
    data = from_arrays("ones", arrays)
    unit = np.zeros(WIDTH * (WIDTH + 1), np.float32)
    for case, pad in PADS.items():
        ways, trainings = {}, []
        for strategy in ("zero1", "fsdp"):
            moving = Moving()
            layer = Padded(Dense(WIDTH), (pad / SAMPLES,) * 3, Pace(moving.poll))
            model = Sequential([layer] * LAYERS, (WIDTH,), "float32")
            config = Config(strategy=strategy, batch=batch, lr=1e-6, check_every=0)
            setup, _ = preparation.prepare(config, comm, preparation.Given(data, model))
            made = moving.training = strategy_of(config).make(setup)
            ways[strategy] = partial(next, made.steps(1, 0))
            trainings.append(made)
        times = in_turn(comm, ways, PAIRS)
        gather = in_turn(comm, {"gather": partial(share, comm, unit)}, PAIRS)
        for made in trainings:
            made.close()
        facts = {"case": "fsdp", "compute": case, "ranks": comm.size, "layers": LAYERS}
        facts |= {"unit_bytes": unit.nbytes, "pad": pad, **medians(times), **medians(gather)}
        write({**facts, **ratios(times["fsdp"], times["zero1"])})


def share(comm: mpicoll.Intracomm, vector: Any) -> None:
    """An all-gather of a unit, alone."""
    counts = [len(part) for part in np.array_split(vector, comm.size)]
    comm.Allgatherv(MPI.IN_PLACE, [vector, counts])


def tensor(comm: mpicoll.Intracomm, options: argparse.Namespace, write: Write) -> None:
    """Real compute: each rank has a core of its own."""
    costs = cost_files.read(options.model) if options.model else cost_files.built_in()
    cluster = Cluster(costs, [0] * comm.size)
    for size, repeats in REPEATS.items():
        layers = [Dense(size), ReLU(), Dense(size)]
        whole = Sequential(layers, (size,), "float32")
        shared = Sequential(shard(layers, comm, (size,), samples=BATCH), (size,), "float32")
        local = Sequential(
            [layer.local if isinstance(layer, Sharded) else layer for layer in shared.layers],
            (size,),
            "float32",
        )
        inputs = np.random.default_rng(0).standard_normal((BATCH, size)).astype(np.float32)
        batch = Batch(inputs, np.arange(BATCH) % size, BATCH)
        parts, every = shared.initial_parameters(0), whole.initial_parameters(0)
        times = in_turn(
            comm,
            {
                "tensor": partial(shared.loss_and_gradients, parts, batch),
                "halves": partial(local.loss_and_gradients, parts, batch),
                "whole": partial(whole.loss_and_gradients, every, batch),
            },
            repeats,
        )
        calls = [(name, 4 * values) for name, values in collectives(shared.layers, BATCH)]
        calls += [("allreduce", 8)]  # whether the pass has failed
        ranks = [range(comm.size)]
        predicted = sum(
            int(cluster.collective(name, ranks, np.array([nbytes]))[0]) for name, nbytes in calls
        )
        alone = in_turn(comm, {"alone": partial(all_reduces, comm, calls)}, repeats)
        facts = {"case": "tensor", "size": size, "ranks": comm.size, "batch": BATCH}
        facts |= {**medians(times), "predicted": round(predicted / PICO, 6), **medians(alone)}
        expected = [half + predicted / PICO for half in times["halves"]]
        write({**facts, **ratios(times["tensor"], expected)})


def all_reduces(comm: mpicoll.Intracomm, calls: Sequence[tuple[str, int]]) -> None:
    """The collectives of a step, alone: there are no others between the halves of two layers."""
    for name, nbytes in calls:
        assert name == "allreduce", name
        comm.Allreduce(MPI.IN_PLACE, np.zeros(nbytes // 4, np.float32))


CASES = {"fsdp": fsdp, "tensor": tensor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--launch", type=int, default=1, help="number of this launch, written down")
    parser.add_argument("--model", help="cost model of this machine, of `mpicoll fit`")
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    if comm.size != 2:
        raise SystemExit(f"start 2 ranks, not {comm.size}")

    def write(facts: dict[str, Any]) -> None:
        if comm.rank == 0:
            training.write("sharding", {**facts, "launch": options.launch})

    CASES[options.case](comm, options, write)


if __name__ == "__main__":
    main()
