"""A run in a file: TOML or YAML, with the names of `Config` as keys.

dataset = "mnist5k"
model = "mlp"
hidden = [128, 64]
epochs = 20
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from mpicoll.base.files import parse_toml, parse_yaml
from mpicoll.train.config import Config

KEYS = tuple(field.name for field in fields(Config))
#: Bytes that a file may have; readers of TOML and YAML take minutes for a hundred times as many.
_MOST = 1 << 20


def read(path: Path) -> dict[str, Any]:
    """What a file says, checked for known keys and types; `Config(**...)` checks the values.

    Raises:
        ValueError: Not TOML (`.toml`) or YAML (`.yaml`, `.yml`), an unknown key (with the nearest
            known one), or a value of another type.
        OSError: It cannot be read.
        ModuleNotFoundError: A package to read it is missing.
    """
    found = parse(path)
    for key in found:
        try:
            require_known(key, KEYS)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return checked(path, found)


def require_known(key: Any, known: Sequence[str]) -> None:
    """Raise ValueError for another key than these, with the nearest one."""
    if key not in known:
        near = get_close_matches(str(key), known, n=1, cutoff=0.0)
        raise ValueError(f"unknown key {key!r}; the nearest known key is {near[0]}")


def parse(path: Path) -> dict[str, Any]:
    """What a file says, of whatever keys.

    Raises:
        ValueError: Not TOML (`.toml`) or YAML (`.yaml`, `.yml`), or without keys.
        OSError: It cannot be read.
        ModuleNotFoundError: A package to read it is missing.
    """
    found = _parsed(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no keys: write lines such as epochs = 20")
    return found


def _parsed(path: Path) -> Any:
    if path.suffix == ".toml":
        try:
            return parse_toml(_text(path))
        except ValueError as error:
            raise ValueError(f"{path} is no TOML: {error}") from None
    if path.suffix in (".yaml", ".yml"):
        try:
            return parse_yaml(_text(path))
        except ValueError as error:
            raise ValueError(f"{path} is no YAML: {error}") from None
    raise ValueError(f"{path}: give a file whose name ends with .toml, .yaml or .yml")


def _text(path: Path) -> str:
    """What is written in a file, without the mark with which some editors begin.

    Raises:
        ValueError: It is too long, or of another encoding.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise ValueError(f"it has more than {_MOST} bytes: write down what to run, and no data")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start} is {content[error.start]:#04x}, and no UTF-8: save it as UTF-8"
        ) from None


def checked(path: Path | str, found: dict[str, Any]) -> dict[str, Any]:
    """Values in the types of `Config`, lists as tuples.

    Args:
        path: Where they are from, for messages.
        found: Values by key.

    Raises:
        ValueError: One is of another type.
    """
    types = get_type_hints(Config)
    return typed(path, found, {key: (types[key], ...) for key in found})


def typed(where: Path | str, found: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Values in types of their own, lists as tuples.

    Args:
        where: Where they are from, for messages.
        found: Values by key.
        types: Of each key, as `pydantic.create_model` takes them; there may be no other key.

    Raises:
        ValueError: One is of another type, missing, or not known.
    """
    from pydantic import ConfigDict, ValidationError, create_model

    settings = ConfigDict(protected_namespaces=(), extra="forbid")
    model: Any = create_model("File", __config__=settings, **types)
    try:
        # As JSON, lists are tuples and whole numbers are floats, and nothing else is converted.
        made = model.model_validate_json(json.dumps(found, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {place} is {first['input']!r}: {first['msg']}") from None
    return {key: getattr(made, key) for key in types}
