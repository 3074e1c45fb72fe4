"""Completing several requests, mpicoll's and the MPI library's in any mixture.

A request is *pending* from its start until a call has told the caller that it is complete; only
pending ones count for the functions that complete one or some.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from mpi4py import MPI

from mpicoll.engine import progress, runner, transport
from mpicoll.requests.base import Watched, copy_status

Anyone: TypeAlias = Watched | MPI.Request


#: What :meth:`Completion.waitany` and its like find: index, whether there is an answer, message.
_Any: TypeAlias = tuple[int, bool, Any]
_Some: TypeAlias = tuple[list[int] | None, list[Any] | None]
_Found = TypeVar("_Found")


class Completion:
    """mpi4py's functions on several requests, for both kinds.

    They raise as the requests' own ``Wait`` and ``Test`` do.
    """

    @staticmethod
    def Waitall(
        requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        """Wait for all requests, in whatever order they complete."""
        flight = transport.Flight
        if requests and flight and all(isinstance(request, flight) for request in requests):
            transport.finish_all([*requests])
        _wait_all(requests, statuses, lambda request, status: (request.Test(status), None))
        return True

    @staticmethod
    def Testall(requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None) -> bool:
        """Whether all requests are complete."""
        return _test_all(requests, statuses, _testall) is not None

    @staticmethod
    def Waitany(requests: Sequence[Anyone], status: MPI.Status | None = None) -> int:
        """Wait for one request; its index, ``MPI.UNDEFINED`` if none is pending."""
        return _wait_any(requests, status, MPI.Request.Testany)[0]

    @staticmethod
    def Testany(requests: Sequence[Anyone], status: MPI.Status | None = None) -> tuple[int, bool]:
        """The index of a complete request and True, else ``MPI.UNDEFINED`` and False.

        ``MPI.UNDEFINED`` and True if none is pending.
        """
        return _test_any(requests, status, MPI.Request.Testany)[:2]

    @staticmethod
    def Waitsome(
        requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        """Wait for one request or more; their indices, None if none is pending."""
        return _wait_some(requests, statuses, MPI.Request.Testany)[0]

    @staticmethod
    def Testsome(
        requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        """Indices of the complete requests, None if none is pending."""
        return _test_some(requests, statuses, MPI.Request.Testany)[0]

    @staticmethod
    def waitall(requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None) -> list[Any]:
        """Wait for all requests; what each ``wait`` returns."""
        return _wait_all(requests, statuses, lambda request, status: request.test(status))

    @staticmethod
    def testall(
        requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Whether all requests are complete, and what each ``wait`` returns then."""
        messages = _test_all(requests, statuses, MPI.Request.testall)
        return messages is not None, messages

    @staticmethod
    def waitany(requests: Sequence[Anyone], status: MPI.Status | None = None) -> tuple[int, Any]:
        """Wait for one request; its index, and what its ``wait`` returns."""
        index, _, message = _wait_any(requests, status, MPI.Request.testany)
        return index, message

    @staticmethod
    def testany(requests: Sequence[Anyone], status: MPI.Status | None = None) -> _Any:
        """The same as ``Testany``, and what the request's ``wait`` returns."""
        return _test_any(requests, status, MPI.Request.testany)

    @staticmethod
    def waitsome(requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None) -> _Some:
        """Wait for one request or more; their indices, and what each ``wait`` returns."""
        return _wait_some(requests, statuses, MPI.Request.testany)

    @staticmethod
    def testsome(requests: Sequence[Anyone], statuses: list[MPI.Status] | None = None) -> _Some:
        """Indices of the complete requests, and what each ``wait`` returns."""
        return _test_some(requests, statuses, MPI.Request.testany)


#: mpi4py's ``Testany``, which leaves what an ``irecv`` has received unpickled, or ``testany``.
_Testany: TypeAlias = Callable[..., tuple[Any, ...]]


def _wait_any(requests: Sequence[Anyone], status: MPI.Status | None, testany: _Testany) -> _Any:
    return _wait(lambda: _test_any(requests, status, testany), lambda found: found[1], requests)


def _wait_some(
    requests: Sequence[Anyone], statuses: list[MPI.Status] | None, testany: _Testany
) -> _Some:
    return _wait(
        lambda: _test_some(requests, statuses, testany), lambda found: found[0] != [], requests
    )


def _wait(
    test: Callable[[], _Found], over: Callable[[_Found], bool], requests: Sequence[Anyone]
) -> _Found:
    """Test until it is over; what the last test has found."""
    found: list[_Found] = []

    def done() -> bool:
        found[:] = [test()]
        return over(found[0])

    _until(done, requests)
    return found[0]


def _until(done: Callable[[], object], requests: Sequence[Anyone]) -> None:
    """Poll until ``done()``, within the requests' time limits."""
    pauses = [r.patience() for r in requests if isinstance(r, Watched)] or [os.sched_yield]

    def pause() -> None:
        for each in pauses:
            each()

    progress.until(done, pause)


def _wait_all(
    requests: Sequence[Anyone],
    statuses: list[MPI.Status] | None,
    test: Callable[[Anyone, MPI.Status | None], tuple[bool, Any]],
) -> list[Any]:
    """Complete all requests, in whatever order; their messages.

    By tests of each: ``Get_status`` of the MPI library never tells that the other rank has died.
    """
    given, messages = _extended(statuses, len(requests)), [None] * len(requests)
    left = [*range(len(requests))]

    def done() -> bool:
        for index in [*left]:
            over, message = test(requests[index], given[index])
            if over:
                messages[index] = message
                left.remove(index)
        return not left

    _until(done, requests)
    return messages


def _testall(requests: list[MPI.Request], statuses: list[MPI.Status]) -> tuple[bool, list[None]]:
    """mpi4py's ``Testall``, which leaves what an ``irecv`` has received unpickled."""
    return MPI.Request.Testall(requests, statuses), [None] * len(requests)


def _test_all(
    requests: Sequence[Anyone],
    statuses: list[MPI.Status] | None,
    testall: Callable[..., tuple[bool, list[Any] | None]],
) -> list[Any] | None:
    """Complete all requests if all are complete; their messages, None if they are not.

    ``testall``: mpi4py's, of several of the MPI library's own; for the reason see above.
    """
    ours = [index for index, each in enumerate(requests) if isinstance(each, Watched)]
    theirs = [index for index, each in enumerate(requests) if not isinstance(each, Watched)]
    if not all(requests[index].Get_status() for index in ours):
        progress.poll()
        return None
    told = [MPI.Status() for _ in theirs]
    try:
        over, found = testall([requests[index] for index in theirs], told)
    except MPI.Exception as error:
        raise runner.first_failure(told) or error from None
    if not over:
        return None
    messages: list[Any] = [None] * len(requests)
    given = _extended(statuses, len(requests))
    for index, status, message in zip(theirs, told, found or (), strict=True):
        messages[index], to = message, given[index]
        if to is not None:
            copy_status(status, to)
    for index in ours:
        requests[index].Wait(given[index])
    return messages


def _test(request: Anyone, status: MPI.Status | None, testany: _Testany) -> tuple[bool | None, Any]:
    """Whether a request is complete, None if it is not pending; and its message."""
    if isinstance(request, Watched):
        return request.Test(status) if request.pending else None, None
    index, over, *message = testany([request], status)
    return None if over and index == MPI.UNDEFINED else over, message[0] if message else None


def _test_any(requests: Sequence[Anyone], status: MPI.Status | None, testany: _Testany) -> _Any:
    none_pending = True
    for index, request in enumerate(requests):
        over, message = _test(request, status, testany)
        if over:
            return index, True, message
        none_pending &= over is None
    return MPI.UNDEFINED, none_pending, None


def _test_some(
    requests: Sequence[Anyone], statuses: list[MPI.Status] | None, testany: _Testany
) -> _Some:
    none_pending = True
    indices: list[int] = []
    messages = []
    for index, request in enumerate(requests):
        status = None
        if statuses is not None:
            status = statuses[len(indices)] if len(indices) < len(statuses) else MPI.Status()
        over, message = _test(request, status, testany)
        none_pending &= over is None
        if over:
            if status is not None and statuses is not None and len(indices) == len(statuses):
                statuses.append(status)
            indices.append(index)
            messages.append(message)
    return (None, None) if none_pending else (indices, messages)


def _extended(statuses: list[MPI.Status] | None, count: int) -> list[MPI.Status | None]:
    """One status a request; the list grows as long as they are, as in mpi4py."""
    if statuses is None:
        return [None] * count
    statuses += [MPI.Status() for _ in range(len(statuses), count)]
    return [*statuses[:count]]
