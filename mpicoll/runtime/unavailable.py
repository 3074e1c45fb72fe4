"""What cannot be had on a communicator, and why."""

from __future__ import annotations

from typing import NamedTuple


class Unavailable(NamedTuple):
    """In place of what cannot be had; the same on all ranks."""

    reason: str
