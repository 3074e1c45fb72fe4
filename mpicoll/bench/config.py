"""Sweeps written down: a TOML file with the options of ``mpicoll bench`` by their long names."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mpicoll.base.files import parse_toml

Size = int | str


class Sweep(BaseModel):
    """The options of a sweep; those left out are as on the command line."""

    model_config = ConfigDict(extra="forbid", strict=True)

    collectives: list[str] | None = None
    minbytes: Size | list[Size] | None = None
    maxbytes: Size | None = None
    stepfactor: int | None = None
    stepbytes: Size | None = None
    algorithms: str | list[str] | None = None
    set: dict[str, int | list[int]] | None = None
    datatype: str | list[str] | None = None
    ranks: int | str | list[int] | None = None
    op: str | None = None
    root: int | None = None
    iters: int | None = None
    warmup_iters: int | None = None
    check: bool | None = None
    in_place: bool | None = None
    cold: bool | None = None
    start: str | None = None
    skew: float | None = None
    device: str | None = None
    precision: float | None = None
    point_time: float | None = None
    budget: float | None = None
    timeout: float | None = None
    seed: int | None = None
    launch_id: int | None = None

    def options(self) -> dict[str, Any]:
        """The options given, by name, as they are written on the command line."""
        given = self.model_dump(exclude_none=True)
        parameters = given.pop("set", {})
        plain: dict[str, Any] = {
            name: _written(value) for name, value in given.items() if name != "collectives"
        }
        if self.collectives is not None:
            plain["collectives"] = self.collectives
        if parameters:
            plain["set"] = [f"{name}={_written(value)}" for name, value in parameters.items()]
        return plain


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def load(path: Path) -> Sweep:
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
