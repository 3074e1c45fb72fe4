"""The subcommands, collected."""

from __future__ import annotations

from typing import Annotated

import typer

from mpicoll import __version__
from mpicoll.cli.commands import (
    bench,
    compare,
    doctor,
    fit,
    links,
    listing,
    predict,
    report,
    show,
    simulate,
    slurm,
    synthesize,
    train,
    tune,
    verify,
)

app = typer.Typer(
    name="mpicoll",
    help="Choose, understand, predict and beat the collectives of an MPI library.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for name, command in (
    ("list", listing.command),
    ("show", show.command),
    ("verify", verify.command),
    ("simulate", simulate.command),
    ("links", links.command),
    ("synthesize", synthesize.command),
    ("bench", bench.command),
    ("fit", fit.command),
    ("predict", predict.command),
    ("explain", predict.explain),
    ("tune", tune.command),
    ("compare", compare.command),
    ("report", report.command),
    ("train", train.command),
    ("doctor", doctor.command),
):
    app.command(name)(command)
app.add_typer(slurm.app, name="slurm")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mpicoll {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Choose, understand, predict and beat the collectives of an MPI library."""
