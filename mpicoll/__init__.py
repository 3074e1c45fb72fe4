"""mpicoll: choose, understand, predict and beat the collectives of an MPI library.

Importing this package starts nothing; ``mpicoll.Intracomm`` imports mpi4py, and so initialises MPI,
when it is first used.
"""

from typing import TYPE_CHECKING, Any

from mpicoll.schedule import (
    Channel,
    Copy,
    Recv,
    RecvReduce,
    Send,
    as_channels,
    blocks,
    channels,
    given,
    pipelined,
    scratch,
    then,
    within,
)

if TYPE_CHECKING:
    from mpicoll.comm import Intercomm, Intracomm
    from mpicoll.refusing import File, Message, Win
    from mpicoll.requests import Prequest, Request
    from mpicoll.windows import empty

__version__ = "0.1.0"

__all__ = [
    "Channel",
    "Copy",
    "File",
    "Intercomm",
    "Intracomm",
    "Message",
    "Prequest",
    "Recv",
    "RecvReduce",
    "Request",
    "Send",
    "Win",
    "__version__",
    "as_channels",
    "blocks",
    "channels",
    "empty",
    "given",
    "pipelined",
    "scratch",
    "then",
    "within",
]


def __getattr__(name: str) -> Any:
    if name in ("Intercomm", "Intracomm"):
        from mpicoll import comm

        return getattr(comm, name)
    if name in ("File", "Message", "Win"):
        from mpicoll import refusing

        return getattr(refusing, name)
    if name in ("Prequest", "Request"):
        from mpicoll import requests

        return getattr(requests, name)
    if name == "empty":
        from mpicoll import windows

        return windows.empty
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
