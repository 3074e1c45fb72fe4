"""Requests that record how long a rank waits for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from mpicoll.profile.recorder import Channel, Row, clock

_SINGLE = ("Wait", "Test", "wait", "test")
_SEVERAL = (
    *("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome"),
    *("waitall", "waitany", "waitsome", "testall", "testany", "testsome"),
)
_REQUEST, _PREQUEST = MPI.Request, MPI.Prequest


class Pending:
    """A call that is not over when its method returns.

    Args:
        row: What it adds to.
        channel: Of its communicator; None for messages.
        nbytes: Of each start of a persistent one.

    Attributes:
        number: Of the call on its communicator.
        begin: When it began.
        kept: Whether its times are kept.
        busy: Whether one of its methods runs: it may call others of them.
    """

    __slots__ = ("begin", "busy", "channel", "kept", "nbytes", "number", "row")

    def __init__(self, row: Row, channel: Channel | None, nbytes: int = 0) -> None:
        self.row, self.channel, self.nbytes = row, channel, nbytes
        self.number, self.begin = 0, 0.0
        self.kept = self.busy = False

    def waited(self, begin: float, end: float, share: int, over: bool) -> None:
        """The rank has waited for it, and for others if it was one of several."""
        self.row.seconds += (end - begin) / share
        if over and self.kept and self.channel is not None:
            self.kept = False
            self.channel.keep((self.number, self.row.number, self.begin, begin, end))


class _Known(type):
    """For programs that ask whether a request is an ``MPI.Request``: mpi4py's own are, too."""

    plain: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.plain)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.plain)


def _single(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that waits for a request, or asks whether it is over."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        pending = getattr(arguments[0], "_profile", None) if arguments else None
        if pending is None or pending.busy:
            return function(*arguments, **named)
        return _waiting(pending, function, arguments, named)

    return call


def _waiting(pending: Pending, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
    pending.busy = True
    begin, result = clock(), None
    try:
        result = function(*arguments, **named) if named else function(*arguments)
    finally:
        end = clock()
        pending.busy = False
        found = result[0] if type(result) is tuple else result
        pending.waited(begin, end, 1, found is not False)  # what `wait` gives is the message
    return result


def _start(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method that starts a persistent request."""

    @functools.wraps(function)
    def call(request: Any, *arguments: Any, **named: Any) -> Any:
        pending = getattr(request, "_profile", None)
        if pending is None or pending.busy:
            return function(request, *arguments, **named)
        pending.busy = True
        begin = _begun(pending)
        try:
            return function(request, *arguments, **named)
        finally:
            pending.busy = False
            pending.row.seconds += clock() - begin

    return call


def _begun(pending: Pending) -> float:
    """A persistent call begins now."""
    channel, row = pending.channel, pending.row
    row.calls += 1
    row.nbytes += pending.nbytes
    begin = clock()
    if channel is not None:
        number = channel.count
        channel.count = number + 1
        pending.number, pending.begin, pending.kept = number, begin, not number & channel.mask
    return begin


def _several(plain: Any, name: str) -> Any:
    """A method of the class that waits for several requests."""
    function = getattr(plain, name)

    @functools.wraps(function)
    def call(cls: Any, requests: Any, *arguments: Any, **named: Any) -> Any:
        found = [(r, p) for r in requests if (p := getattr(r, "_profile", None)) is not None]
        waited = [(request, pending) for request, pending in found if request]
        begin = clock()
        try:
            return function(requests, *arguments, **named)
        finally:
            end = clock()
            for request, pending in waited:
                over = not request or name in ("Waitall", "waitall")
                pending.waited(begin, end, len(waited), over)

    return classmethod(call)


def _startall(cls: Any, requests: Any) -> None:
    """Start all persistent requests of a list."""
    pending = [p for r in requests if (p := getattr(r, "_profile", None)) is not None]
    begins = [(each, _begun(each)) for each in pending]
    _PREQUEST.Startall(requests)
    for each, begin in begins:
        each.row.seconds += (clock() - begin) / len(begins)


def _class(plain: Any) -> Any:
    body: dict[str, Any] = {"__module__": plain.__module__, "__slots__": ("_profile",)}
    body |= {name: _single(getattr(plain, name)) for name in _SINGLE}
    body |= {name: _several(plain, name) for name in _SEVERAL}
    known = type("RequestClass", (_Known,), {"plain": plain})
    return known(plain.__name__, (plain,), body)


#: mpi4py's requests, as they are here.
Request: Any = _class(_REQUEST)
Prequest: Any = _class(_PREQUEST)
Prequest.Start = _start(_PREQUEST.Start)
Prequest.Startall = classmethod(_startall)


def recording(request: Any, pending: Pending) -> Any:
    """A request that tells how long it is waited for."""
    kind = type(request)
    if kind is _REQUEST:
        request = Request(request)
    elif kind is _PREQUEST:
        request = Prequest(request)
    request._profile = pending
    return request


def instrumented(cls: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The methods that let a class of requests record which is not mpi4py's."""
    for name in (*_SINGLE, "Start"):
        if hasattr(cls, name):
            yield name, (_start if name == "Start" else _single)(getattr(cls, name))
