"""Methods whose usual calls are made in C, where the engine is built (see its ``_methods.pyx``).

They take the place of functions of a class, which make all other calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from mpi4py import MPI

from mpicoll.engine import transport
from mpicoll.schedule.methods import METHODS, STARTED

#: mpi4py's methods.
_NATIVE: Any = MPI.Intracomm
#: What collectives take where the caller does not say it: send buffer, receive buffer, operator,
#: root, counts, algorithm.
_DEFAULTS = (None, None, None, 0, None, None)
_ALGORITHM = len(_DEFAULTS) - 1
#: A keyword that changes nothing where it is False.
_SWITCH = "reproducible"
#: Methods that return when a message has been sent or received; a buffer is before its peer.
_BLOCKING, _PEERS = ("Send", "Recv", "Sendrecv"), ("dest", "source")


def set_collectives(kind: type) -> None:
    """Let a class of communicators make in C what its fast path knows."""
    for method in METHODS.values():
        for name, started in ((method.name, 0), (f"I{method.name.lower()}", STARTED)):
            if name in vars(kind):
                places = (*method.arguments, _ALGORITHM)
                arguments = _arguments(vars(kind)[name], places)
                _set(kind, name, "Collectives", method.number + started, bool(started), *arguments)


def set_messages(kind: type, places: Mapping[str, tuple[int, ...]]) -> None:
    """Let a class of communicators make in C what sends and receives memory of the host.

    Args:
        kind: the class.
        places: by method, where among its arguments buffers are; the communicator is the first.
    """
    for name, buffers in places.items():
        native = getattr(_NATIVE, name), buffers
        if name in _BLOCKING:
            code = vars(kind)[name].__code__
            names = code.co_varnames[: code.co_argcount]
            halves = (names.index(peer) - 1 if peer in names else 0 for peer in _PEERS)
            _set(kind, name, "BlockingMessages", *native, names, *halves)
        else:
            _set(kind, name, "Messages", *native)


def _set(kind: type, name: str, usual: str, *arguments: Any) -> None:
    """Put a method in place of a function, where the engine is built."""
    if transport.Method is not None:
        made = getattr(transport, usual)(*arguments)
        setattr(kind, name, transport.Method(vars(kind)[name], made))


def _arguments(function: FunctionType, places: tuple[int, ...]) -> tuple[Any, ...]:
    """What the engine's ``Collectives`` are told of a function's arguments."""
    code, last = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[1 : code.co_argcount]
    required = len(names) - len(last)
    defaults = list(_DEFAULTS)
    for place, default in zip(places[required:], last, strict=False):
        defaults[place] = default
    switch = _SWITCH if _SWITCH in (function.__kwdefaults__ or ()) else None
    return (*names, "algorithm"), places, required, tuple(defaults), switch
