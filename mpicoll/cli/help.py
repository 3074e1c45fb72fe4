"""Help texts: options in groups, with a line each where that is possible."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from mpicoll.cli import output

#: Most characters of a line, and of an option and its value beside its text.
_WIDEST, _NAMES = 120, 30
#: The groups of what names none.
_OPTIONS, _ARGUMENTS = "Options", "Arguments"


class Command(TyperCommand):
    """A command whose options stand in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, text, arguments and options."""
        _write(self, ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, group by group; those without a group last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                kind = _ARGUMENTS if is_argument else _OPTIONS
                group = getattr(parameter, "rich_help_panel", None) or kind
                groups.setdefault(group, []).append(record)
        rest = groups.pop(_OPTIONS, [])
        for name, records in [*groups.items(), (_OPTIONS, rest)]:
            with formatter.section(name):
                formatter.write_dl(records, col_max=_NAMES)


class Group(TyperGroup):
    """A group of commands whose help looks the same."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, text, options and commands."""
        _write(self, ctx, formatter)


def _write(command: Any, ctx: Any, formatter: Any) -> None:
    formatter.width = min(output.width(), _WIDEST)
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    command.format_options(ctx, formatter)
