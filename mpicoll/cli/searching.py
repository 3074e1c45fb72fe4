"""What ``mpicoll tune --search`` does on all ranks: from candidates to a run of what is left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.cli import measured, output, session
from mpicoll.cli.errors import UsageError, usage

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpicoll.bench.records import Run
    from mpicoll.simulate.costs import CostModel

#: Choices that are measured at all, the best by prediction.
MOST = 16


def searched(
    comm: MPI.Intracomm,
    collectives: Sequence[str],
    size: str,
    model: Path | None,
    file: Path | None,
    oversubscribed: bool,
) -> Run:
    """Search for the fastest choices; a run with the points of those left, on rank 0.  Collective.

    Args:
        comm: all ranks.
        collectives: in any spelling.
        size: bytes of the whole vector, as a list.
        model: costs by which candidates are predicted; None: those that come with mpicoll.
        file: where the run is appended, if anywhere.
        oversubscribed: whether more ranks than cores are all right.

    Raises:
        UsageError: something is unknown, or there are more ranks than cores.
    """
    from mpicoll.base.json_lines import new_run
    from mpicoll.base.sizes import format_size, parse_sizes
    from mpicoll.bench import environment
    from mpicoll.bench.records import Run, Writer
    from mpicoll.bench.search import search

    names = [_named(text) for text in collectives]
    with usage():
        sizes = parse_sizes(size)
    facts, ranks = environment.gather(comm), comm.Get_size()
    crowded = bool(environment.crowded(facts, ranks))
    if crowded and not oversubscribed:
        raise UsageError(
            f"{ranks} ranks are more than the cores here, and their times are no performance; "
            "launch fewer, or give --oversubscribed"
        )
    costs = session.on_rank_0(
        comm, lambda: measured.built_in() if model is None else measured.model(model)
    )
    run = Run(comm.bcast(new_run()), facts)
    writer = session.on_rank_0(comm, lambda: Writer(file) if file else None)
    with closing(writer) if writer else nullcontext():
        if writer:
            writer.run(run.name, facts)
        for collective, nbytes in ((name, nbytes) for name in names for nbytes in sizes):
            what = f"{collective} {format_size(nbytes)}, P = {ranks}"
            begin = partial(_begin, costs, collective, facts, ranks, nbytes)
            chosen = comm.bcast(session.on_rank_0(comm, begin))

            def told(how: str, what: str = what) -> None:
                if comm.Get_rank() == 0:
                    output.remark(f"{what}: {how}")

            points = search(comm, collective, nbytes, chosen, run.name, crowded, done=told)
            run.points += points
            if writer:
                for point in points:
                    writer.point(point)
    return run


def _named(text: str) -> str:
    from mpicoll.schedule import collectives
    from mpicoll.schedule.methods import spelled

    method = spelled(text)
    with usage():
        return method.collective if method else collectives.collective(text).name


def _begin(
    costs: CostModel | None, collective: str, facts: dict[str, Any], ranks: int, nbytes: int
) -> list[str]:
    """What is measured at all: the best by prediction, and what the built-in table names."""
    assert costs is not None  # on rank 0
    from mpicoll import tuning
    from mpicoll.bench.candidates import promising
    from mpicoll.bench.runs import nodes_of

    nodes = nodes_of(facts, ranks)
    apart = len(set(nodes)) > 1
    usual = tuning.choose_placed(collective, ranks, nbytes, tuning.BUILTIN, nodes).words
    best = promising(costs, collective, ranks, nbytes, nodes if apart else (), MOST)
    return [*dict.fromkeys((usual, *best))]
