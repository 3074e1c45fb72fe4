"""Sweeps written down: a TOML file with the options of ``mpicoll bench`` by their long names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mpicoll.base.files import parse_toml
from mpicoll.bench.options import Options


class _Sweep(BaseModel):
    """The options of a sweep; those left out are as on the command line."""

    model_config = ConfigDict(extra="forbid", strict=True)

    collectives: list[str] | None = None

    def options(self) -> dict[str, Any]:
        """The options given, by field, as they are written on the command line."""
        given = self.model_dump(exclude_none=True)
        return {_FIELDS.get(key, key): _written(value) for key, value in given.items()}


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return [f"{name}={_written(number)}" for name, number in value.items()]
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def _types() -> Iterator[tuple[str, str, Any]]:
    """Key, field and type of each option that may be in a file."""
    types = get_type_hints(Options)
    for field in fields(Options):
        words = [word for word in field.metadata["names"].split() if word.startswith("--")]
        key = words[0][2:].replace("-", "_") if words else field.name
        if (kind := field.metadata.get("in_file", types[field.name])) is not None:
            yield key, field.name, kind


#: The field of each key.
_FIELDS = {key: name for key, name, _ in _types()}
_MORE: Any = {key: (kind | None, None) for key, _, kind in _types()}
Sweep = create_model("Sweep", __base__=_Sweep, **_MORE)


def load(path: Path) -> _Sweep:
    """Read a sweep.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no TOML, or a key or a value is none that a sweep has; the message
            names it.
    """
    try:
        written = parse_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return Sweep.model_validate(written)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{path}: {_in_words(first)}") from None


def _in_words(error: Any) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Sweep.model_fields, n=1, cutoff=0.5)
        known = f"did you mean {near[0]}" if near else f"known are {', '.join(Sweep.model_fields)}"
        return f"unknown key {name!r}; {known}"
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"{name} = {error['input']!r}: {message}"
