"""Files that users write, and files that are replaced while others read them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


@contextmanager
def naming(what: str, remedy: str = "") -> Iterator[None]:
    """Name a file that cannot be read, or is none.

    Args:
        what: The file, in words.
        remedy: Behind the reason.

    Raises:
        ValueError: For an OSError, or a ValueError.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{what}: {reason}{remedy}") from None


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Write a file anew; whoever reads at the same time finds the old file or the new one.

    Yields:
        Where to write: a file of the same kind, made with the user's umask. At the end it takes the
        place of the old one, unless there was an exception. A device or a pipe is written itself.

    Raises:
        OSError: It cannot be written; the old file is still there.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    if path.exists() and not path.is_file():
        yield path
        return
    draft = path.with_name(f".{path.stem}-{os.urandom(4).hex()}{path.suffix}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield draft
        synchronise(draft)
        os.replace(draft, path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(draft):
            error.filename = str(path)
        raise


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, as `replacing` does."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def synchronise(path: Path) -> None:
    """Wait until a file is on the disk; of a folder, its list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    import hashlib  # every program imports this file

    digest, piece = hashlib.sha256(), memoryview(bytearray(1 << 17))
    with open(path, "rb") as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()


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

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("brackets are too deep in each other: leave some out") from None


def parse_yaml(text: str) -> Any:
    """What a text in YAML says.

    Raises:
        ValueError: It is no YAML, or a mapping has a key twice.
        ModuleNotFoundError: The package PyYAML is missing.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML forbids equal keys, and PyYAML takes the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: dict[Any, int] = {}
            for key, _ in node.value:
                name, line = key.value, key.start_mark.line + 1
                if not isinstance(name, str):  # a key that is no scalar; SafeLoader knows
                    continue
                if name in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise ValueError(
                        f"key {name} is in line {seen[name]} and again in line {line}: leave one "
                        "out"
                    )
                seen[name] = line
            return super().construct_mapping(node, deep)

    # A number of YAML 1.2, which PyYAML takes for words: it asks for a point and a sign.
    exponent = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("brackets are too deep in each other: leave some out") from None


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
