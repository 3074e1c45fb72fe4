"""A run in a file: TOML or YAML, with the names of `Config` as keys.

dataset = "mnist5k"
model = "mlp"
hidden = [128, 64]
epochs = 20
"""

from __future__ import annotations

import json
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from mpicoll.base.files import parse_toml, parse_yaml
from mpicoll.train.config import Config

KEYS = tuple(field.name for field in fields(Config))


def read(path: Path) -> dict[str, Any]:
    """What a file says, checked for known keys and types; `Config(**...)` checks the values.

    Raises:
        ValueError: Not TOML (`.toml`) or YAML (`.yaml`, `.yml`), an unknown key (with the nearest
            known one), or a value of another type.
        OSError: It cannot be read.
        ModuleNotFoundError: A package to read it is missing.
    """
    found = _parse(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no keys: write lines such as epochs = 20")
    for key in found:
        if key not in KEYS:
            near = get_close_matches(str(key), KEYS, n=1, cutoff=0.0)
            raise ValueError(f"{path}: unknown key {key!r}; the nearest known key is {near[0]}")
    return checked(path, found)


def _parse(path: Path) -> Any:
    if path.suffix == ".toml":
        try:
            return parse_toml(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no TOML: {error}") from None
    if path.suffix in (".yaml", ".yml"):
        try:
            return parse_yaml(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no YAML: {error}") from None
    raise ValueError(f"{path}: give a file whose name ends with .toml, .yaml or .yml")


def checked(path: Path | str, found: dict[str, Any]) -> dict[str, Any]:
    """Values in the types of `Config`, lists as tuples.

    Args:
        path: Where they are from, for messages.
        found: Values by key.

    Raises:
        ValueError: One is of another type.
    """
    from pydantic import ConfigDict, ValidationError, create_model

    types = get_type_hints(Config)
    model: Any = create_model(  # type: ignore[call-overload]
        "File",
        __config__=ConfigDict(protected_namespaces=()),
        **{key: (types[key], ...) for key in found},
    )
    try:
        # As JSON, lists are tuples and whole numbers are floats, and nothing else is converted.
        checked = model.model_validate_json(json.dumps(found, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: {where} is {first['input']!r}: {first['msg']}") from None
    return {key: getattr(checked, key) for key in found}
