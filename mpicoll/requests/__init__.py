"""What represents a call that has not ended."""

from mpicoll.requests.own import (
    Prequest,
    Request,
)

__all__ = [
    "Prequest",
    "Request",
]
