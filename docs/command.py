"""The reference of the ``mpicoll`` command, from the parser's own help texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command

from mpicoll.cli.app import COMMANDS, app, load


def reference() -> str:
    """A section for each subcommand: usage, what it does, arguments and options."""
    top = typer.Context(get_command(app), info_name="mpicoll")
    return "\n".join(_sections(top, {name: load(name) for name in COMMANDS}))


def _sections(group: typer.Context, commands: dict[str, Any]) -> Iterator[str]:
    for name, command in commands.items():
        context = typer.Context(command, info_name=name, parent=group)
        if hasattr(command, "commands"):
            yield from _sections(context, command.commands)
        else:
            yield _section(command, context)


def _section(command: Any, context: typer.Context) -> str:
    title = context.command_path
    usage = " ".join([title, *command.collect_usage_pieces(context)])
    helps = [
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if parameter.name != "help"  # every subcommand has it
    ]
    lines = [title, "-" * len(title), "", "::", "", f"   {usage}", ""]
    for paragraph in _paragraphs(command.help or ""):
        lines += [paragraph, ""]
    for words, text in filter(None, helps):
        words = words.partition(" <")[0]  # an argument without the name of its type
        lines += [f"``{words}``", f"   {_marked(text) or 'See the usage line.'}", ""]
    return "\n".join(lines)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in _marked(text).split("\n\n")]


def _marked(text: str) -> str:
    """A help text as reStructuredText: it has single backquotes around what is typed."""
    return text.replace("`", "``").replace("*", "\\*").replace("_ ", "\\_ ")
