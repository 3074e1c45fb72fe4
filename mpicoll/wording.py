"""Words in messages that depend on a number."""

from __future__ import annotations

__all__ = ["plural"]


def plural(number: int, noun: str) -> str:
    """A number of things: "1 rank", "2 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
