"""``mpicoll plan``: which parallelism trains a model fastest, by measured costs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import measured, output, parse, planned, session
from mpicoll.cli.commands.train import GROUP_OF
from mpicoll.cli.commands.train import given as given_options
from mpicoll.cli.errors import UsageError, reading, usage
from mpicoll.cli.measured import InterAlpha, InterBeta, Network
from mpicoll.cli.options import Json, from_fields
from mpicoll.train.options import Options

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpicoll.train import Config
    from mpicoll.train.data import Dataset
    from mpicoll.train.models import Sequential
    from mpicoll.train.planner.problem import Problem
    from mpicoll.train.planner.profile import Profile

#: Other meshes in the table.
_RIVALS = 8
_MOST_RANKS = 4096


@from_fields(Options, GROUP_OF)
def command(
    invocation: typer.Context,
    *,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-P",
            "--ranks",
            min=1,
            max=_MOST_RANKS,
            metavar="N",
            help="Ranks to plan for; by default those of the profile.",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="NxM", help="Nodes, and ranks of each, as 4x4; by default one node."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of each rank, as 8G; by default no limit.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Times of layers that --measure wrote.")
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measure the layers on all ranks, and write them there."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="FLOP/S",
            help="Operations of a rank in a second, in place of a profile; by default this one's.",
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Parameters that `mpicoll fit` wrote; model.json if there is one, else those that "
            "come with mpicoll.",
        ),
    ] = None,
    network: Network = None,
    inter_alpha: InterAlpha = None,
    inter_beta: InterBeta = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the plan: TOML for train --config."
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say the plan in words.")] = False,
    json: Json = False,
    **_: Any,
) -> int:
    """Choose mesh, schedule and cut for a model: the shortest step that fits into memory.

    DATASET and the options of `mpicoll train` say what is trained. The times of the layers come
    from a profile (mpirun -n 4 mpicoll plan ... --measure layers.json), or from their operations
    and a rate. Plans are simulated in ascending order of what they take at least, until no other
    can be faster. The exit status is 1 if none fits into the memory.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import Config
    from mpicoll.train.planner import plan_file
    from mpicoll.train.planner.accepted import takes

    if measure is not None and (profile is not None or rate is not None):
        raise UsageError("--measure makes a profile: leave --profile and --rate out")
    if profile is not None and rate is not None:
        raise UsageError("--profile and --rate both say how fast layers are: give one")
    if rate is not None and not math.isfinite(rate):
        raise UsageError(f"--rate {rate}: give a finite number, such as 1e10")
    with usage():
        values = given_options(invocation, None)
        for name in plan_file.DECIDED:
            if values.get(name) is not None:
                raise ValueError(
                    f"--{name.replace('_', '-')} {values[name]}: a plan decides this; leave it out"
                )
        config = Config(**values)
        if config.device != "cpu":
            raise ValueError(
                f"--device {config.device}: layers are measured on processors; leave it out"
            )
        if out is not None and out.suffix != ".toml":
            raise ValueError(f"-o {out}: give a file whose name ends with .toml")
        if out is not None and (out.is_dir() or not out.parent.is_dir()):
            raise ValueError(f"-o {out}: give a file in a folder that exists")
    limit = None if memory is None else parse.size(memory)
    measured.need(["pydantic"], "config")
    comm = session.communicator() if measure is not None else None
    dataset, model = _model(config)
    if comm is not None and measure is not None:
        times = _measure(comm, config, dataset, model, measure)
        if comm.Get_rank():
            return 0
    else:
        times = _times(model, profile, rate)
    links = network, inter_alpha, inter_beta
    count, samples = _count(ranks, times), len(dataset.train_targets)
    problem = _problem(config, model, times, count, nodes, limit, costs, links)
    batch = config.global_batch(problem.ranks)
    if batch > samples:
        raise UsageError(
            f"batches of {batch} samples, and {dataset.name} has {samples}: give a batch of "
            f"at most {samples}"
        )
    problem = replace(problem, takes=partial(takes, values, model, samples))
    return _plan(problem, model, values, out, explain, json)


# --- what is asked for ----------------------------------------------------------------------------


def _model(config: Config) -> tuple[Dataset, Sequential]:
    from mpicoll.train.data import load
    from mpicoll.train.driver.named import make_model

    with reading():
        dataset = load(config.dataset, config.data, config.context)
        dataset = dataset.astype(config.dtype)
        return dataset, make_model(config, dataset)


def _measure(
    comm: MPI.Intracomm, config: Config, dataset: Dataset, model: Sequential, path: Path
) -> Profile:
    """Measure the layers on all ranks, and write what rank 0 has."""
    from mpicoll.train.planner import measured as layers
    from mpicoll.train.planner import profile

    batch = min(config.global_batch(comm.Get_size()), len(dataset.train_targets))
    sizes = [1]
    while sizes[-1] < batch:
        sizes.append(min(4 * sizes[-1], batch))
    found = layers.measure(
        model, dataset.train_inputs[:batch], dataset.train_targets[:batch], sizes, comm
    )
    session.on_rank_0(comm, lambda: profile.write(path, found))
    return found


def _times(model: Sequential, path: Path | None, rate: float | None) -> Profile:
    from mpicoll.train.planner import measured as layers
    from mpicoll.train.planner import profile

    if path is not None:
        with usage():
            return profile.read(path)
    if rate is None:
        rate = layers.rate()
        output.remark(
            f"mpicoll: no profile: times of layers are their operations at {rate / 1e9:.3g} "
            "GFLOP/s, that of products of matrices here; give --measure, --profile or --rate"
        )
    return layers.from_rate(model, rate)


def _count(ranks: int | None, times: Profile) -> int:
    known = times.about.get("ranks")
    if ranks is None and not (isinstance(known, int) and 0 < known <= _MOST_RANKS):
        raise UsageError("nothing says for how many ranks to plan: give them, as -P 16")
    return int(ranks or known)  # type: ignore[arg-type]


def _problem(
    config: Config,
    model: Sequential,
    times: Profile,
    ranks: int,
    nodes: str | None,
    memory: int | None,
    path: Path | None,
    links: tuple[str | None, str | None, str | None],
) -> Problem:
    from mpicoll.train.planner.cluster import Cluster
    from mpicoll.train.planner.modelled import layers_of
    from mpicoll.train.planner.problem import Problem
    from mpicoll.train.strategies.protocol import slots

    if config.spares >= ranks:
        raise UsageError(
            f"{config.spares} spare rank(s) of {ranks} leave none to train: give fewer --spares, "
            "or more ranks by -P"
        )
    with usage():
        workers = config.worker_count(ranks - config.spares)
    per_node = _per_node(nodes, ranks)
    parameters, ours = measured.model_or_built_in(path)
    parameters = measured.with_links(parameters, *links, per_node, needed="--nodes, as 4x4")
    if per_node and per_node < ranks and not measured.has_link(parameters):
        raise UsageError(f"nothing says what messages between nodes cost{measured.LINK_REMEDY}")
    if ours:
        output.remark(
            "mpicoll: no model of this machine: messages within a node cost what they do on "
            f"{parameters.about['machine'].get('processor', 'another one')}; give --costs"
        )
    cluster = Cluster(parameters, [rank // (per_node or ranks) for rank in range(workers)])
    with usage():
        layers = layers_of(model, times, cluster)
    batch, narrow = config.global_batch(workers) * config.accumulate, config.is_narrow
    helpers = ranks - workers
    sequences = any(len(shape) == 2 for shape in model.shapes)
    numbers = slots(config), memory, narrow, helpers, sequences
    return Problem(workers, batch, cluster, layers, *numbers)


def _per_node(nodes: str | None, ranks: int) -> int | None:
    if nodes is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,6})", nodes.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"--nodes {nodes!r}: give nodes and ranks of each, as 4x4")
    count, each = int(match[1]), int(match[2])
    if count * each != ranks:
        raise UsageError(
            f"--nodes {nodes} has {count * each} ranks, and the plan is for {ranks}: give "
            f"-P {count * each}, or other nodes"
        )
    return each


# --- what is found --------------------------------------------------------------------------------


def _plan(
    problem: Problem,
    model: Sequential,
    values: dict[str, Any],
    out: Path | None,
    explain: bool,
    json: bool,
) -> int:
    from mpicoll.train.planner import comparison, needs, plan_file
    from mpicoll.train.planner.measured import halves
    from mpicoll.train.planner.problem import require_short
    from mpicoll.train.planner.search import search

    layers, parts = len(model.layers), halves(model)
    every = problem.candidates(layers, parts)
    with output.progress() as progress:
        task = progress.add_task("simulating", total=None)
        found = search(problem, every, done=lambda n: progress.update(task, completed=n))
    best = found.best
    if best is None:
        with usage():
            need = needs.smallest_need(problem, layers, parts)
        remedies = needs.remedies(problem, need, layers, parts)
        planned.refusal(problem, need, remedies, json)
        return 1
    with usage():
        require_short(best.seconds)
    others = comparison.rivals(problem, every, found, _RIVALS)
    if out is not None:
        with reading():
            plan_file.write(out, values, best, problem)
        output.remark(f"mpicoll: plan written to {out}")
    if json:
        output.facts(planned.facts(problem, found, best, others))
    else:
        planned.report(problem, found, best, others, explain)
    return 0
