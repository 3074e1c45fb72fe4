"""mpicoll: choose, understand, predict and beat the collectives of an MPI library.

Importing this package starts nothing; ``mpicoll.Intracomm`` imports mpi4py, and so initialises MPI,
when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpicoll.errors import RankLost
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
    strands,
    then,
    within,
)

if TYPE_CHECKING:
    from mpicoll.comm import Intercomm, Intracomm
    from mpicoll.comm.arrays import empty
    from mpicoll.comm.refusing import File, Message, Win
    from mpicoll.requests import Prequest, Request

__version__ = "0.1.0"

__all__ = [
    "Channel",
    "Copy",
    "File",
    "Intercomm",
    "Intracomm",
    "Message",
    "Prequest",
    "RankLost",
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
    "strands",
    "then",
    "within",
]


#: Where the names are that start MPI when they are first used.
_HOMES = {
    "File": "comm.refusing",
    "Intercomm": "comm",
    "Intracomm": "comm",
    "Message": "comm.refusing",
    "Prequest": "requests",
    "Request": "requests",
    "Win": "comm.refusing",
    "empty": "comm.arrays",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
