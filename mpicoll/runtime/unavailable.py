"""What is not available on a communicator, and why."""

from __future__ import annotations

from typing import NamedTuple


class Unavailable(NamedTuple):
    """In place of what is not available; the same on all ranks."""

    reason: str
