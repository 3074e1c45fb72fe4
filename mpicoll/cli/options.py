"""Arguments and options that several subcommands share."""

from __future__ import annotations

from typing import Annotated

import typer

Collective = Annotated[
    str, typer.Argument(metavar="COLLECTIVE", help="Such as allreduce; see `mpicoll list`.")
]
Algorithm = Annotated[
    str, typer.Argument(metavar="ALGORITHM", help="Such as ring; see `mpicoll list`.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of the algorithm, as segments=4, order=2,0,1,3 or nodes=0,0,1,1.",
    ),
]
