"""Between layers or inside of them: one transformer on four ranks, trained in sixteen ways.

    mpirun -n 4 python benchmarks/inter_intra.py profile layers.json
    mpirun -n 4 python benchmarks/inter_intra.py count layers.json
    mpirun -n 4 python benchmarks/inter_intra.py steps layers.json [--costs model.json]

`profile` times the layers of the transformer on all ranks, and then as they are padded (`padding`):
times of those proportions, so long that tasks take 20 ms and more.  `count` makes a step without
padding under ``MPICOLL_TRACE``, and counts what ranks send and hold.  `steps` measures steps beside
what the planner and the formulas say.  `inter_intra_on_cluster.py` runs all of it on one node and
on emulated networks.  Adds lines to results/training/inter_intra.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast

from mpicoll.train import threads

threads.limit_blas_threads()

import inter_intra_formulas as formulas  # noqa: E402 - threads first
import numpy as np  # noqa: E402
import plan_steps  # noqa: E402
import training  # noqa: E402
from mpi4py import MPI  # noqa: E402
from padding import Pace, padded  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train.models import Dense, Layer, Sequential, transformer  # noqa: E402
from mpicoll.train.parallel.conjugate import Group  # noqa: E402
from mpicoll.train.parallel.sharded import Calls, collectives_of  # noqa: E402
from mpicoll.train.parallel.shards import SAMPLES, divided, ring  # noqa: E402
from mpicoll.train.planner import measured, modelled, profile  # noqa: E402
from mpicoll.train.planner.cluster import Cluster  # noqa: E402
from mpicoll.train.planner.problem import Outcome, Problem  # noqa: E402
from mpicoll.train.planner.profile import LayerProfile, Profile, Times  # noqa: E402
from mpicoll.train.planner.space import Candidate  # noqa: E402
from mpicoll.tuning import cost_files  # noqa: E402

RANKS, BATCH, STEPS = 4, 32, 5
TOKENS, CONTEXT, WIDTH, BLOCKS, MICROBATCHES = 64, 16, 64, 4, 8
#: Seconds that a process takes for a step by itself.
WHOLE = 2.4


@dataclass(frozen=True)
class Way:
    """A row of the table.

    Attributes:
        name: In words.
        candidate: As the planner has it.
    """

    name: str
    candidate: Candidate


def _pipe(
    order: str,
    data: int = 1,
    tensor: int = 1,
    count: int = MICROBATCHES,
    recompute: bool = False,
    **parameters: int,
) -> Candidate:
    """A pipeline of the ranks that are left."""
    pipe, own = RANKS // (data * tensor), tuple(parameters.items())
    return Candidate(data, pipe, tensor, "allreduce", count, recompute, order, own)


#: The lecture's table.
TABLE = (
    Way("data", Candidate(4, 1, 1)),
    Way("naive layers", _pipe("naive", count=1)),
    Way("GPipe", _pipe("gpipe")),
    Way("1F1B", _pipe("1f1b", ahead=0)),
    Way("1F1B ahead", _pipe("1f1b", ahead=1)),
    Way("interleaved", _pipe("interleaved", chunks=2)),
    Way("ZB-H1", _pipe("zb_h1")),
    Way("tensor", Candidate(1, 1, 4)),
    Way("tensor + sequence", Candidate(1, 1, 4, sequence=True)),
    Way("fsdp", Candidate(4, 1, 1, "fsdp")),
    Way("data 2 x pipe 2", _pipe("1f1b", data=2, count=4, ahead=0)),
    Way("pipe 2 x tensor 2", _pipe("1f1b", tensor=2, count=4, ahead=0)),
)
#: What else is measured against the planner.
MORE = (
    Way("GPipe, 4 microbatches", _pipe("gpipe", count=4)),
    Way("1F1B, recompute", _pipe("1f1b", ahead=0, recompute=True)),
    Way("data 2 x tensor 2", Candidate(2, 1, 2)),
    Way("data 2 x pipe 2, ZB-H1", _pipe("zb_h1", data=2, count=4)),
)
WAYS = TABLE + MORE


def make_model() -> Sequential:
    """A transformer of which embedding and scores share no parameters."""
    layers = list(transformer(TOKENS, CONTEXT, WIDTH, BLOCKS).layers)
    layers[0] = replace(layers[0], name=None)
    return Sequential([*layers[:-1], Dense(TOKENS, gain=1.0)], (CONTEXT,), "float32")


MODEL = make_model()


def batch() -> tuple[Any, Any]:
    tokens = np.random.default_rng(0).integers(0, TOKENS, (BATCH, CONTEXT + 1))
    return tokens[:, :-1], tokens[:, 1:]


def polled() -> Pace:
    """Padding in which messages move."""
    return Pace(MPI.COMM_WORLD.Iprobe)


def make_profile(comm: mpicoll.Intracomm, path: Path) -> None:
    """Write how layers are padded, and how long they take then."""
    inputs, targets = batch()
    pads = comm.bcast(proportional() if comm.rank == 0 else None)
    model = padded(MODEL.layers, MODEL, pads, polled())
    found = measured.measure(model, inputs, targets, (2, 4, 8, 16, BATCH), comm)
    if comm.rank == 0:
        pairs = zip(pads, found.layers, strict=True)
        layers = tuple(replace(pad, times=layer.times) for pad, layer in pairs)
        about = {**found.about, "pads": [list(pad.times[0]) for pad in pads]}
        profile.write(path, Profile(layers, about))


def proportional() -> list[LayerProfile]:
    """Times of the layers on this rank alone, so much longer that all take `WHOLE`.

    Layers that are alike get the same: the median.
    """
    plain = measured.measure(MODEL, *batch(), (BATCH,)).layers
    alike: dict[tuple[object, ...], list[Times]] = {}
    for layer in plain:
        alike.setdefault(_kind(layer), []).append(layer.times[0])
    typical = {kind: [median(each) for each in zip(*t, strict=True)] for kind, t in alike.items()}
    total = sum(sum(typical[_kind(layer)][1:]) for layer in plain)
    pairs = ((layer, Times(BATCH, *typical[_kind(layer)][1:])) for layer in plain)
    found = [replace(layer, times=(times,)) for layer, times in pairs]
    return [_longer(layer, WHOLE / total) for layer in found]


def _longer(layer: LayerProfile, factor: float) -> LayerProfile:
    (times,) = layer.times
    longer = Times(times.samples, *(factor * seconds for seconds in times[1:]))
    return replace(layer, times=(longer,))


def _kind(layer: LayerProfile) -> tuple[object, ...]:
    return layer.kind, layer.inputs, layer.parameters


def pads_of(found: Profile) -> list[LayerProfile]:
    """How layers are padded, from a file that `make_profile` wrote."""
    pairs = zip(found.layers, found.about["pads"], strict=True)
    return [replace(layer, times=(Times(*times),)) for layer, times in pairs]


@dataclass(frozen=True)
class Said:
    """What the planner and the formulas say of a way.

    Attributes:
        outcome: Of the planner.
        sent: Messages and bytes, by the formulas.
        seconds: Of a step, by the formulas; None where there is none.
    """

    outcome: Outcome
    sent: dict[str, int]
    seconds: float | None


def said(found: Profile, cluster: Cluster, way: Way, link: formulas.Link) -> Said:
    """What is known before a step is made."""
    problem = Problem(RANKS, BATCH, cluster, modelled.layers_of(MODEL, found, cluster), slots=0)
    outcome, candidate = plan_steps.planned(problem, way.candidate), way.candidate
    layers, samples = problem.layers(candidate), problem.samples(candidate)
    assert layers is not None, "four ranks can share each layer"
    inside: Calls = [], []
    if candidate.tensor > 1:
        group = Group(cast("MPI.Intracomm", None), candidate.tensor, 0)
        item = np.dtype(np.float32).itemsize
        costs = SAMPLES * item, ring(candidate.tensor)
        parts, _ = divided(MODEL.layers, MODEL.shapes, group, *costs, candidate.sequence)
        for number, part in enumerate(parts):
            both = collectives_of(part, samples, first=not number)
            for calls, own in zip(inside, both, strict=True):
                calls += [(name, item * values) for name, values in own]
    return Said(
        outcome,
        formulas.sent(outcome, layers, inside),
        formulas.seconds(outcome, samples, layers, inside, found, link),
    )


def ready(
    comm: mpicoll.Intracomm, outcome: Outcome, pads: list[LayerProfile], pace: Pace | None
) -> plan_steps.Ready:
    """A plan, ready to make steps; without a pace, they take what they take, and sum by rings."""

    def made(layers: Sequence[Layer]) -> Sequential:
        if pace is None:
            return Sequential(layers, MODEL.shapes[0], MODEL.dtype.name, MODEL.loss)
        return padded(layers, MODEL, pads, pace)

    algorithm = "ring" if pace is None else None
    return plan_steps.ready(comm, outcome, MODEL, *batch(), made, algorithm)


# --- counting -------------------------------------------------------------------------------------


def count(comm: mpicoll.Intracomm, outcome: Outcome, way: Way, trace: str) -> dict[str, Any]:
    """What a step sends and holds, as the transports and the allocator see it; collective.

    Args:
        comm: All ranks; under ``MPICOLL_TRACE``, with rings for all collectives.
        outcome: The plan.
        way: How to train.
        trace: What the files of the trace begin with.
    """
    tracemalloc.start()
    steps = ready(comm, outcome, [], None)
    steps.step()  # makes buffers
    file = Path(f"{trace}.{MPI.COMM_WORLD.rank}")
    before, messages = file.stat().st_size, _sent(steps)
    steps.step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with file.open(encoding="utf-8") as lines:
        lines.seek(before)
        sends = [step for step in map(json.loads, lines) if step.get("step") == "send"]
    own = [now - then for now, then in zip(_sent(steps), messages, strict=True)]
    own += [len(sends), sum(step["bytes"] for step in sends)]
    steps.free()
    totals = np.sum(comm.allgather(own), axis=0)
    names = ("messages", "message_bytes", "collective_messages", "collective_bytes")
    memory = max(comm.allgather(peak))
    return {**dict(zip(names, map(int, totals), strict=True)), "memory": int(memory)}


def _sent(steps: plan_steps.Ready) -> tuple[int, int]:
    """Messages between stages, and their bytes."""
    pipeline = steps.pipeline
    return (0, 0) if pipeline is None else (pipeline.sent, pipeline.sent_bytes)


# --- measuring ------------------------------------------------------------------------------------


def measure(
    comm: mpicoll.Intracomm, outcome: Outcome, way: Way, pads: list[LayerProfile]
) -> dict[str, Any]:
    """Steps of a way, and what their idle time is made of; collective."""
    pace = polled()
    steps = ready(comm, outcome, pads, pace)
    found: list[tuple[float, float, float, float]] = []
    for _ in range(STEPS + 1):
        pace.spent = 0.0
        if steps.pipeline is None:
            seconds = plan_steps.seconds_of(comm, steps.step)
            bubble, late = 0.0, None
        else:
            with steps.pipeline.traced() as timeline:
                seconds = plan_steps.seconds_of(comm, steps.step)
            shares = timeline.shares(0)
            bubble = fmean(share.bubble for share in shares)
            late = fmean(share.straggling for share in shares)
        spent = comm.allgather(pace.spent)
        straggling = max(spent) - fmean(spent) if late is None else late
        idle = seconds - fmean(spent)
        found.append((seconds, idle, bubble, straggling))
    steps.free()
    seconds, idle, bubble, straggling = map(median, zip(*found[1:], strict=True))
    return {
        "seconds": seconds,
        "idle": idle / seconds,
        "bubble": bubble / seconds,
        "straggling": straggling / seconds,
        "exposed": (idle - bubble - straggling) / seconds,
        "steps": [round(step[0], 4) for step in found[1:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", choices=("profile", "count", "steps"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--costs", type=Path, help="what `mpicoll fit` wrote of these hosts")
    parser.add_argument("--place", default="one node", help="where, written down")
    parser.add_argument("--alpha", type=float, default=0.0, help="seconds of a message")
    parser.add_argument("--beta", type=float, default=0.0, help="seconds of each of its bytes")
    parser.add_argument("--launch", type=int, default=1, help="its number, written down")
    parser.add_argument("--ways", help="names of ways, separated by semicolons; else all")
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    if comm.size != RANKS:
        raise SystemExit(f"start {RANKS} ranks, not {comm.size}")
    if options.case == "profile":
        make_profile(comm, options.file)
        return
    found = profile.read(options.file)
    pads = pads_of(found)
    names = comm.allgather(os.uname().nodename)
    costs = cost_files.read(options.costs) if options.costs else cost_files.built_in()
    cluster = Cluster(costs, [names.index(name) for name in names])
    link = formulas.Link(options.alpha, options.beta)
    chosen = options.ways.split(";") if options.ways else [way.name for way in WAYS]
    for way in (way for way in WAYS if way.name in chosen):
        known = said(found, cluster, way, link)
        outcome = known.outcome
        facts: dict[str, Any] = {"case": options.case, "way": way.name, "plan": way.candidate.words}
        if options.case == "count":
            trace = os.environ.get("MPICOLL_TRACE", "")
            facts |= count(comm, outcome, way, trace)
            facts |= {"formula": known.sent, "planned_memory": outcome.most_memory}
        else:
            facts |= {"place": options.place, "launch": options.launch, "cut": outcome.cut}
            facts |= measure(comm, outcome, way, pads)
            facts |= {
                "planned": outcome.seconds,
                "planned_idle": outcome.idle,
                "formula": known.seconds,
            }
        if comm.rank == 0:
            training.write("inter_intra", facts)


if __name__ == "__main__":
    main()
