"""Help texts: options in groups, with a line each where that is possible."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from mpicoll.cli import output

#: Most characters of a line, and of an option and its value beside its text.
_WIDEST, _NAMES = 120, 30
#: The groups of what names none.
_OPTIONS, _ARGUMENTS = "Options", "Arguments"
#: How values are written, by what typer calls them.
_KINDS = {"<int range>": "N", "<int>": "N", "<float>": "X", "<float range>": "X", "<path>": "PATH"}
_KINDS |= {" <list[str]>": "", " <list[Path]>": "", "<str>": "TEXT"}
_RANGE = re.compile(r"([\d.]+<=?)?x[<>]=?[\d.]+")


class Command(TyperCommand):
    """A command whose options stand in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, text, arguments and options."""
        _write(self, ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, group by group; those without a group last.

        Defaults stand in brackets.
        """
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                names, text = _plain(*record)
                kind = _OPTIONS
                if parameter.param_type_name == "argument":
                    kind, names = _ARGUMENTS, names.removesuffix(" TEXT").removesuffix(" PATH")
                group = getattr(parameter, "rich_help_panel", None) or kind
                groups.setdefault(group, []).append((names, text))
        rest = groups.pop(_OPTIONS, [])
        for name, records in [*groups.items(), (_OPTIONS, rest)]:
            with formatter.section(name):
                formatter.write_dl(records, col_max=_NAMES)


class Group(TyperGroup):
    """A group of commands whose help looks the same."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, text, options and commands."""
        _write(self, ctx, formatter)


def _plain(names: str, text: str) -> tuple[str, str]:
    """An option and its text: a word for its kind of value, and its default alone in brackets."""
    for kind, word in _KINDS.items():
        names = names.replace(kind, word)
    text, bracket, rest = text.rpartition("  [")
    if not bracket:
        return names.strip(), rest
    facts = [fact for fact in rest[:-1].split("; ") if not _RANGE.fullmatch(fact)]
    about = "; ".join(facts).replace("default: ", "")
    return names.strip(), f"{text} [{about}]" if about else text


def _write(command: Any, ctx: Any, formatter: Any) -> None:
    formatter.width = min(output.width(), _WIDEST)
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    command.format_options(ctx, formatter)
