"""What can go wrong by the user's hand, as opposed to a fault of the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class UsageError(Exception):
    """The command cannot be carried out as given; the same on every rank. Exit status 2."""


class RankError(Exception):
    """One rank, and perhaps no other, cannot go on for an outside reason. Exit status 1."""


@contextmanager
def usage() -> Iterator[None]:
    """Take a ValueError about something the user gave for a usage error."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def reading(what: str = "") -> Iterator[None]:
    """As `usage`, and for a file that cannot be read, too; the message begins with ``what``."""
    try:
        with usage():
            yield
    except OSError as error:
        raise UsageError(f"{what}{describe(error)}") from None


@contextmanager
def needing(package: str, option: str) -> Iterator[None]:
    """Take a package that an option needs, and that cannot be loaded, for a usage error."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"{option} needs {package}, which cannot be loaded ({error}); install it with "
            f"`pip install {package}`"
        ) from None


def one_of(option: str, value: str, known: Sequence[str]) -> None:
    """Check an option that has a few values.

    Raises:
        UsageError: if it has another one.
    """
    if value not in known:
        raise UsageError(f"unknown {option} {value!r}; choose one of {', '.join(known)}")


def describe(error: Exception) -> str:
    """An error in words, without the number that the system gives it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
