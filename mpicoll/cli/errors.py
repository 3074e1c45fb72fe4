"""What can go wrong by the user's hand, as opposed to a fault of the program."""

from __future__ import annotations

from collections.abc import Iterator
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


def describe(error: Exception) -> str:
    """An error in words, without the number that the system gives it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
