"""``mpicoll synthesize``: schedules that are made for a machine, and what no schedule can beat."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import made, output, parse, session
from mpicoll.cli.errors import UsageError, needing, usage
from mpicoll.cli.options import Collective, Json, Root, Sizes
from mpicoll.registry import is_path, path_of

if TYPE_CHECKING:
    from mpicoll.simulate.machine import Machine
    from mpicoll.synthesis.search import Found, Wish


def command(
    collective: Collective,
    machine: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Machine file with hosts and links.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "-m", "--model", metavar="FILE", help="Costs written by `mpicoll fit`, instead."
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option("-P", "--ranks", metavar="N", help="Number of ranks, with --model."),
    ] = None,
    per_node: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Ranks on each node, with --model; 0: all on one."),
    ] = 0,
    size: Sizes = "1M",
    file: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the schedule to this file, as JSON."
        ),
    ] = None,
    root: Root = 0,
    trees: Annotated[
        str | None, typer.Option(metavar="LIST", help="Numbers of parallel trees to try: 8,16.")
    ] = None,
    segments: Annotated[
        str | None, typer.Option(metavar="LIST", help="Numbers of segments to try: 4,16.")
    ] = None,
    evaluations: Annotated[
        int, typer.Option(min=1, help="Schedules to simulate for each size.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    longest: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest message of a schedule: 48K.")
    ] = None,
    measure: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Measure the N best schedules and the N best algorithms on the ranks launched.",
        ),
    ] = 0,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write tuning rules from --measure to this file."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot the load of the links: .svg, .pdf or .png."),
    ] = None,
    json: Json = False,
) -> int:
    """Make schedules for a machine with shared or uneven links, and bound what is possible.

    The bound is the least time in which the busiest port or link can carry its traffic, for any
    choice of trees. The algorithms of the catalogue compete: if one is as fast, the command names
    it and writes no file.
    """
    if rules is not None and not measure:
        raise UsageError("--rules needs --measure: what is predicted alone makes no rule")
    from mpicoll.base.sizes import parse_sizes

    with usage():
        sizes = parse_sizes(size)
    asked = _Asked(
        collective, _machine(machine, model, ranks, per_node), sizes, root, _wish(
            trees, segments, evaluations, seed, longest
        ),
    )  # fmt: skip
    if measure:
        return _measured(asked, measure, file, rules, plot, json)
    made.report(_search(asked), file, plot, json, None)
    return 0


@dataclass(frozen=True)
class _Asked:
    collective: str
    machine: Machine
    sizes: tuple[int, ...]
    root: int
    wish: Wish


def _wish(
    trees: str | None, segments: str | None, evaluations: int, seed: int, longest: str | None
) -> Wish:
    from mpicoll.base.sizes import parse_size
    from mpicoll.synthesis.search import Wish

    with usage():
        return Wish(
            parse.strands(trees) if trees else (),
            parse.segments(segments) if segments else (),
            evaluations,
            seed,
            parse_size(longest) if longest else None,
        )


def _machine(machine: Path | None, model: Path | None, ranks: str | None, per_node: int) -> Machine:
    """The machine of a file, or of fitted costs."""
    if (machine is None) == (model is None):
        raise UsageError("give the machine by --machine FILE, or by --model FILE and -P")
    from mpicoll.files import machine_files
    from mpicoll.tuning import cost_files

    if machine is not None:
        if ranks is not None or per_node:
            raise UsageError("-P and --per-node go with --model; a machine file has its own")
        with needing("pydantic", "--machine"), usage():
            return machine_files.read(machine)
    assert model is not None
    numbers = parse.ranks(ranks) if ranks else ()
    if len(numbers) != 1:
        raise UsageError("--model needs one number of ranks, as -P 8")
    with needing("pydantic", "--model"), usage():
        return machine_files.from_costs(cost_files.read(model).general, numbers[0], per_node)


def _search(asked: _Asked) -> Found:
    from mpicoll.synthesis.search import search

    with output.progress() as progress, needing("scipy", "synthesize"), usage():
        total = asked.wish.evaluations * len(asked.sizes)
        task = progress.add_task("trying schedules", total=total)
        return search(
            asked.collective,
            asked.machine,
            asked.sizes,
            asked.root,
            asked.wish,
            lambda: progress.advance(task),
        )


def _measured(
    asked: _Asked,
    count: int,
    file: Path | None,
    rules: Path | None,
    plot: Path | None,
    json: bool,
) -> int:
    """Let the ranks choose among what the clock prefers.  Collective."""
    network = asked.machine.network
    assert network is not None
    comm = session.communicator()
    if comm.Get_size() != network.ranks:
        raise UsageError(
            f"the machine has {network.ranks} ranks and {comm.Get_size()} are launched; launch as "
            "many"
        )
    from mpicoll.bench.finalists import measure

    # Rank 0 alone writes and reads the files of the finalists.
    with tempfile.TemporaryDirectory() as folder:
        found = session.on_rank_0(comm, lambda: _search(asked))
        finalists = session.on_rank_0(
            comm, lambda: made.finalists(found, count, Path(folder)) if found else {}
        )
        words = comm.bcast(finalists and {n: [f.words for f in of] for n, of in finalists.items()})
        own: Any = comm
        for path in sorted({w.split()[0] for of in words.values() for w in of}):
            if is_path(path):
                own.load(path_of(path))
        seconds = {n: measure(comm, asked.collective, n, of, asked.root) for n, of in words.items()}

    def report() -> None:
        assert found is not None and finalists is not None
        times = {n: list(zip(finalists[n], seconds[n], strict=True)) for n in asked.sizes}
        rows = made.report(found, file, plot, json, times)
        if rules is not None:
            made.write_rules(rules, found, rows)

    session.on_rank_0(comm, report)
    return 0
