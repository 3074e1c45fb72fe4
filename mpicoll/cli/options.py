"""Arguments and options that several subcommands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import ArgumentInfo

from mpicoll.base.wording import PARAMETER
from mpicoll.schedule.methods import spelled


def any_spelling(text: str | None) -> str | None:
    """The name of the collective that is meant, as Allreduce or all-reduce; else the same text."""
    method = spelled(text) if text else None
    return method.collective if method else text


Collective = Annotated[
    str,
    typer.Argument(
        metavar="COLLECTIVE",
        help="Collective, such as allreduce; see `mpicoll list`.",
        callback=any_spelling,
    ),
]
Algorithm = Annotated[
    str, typer.Argument(metavar="ALGORITHM", help="Algorithm, such as ring; see `mpicoll list`.")
]
Ranks = Annotated[
    str, typer.Option("-P", "--ranks", metavar="LIST", help="Numbers of ranks: 4, 1-33 or 2,4,8.")
]
Sizes = Annotated[
    str,
    typer.Option(
        "-s",
        "--size",
        metavar="LIST",
        help="Sizes in bytes: 8,64K,1M, or 64K-64M (each 4 times the last).",
    ),
]
Root = Annotated[int, typer.Option("-r", "--root", metavar="RANK", help="Root rank.")]
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Folder of checkpoints, or one checkpoint.")
]
Best = Annotated[bool, typer.Option("--best", help="Use the best checkpoint, not the last.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=PARAMETER)]

Command = TypeVar("Command", bound=Callable[..., int])


def on_command_line(invocation: typer.Context, names: Iterable[str]) -> Iterator[str]:
    """Those of some parameters that the command line gives, and no file or default."""
    for name in names:
        source = invocation.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield name


def from_fields(
    cls: type, groups: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Command], Command]:
    """Give a command the fields of a dataclass as options (`mpicoll.base.options.option`).

    They stand behind the command's positional parameters, and in front of those by keyword; the
    command takes them by ``**``.

    Args:
        cls: The dataclass.
        groups: Of fields that name no group themselves: that under which help lists them.
    """

    def with_options(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        before = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
        after = [p for p in own if p.kind is p.KEYWORD_ONLY]
        made = [
            p.replace(kind=p.KEYWORD_ONLY) for p in (*before, *_parameters(cls, groups), *after)
        ]
        made.sort(key=lambda p: not isinstance(p.default, ArgumentInfo))  # arguments come first
        command.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
        return command

    return with_options


def _parameters(cls: type, groups: Mapping[str, str]) -> Iterator[inspect.Parameter]:
    types = get_type_hints(cls)
    for field in fields(cls):
        more: dict[str, Any] = dict(field.metadata)
        written, default = more.pop("words", types[field.name]), field.default
        if isinstance(default, tuple):
            written, default = str, ",".join(map(str, default))
        more.pop("in_file", None)
        more["rich_help_panel"] = more.get("rich_help_panel") or groups.get(field.name)
        make = typer.Argument if more.pop("argument", False) else typer.Option
        info = make(default, *more.pop("names").split(), **more)
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=written
        )
