"""Tuning files: rules of the user's that come before the built-in ones.

A file is JSON, of the same form as the built-in table (built_in.json in this folder)::

    {"mpicoll": "tuning 1",
     "rules": {"allreduce": [{"nbytes": 0, "algorithms": ["recursive_doubling", "native"]},
                             {"nbytes": 65536, "ranks": 4, "algorithms": ["ring"]}]}}

A rule holds for at least ``ranks`` ranks (1 if it does not say) and ``nbytes`` bytes of the whole
vector (0), with ``near`` only where all ranks share memory (true) or only where not (false), with
``grouped`` only for ranks on several nodes, several of them on one (true), or only for others.  The
one for the most ranks, then for the most bytes, is taken, and of its algorithms, written as in
the environment, the first that can serve.  Where none can, the built-in rules decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mpicoll.base.files import checked_json
from mpicoll.tuning import rules as tuning


def written(about: Mapping[str, Any], rules: Mapping[str, Any]) -> str:
    """A tuning file: how it was made, and its rules by collective."""
    return json.dumps({"mpicoll": "tuning 1", "about": about, "rules": rules}, indent=2) + "\n"


def load(path: str) -> tuning.Table:
    """The rules of a tuning file.

    Raises:
        ValueError: it cannot be read, or is none; the message names the file and the place.
        ModuleNotFoundError: pydantic is missing.
    """
    try:
        rules = _rules(Path(path).read_bytes())
        return tuning.table_from(rules, f"tuning file {path}", tuning.FILE)
    except (OSError, ValueError) as error:
        raise ValueError(f"tuning file {path!r}: {error}") from None


def rule_type(files: str) -> Any:
    """The type of a rule in a file, for pydantic.

    Args:
        files: which files need it.

    Raises:
        ModuleNotFoundError: pydantic is missing.
    """
    try:
        import pydantic
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{files} need pydantic: pip install mpicoll[config]") from None

    class Rule(pydantic.BaseModel, extra="forbid", strict=True):
        nbytes: int = pydantic.Field(0, ge=0)
        ranks: int = pydantic.Field(1, ge=1)
        near: bool | None = None
        grouped: bool | None = None
        algorithms: list[str] = pydantic.Field(min_length=1)

    return Rule


def _rules(content: bytes) -> dict[str, list[dict[str, Any]]]:
    Rule = rule_type("tuning files")
    import pydantic

    class File(pydantic.BaseModel, extra="forbid", strict=True):
        mpicoll: Literal["tuning 1"]
        about: dict[str, Any] = {}  # how it was made
        rules: dict[str, list[Rule]]  # type: ignore[valid-type]

    return checked_json(content, File)["rules"]
