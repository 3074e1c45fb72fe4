"""The reference of the ``mpicoll`` command, from the parser's own help texts."""

from __future__ import annotations

from typing import Any

import typer
from typer.main import get_command

from mpicoll.cli.app import app


def reference() -> str:
    """A section for each subcommand: usage, what it does, arguments and options."""
    group: Any = get_command(app)
    main = typer.Context(group, info_name="mpicoll")
    return "\n".join(_section(name, command, main) for name, command in group.commands.items())


def _section(name: str, command: Any, main: typer.Context) -> str:
    context = typer.Context(command, info_name=name, parent=main)
    title = f"mpicoll {name}"
    usage = " ".join([f"mpicoll {name}", *command.collect_usage_pieces(context)])
    helps = [
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if parameter.name != "help"  # every subcommand has it
    ]
    lines = [title, "-" * len(title), "", "::", "", f"   {usage}", ""]
    for paragraph in _paragraphs(command.help or ""):
        lines += [paragraph, ""]
    for words, text in filter(None, helps):
        lines += [f"``{words}``", f"   {_marked(text) or 'See the usage.'}", ""]
    return "\n".join(lines)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in _marked(text).split("\n\n")]


def _marked(text: str) -> str:
    """A help text as reStructuredText: it has single backquotes around what is typed."""
    return text.replace("`", "``").replace("*", "\\*").replace("_ ", "\\_ ")
