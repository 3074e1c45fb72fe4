"""The subcommands, by name; the module of one is imported when it is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from mpicoll import __version__
from mpicoll.base import extensions
from mpicoll.cli.errors import UsageError
from mpicoll.cli.help import Command, Group

#: Of each subcommand: its module, what the module calls it, and the first sentence of its help.
#: One of two words goes before one of the first word alone.
COMMANDS = {
    "list": ("listing", "command", "List the collectives and their algorithms."),
    "show": (
        "show",
        "command",
        "Draw the schedule of an algorithm: which rank sends which block to whom, step by step.",
    ),
    "show pipeline": (
        "pipeline",
        "show",
        "Draw the schedule of a pipeline: what each rank computes when.",
    ),
    "verify": (
        "verify",
        "command",
        "Verify schedules: every contribution exactly once, no deadlock, and the promised counts.",
    ),
    "verify pipeline": (
        "pipeline",
        "verify",
        "Verify pipeline schedules: each task once, no deadlock, the promised memory and time.",
    ),
    "simulate": (
        "simulate",
        "command",
        "Simulate an algorithm under the alpha-beta-gamma model.",
    ),
    "simulate pipeline": (
        "pipeline",
        "simulate",
        "Simulate a training step in a pipeline: its time and its idle share.",
    ),
    "links": (
        "links",
        "command",
        "Measure the links between all ranks, alone and together, and write a machine file.",
    ),
    "synthesize": (
        "synthesize",
        "command",
        "Make schedules for a machine with shared or uneven links, and bound what is possible.",
    ),
    "bench": (
        "bench",
        "command",
        "Measure collectives for a range of sizes: median time of the slowest rank, with interval.",
    ),
    "fit": (
        "fit",
        "command",
        "Fit the costs of messages, bytes, reductions, rounds and calls, with errors.",
    ),
    "predict": (
        "predict",
        "command",
        "Predict how long a collective takes by one algorithm, with an interval.",
    ),
    "explain": (
        "predict",
        "explain",
        "Rank the algorithms of a collective for one size: time, interval and reason.",
    ),
    "tune": (
        "tune",
        "command",
        "Choose the fastest algorithm for each size and number of ranks that was measured.",
    ),
    "compare": (
        "compare",
        "command",
        "Compare two sets of launches: is B faster or slower than A?",
    ),
    "report": (
        "report",
        "command",
        "Write a page about sweeps, a training run or a search: one file that works offline.",
    ),
    "profile": (
        "profile",
        "command",
        "Show where a program spends time in collectives.",
    ),
    "train": (
        "train",
        "command",
        "Train a model on all ranks.",
    ),
    "plan": (
        "plan",
        "command",
        "Choose mesh, schedule and cut for a model: the shortest step that fits into memory.",
    ),
    "search": (
        "search",
        "command",
        "Search a space of hyperparameters for the best ones.",
    ),
    "tiers": (
        "tiers",
        "command",
        "Run a network with early exits: accuracy, bytes and time for each threshold.",
    ),
    "evaluate": (
        "evaluate",
        "command",
        "Measure the model of a checkpoint on the validation or test set.",
    ),
    "generate": (
        "generate",
        "command",
        "Continue a prompt with a model that was trained on text.",
    ),
    "export": (
        "export",
        "command",
        "Write the parameters of a checkpoint to a file, by name.",
    ),
    "doctor": (
        "doctor",
        "command",
        "Check MPI, the launch and the installation; alone or under mpirun.",
    ),
    "slurm": (
        "slurm",
        "app",
        "Sweeps, trainings, searches and programs of yours as jobs of SLURM.",
    ),
}


def load(name: str) -> Any:
    """The parser of a subcommand, with all its options."""
    module, attribute, _ = COMMANDS[name]
    found = getattr(import_module(f"mpicoll.cli.commands.{module}"), attribute)
    if isinstance(found, typer.Typer):
        return get_command(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command)(_with_imports(found))
    return get_command(alone)


def _with_imports(command: Callable[..., int]) -> Callable[..., int]:
    """The same command with an option that imports modules before it begins."""

    def run(import_: list[str] | None = None, **given: Any) -> int:
        return command(**given)

    option = typer.Option(
        None,
        "--import",
        metavar="MODULE",
        help="Module or file (mycoll.py) that registers your own algorithms.",
        callback=_imported,
        is_eager=True,
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    own = inspect.signature(command, eval_str=True).parameters.values()
    more = inspect.Parameter("import_", kind, default=option, annotation=list[str] | None)
    run.__signature__ = inspect.Signature([*own, more])  # type: ignore[attr-defined]
    run.__doc__ = command.__doc__
    return run


def _imported(context: typer.Context, modules: list[str] | None) -> list[str] | None:
    if modules and not context.resilient_parsing:
        try:
            extensions.load(modules)
        except ValueError as error:
            raise UsageError(f"--import: {error}") from None
    return modules


class Subcommands(Group):
    """Its subcommands are only names and sentences until one is asked for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The subcommand that the first word names, or the first two, and the other words."""
        name, _, rest = super().resolve_command(ctx, args)
        if f"{name} {' '.join(rest[:1])}" in COMMANDS:
            name, rest = f"{name} {rest[0]}", rest[1:]
        return name, name and load(name), rest


def _not_loaded() -> None:
    """What the list of subcommands knows of each."""


app = typer.Typer(
    name="mpicoll",
    cls=Subcommands,
    help="Choose, understand, predict and beat the collectives of an MPI library.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for subcommand, (_, _, sentence) in COMMANDS.items():
    app.command(subcommand, help=sentence)(_not_loaded)


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
