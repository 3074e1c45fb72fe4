"""``mpicoll slurm``: sweeps, trainings, searches and the user's own programs as batch jobs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mpicoll.cli import batch, output, parse
from mpicoll.cli.errors import UsageError
from mpicoll.cli.help import Command, Group

_ABOUT = "Sweeps, trainings, searches and programs of yours as jobs of SLURM."

app = typer.Typer(cls=Group, help=_ABOUT, add_completion=False)


@app.callback()
def group() -> None:
    """Sweeps, trainings, searches and programs of yours as jobs of SLURM."""


@app.command("init", cls=Command)
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the scripts; all nodes must see it.")
    ] = Path("slurm"),
) -> int:
    """Write the batch scripts, and site.env to be edited.

    Written again, scripts are those of this version, and site.env stays as it is.
    """
    kept = (folder / "site.env").exists()
    site = batch.write_scripts(folder)
    output.text(f"{site}: {'kept' if kept else 'edit it'}; scripts written to {folder}")
    return 0


@app.command("submit", cls=Command)
def submit(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(batch.KINDS)}.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- WORD...]",
            help="What follows `mpicoll bench`, `train`, `search`, `fit`; of run the program.",
        ),
    ] = None,
    site: Annotated[
        Path, typer.Option(metavar="FILE", help="The site's settings, from site.env.example.")
    ] = Path("slurm/site.env"),
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run and its folder; KIND if not given."),
    ] = None,
    nodes: Annotated[
        str,
        typer.Option("-N", "--nodes", metavar="LIST", help="Nodes; a list in a sweep: 2,4,8."),
    ] = "1",
    per_node: Annotated[
        str,
        typer.Option(metavar="LIST", help="Ranks on each node; a list in a sweep: 1,2,4."),
    ] = "1",
    launches: Annotated[
        int, typer.Option(min=1, help="Launches of each pair of nodes and ranks in a sweep.")
    ] = 1,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Most launches of a sweep at the same time.")
    ] = None,
    chain: Annotated[
        int,
        typer.Option(min=1, help="Jobs of a training or search, in turn; none is requeued."),
    ] = 1,
    time: Annotated[
        str | None, typer.Option("-t", "--time", help="Time limit of each job, as for sbatch.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Further option of sbatch: --option=--qos=long."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="After a sweep, fit it and write its page.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each sbatch and its script; submit nothing.")
    ] = False,
) -> int:
    """Submit a job, and print its number.

    A sweep is a job array for each number of nodes; each task of it is one launch. Submit the same
    command again, and a sweep measures what is missing, and a training or a search continues. A
    program of your own: `mpicoll slurm submit run --nodes 2 --per-node 8 -- python app.py`.
    """
    settings = batch.site(site)
    request = batch.Request(
        kind=kind,
        name=kind if name is None else name,
        words=tuple(words or ()),
        nodes=parse.ranks(nodes, "--nodes"),
        per_node=parse.ranks(per_node, "--per-node"),
        launches=launches,
        at_once=at_once,
        chain=chain,
        options=(*([] if time is None else [f"--time={time}"]), *(option or ())),
    )
    if report and not request.is_sweep:
        raise UsageError(f"--report follows a sweep; leave it out of {kind}")
    jobs = list(batch.commands(request, settings))
    after = batch.Request("report", request.name) if report else None
    last = () if after is None else batch.commands(after, settings)
    scripts = batch.scripts([*jobs, *last])
    if dry_run:
        _show(jobs, after, settings, scripts)
        return 0
    (settings.shared / request.name).mkdir(parents=True, exist_ok=True)
    numbers = [_submitted(command) for command in jobs]
    if after is not None:
        for command in batch.commands(replace(after, options=(_after(numbers),)), settings):
            _submitted(command)
    return 0


def _after(jobs: Sequence[str]) -> str:
    """The option that lets a job begin when others have succeeded."""
    return f"--dependency=afterok:{':'.join(jobs)}"


def _submitted(command: list[str]) -> str:
    job = batch.submit(command)
    output.text(job)
    return job


def _show(
    jobs: list[list[str]],
    after: batch.Request | None,
    site: batch.Site,
    scripts: Mapping[Path, str],
) -> None:
    """Print each command, then each script; JOB stands in place of the numbers of jobs."""
    if after is not None:
        last = replace(after, options=(_after(["JOB"] * len(jobs)),))
        jobs = [*jobs, *batch.commands(last, site)]
    for command in jobs:
        output.text(shlex.join(command))
    for script, text in scripts.items():
        output.text(f"\n# {script}\n{text}")
