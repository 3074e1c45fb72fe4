"""Files that users write, and files that are replaced while others read them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file; whoever reads at the same time finds the old file or the new one.

    Raises:
        OSError: It cannot be written; the old file is still there.
    """
    import tempfile  # seldom needed

    path = Path(path)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def parse_toml(text: str) -> dict[str, Any]:
    """What a text in TOML says.

    Raises:
        ValueError: It is no TOML.
        ModuleNotFoundError: The package tomli is missing, before Python 3.11.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    return tomllib.loads(text)


def checked_json(content: bytes, form: type[BaseModel]) -> dict[str, Any]:
    """What a JSON file says, in the form that a model of pydantic describes.

    Raises:
        ValueError: It has another form; the message names the first place that differs.
    """
    from pydantic import ValidationError

    try:
        return form.model_validate_json(content).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{place}: {first['msg']}") from None
