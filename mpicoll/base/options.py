"""Fields of a dataclass that are options of a command too."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, names: str = "", group: str | None = None, **more: Any) -> Any:
    """A field of a dataclass, with what a command line says of it.

    Args:
        default: Default of the field and of the option.
        help: What ``--help`` says.
        names: Words of the option, with blanks between them; by default that of the field after two
            dashes.
        group: Under what head ``--help`` lists it.
        more: What else `typer.Option` takes, such as `metavar`; `argument`: whether it is no option
            but an argument; `words`: its type on the command line, where that is not the field's;
            `in_file`: its type in a file, None where it is in none.
    """
    return field(
        default=default, metadata={"help": help, "names": names, "rich_help_panel": group, **more}
    )
