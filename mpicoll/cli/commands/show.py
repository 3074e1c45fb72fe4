"""``mpicoll show``: a schedule as a drawing, or as its steps; or the steps of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import output, parse, wanted
from mpicoll.cli.errors import UsageError, needing, reading, usage
from mpicoll.cli.options import Json, Root, Set, any_spelling

if TYPE_CHECKING:
    from mpicoll import registry, schedule
    from mpicoll.schedule.parameters import Value


def command(
    collective: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE|FILE",
            help="Collective, such as allreduce; or a trace file that MPICOLL_TRACE wrote.",
        ),
    ],
    algorithm: Annotated[
        str,
        typer.Argument(metavar="[ALGORITHM]", help="Algorithm, such as ring; see `mpicoll list`."),
    ] = "",
    ranks: Annotated[
        str | None,
        typer.Option(
            "-P", "--ranks", metavar="N", help="Number of ranks; 4, or that of the schedule file."
        ),
    ] = None,
    root: Root = 0,
    set_: Set = None,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the drawing to a file: .svg, .pdf or .png."),
    ] = None,
    json: Json = False,
) -> int:
    """Draw the schedule of an algorithm: which rank sends which block to whom, step by step.

    With a trace FILE alone: what the collectives of a program did, step by step.
    """
    if not algorithm:
        return _show_trace(collective, json)
    from mpicoll import draw
    from mpicoll.simulate.clock import check_call

    entry = wanted.algorithm(any_spelling(collective) or collective, algorithm)
    sizes = parse.ranks(ranks or str(entry.only or 4))
    if len(sizes) != 1:
        raise UsageError(f"-P {ranks!r}: a drawing has one number of ranks; give one, such as 4")
    parameters = parse.parameters(set_ or [])
    with usage():
        check_call(sizes[0], root)
        entry.fitting(sizes[0], parameters)
        drawing = None if json else draw.text(entry, sizes[0], root, parameters)
        if svg is not None:
            with needing("matplotlib", "--svg"):
                draw.svg(svg, entry, sizes[0], root, parameters)
    if drawing is None:
        output.facts(steps(entry, sizes[0], root, parameters))
    else:
        output.text(drawing)
    return 0


def _show_trace(path: str, json: bool) -> int:
    from mpicoll.runtime import trace
    from mpicoll.schedule import collectives

    if path in collectives.COLLECTIVES:
        raise UsageError(f"name an algorithm of {path} too; `mpicoll list {path}` shows them")
    with reading("no trace can be read: "):
        records = trace.read(path)
    if json:
        output.facts(records)
    else:
        for line in trace.lines(records):
            output.text(line)
    return 0


def steps(
    entry: registry.Algorithm, size: int, root: int, parameters: dict[str, Value]
) -> dict[str, Any]:
    """The schedule of all ranks as plain values: ranks, their channels, rounds and steps."""
    nblocks, nscratch = entry.blocks(size), entry.scratch(size)
    return {
        "collective": entry.collective,
        "algorithm": entry.name,
        "size": size,
        "root": root if entry.definition.rooted else None,
        "parameters": entry.complete(parameters),
        "blocks": nblocks,
        "scratch": nscratch,
        "ranks": [
            [
                {
                    "segment": channel.segment,
                    "segments": channel.segments,
                    "window": channel.window,
                    "rounds": [
                        [_step(step, nblocks, nscratch) for step in steps]
                        for steps in channel.rounds
                    ],
                }
                for channel in entry.channels(rank, size, root, parameters)
            ]
            for rank in range(size)
        ],
    }


def _step(step: schedule.Step, nblocks: int, nscratch: int) -> dict[str, Any]:
    from mpicoll.schedule import blocks

    named: dict[str, Any] = {"step": type(step).__name__}
    for name, value in step._asdict().items():
        if name == "peer":
            named[name] = value
        else:
            named[name] = [list(place) for place in blocks(value, nblocks, nscratch)]
    return named
