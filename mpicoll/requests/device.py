"""Requests for arrays in device memory.

These are not requests of the MPI library, whose ``Waitall`` refuses them because it would not copy
received data to the device.  :meth:`mpicoll.requests.Request.Waitall` and its variants accept all
kinds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpicoll.cuda.driver import Functions, driver, when_dropped
from mpicoll.requests.base import Watched, copy_status, fill
from mpicoll.requests.library import PersistentFallback
from mpicoll.requests.standalone import Standalone, StandalonePrequest

__all__ = ["Enqueued", "EnqueuedPrequest", "Staged", "StagedPrequest"]


class Staged(Standalone):
    """A message or collective of the MPI library's own, of memory that stands for a device's.

    Args:
        request: the library's, started.
        copy_to_device: copies what has been received, once the library is done; gets the status.
        kept: what must stay alive until then.
    """

    _request: Any
    #: What `Get_status` has found; MPICH 5.0 then gives `Test` of a persistent one an empty status.
    _found: MPI.Status | None = None

    def __init__(
        self,
        request: MPI.Request | PersistentFallback,
        copy_to_device: Callable[[MPI.Status], object],
        kept: object,
    ) -> None:
        self._request, self._copy_to_device, self._kept = request, copy_to_device, kept

    def patience(self) -> Callable[[], object]:
        """What to call while waiting for it; raises TimeoutError, and gives it up, at the limit."""
        return self._request.patience() if isinstance(self._request, Watched) else os.sched_yield

    def _complete(self, status: MPI.Status | None) -> bool:
        status = MPI.Status() if status is None else status
        if not self._request.Test(status):
            return False
        self._pending = False  # also where the next fails
        if self._found is not None:
            copy_status(self._found, status)
            self._found = None
        self._copy_to_device(status)
        return True

    def _is_complete(self, status: MPI.Status | None) -> bool:
        if self._found is None:
            found = MPI.Status()
            if not self._request.Get_status(found):
                return False
            self._found = found
        if status is not None:
            copy_status(self._found, status)
        return True

    def Cancel(self) -> None:
        """Cancel a message; see mpi4py's."""
        self._request.Cancel()


class StagedPrequest(StandalonePrequest, Staged):
    """The persistent form: brings what is sent from the device at each start.

    Args:
        request: the library's persistent one.
        copy_to_host: copies what is sent from the device.
        copy_to_device, kept: see :class:`Staged`.
    """

    def __init__(
        self,
        request: MPI.Prequest | PersistentFallback,
        copy_to_host: Callable[[], object],
        copy_to_device: Callable[[MPI.Status], object],
        kept: object,
    ) -> None:
        super().__init__(request, copy_to_device, kept)
        self._copy_to_host = copy_to_host

    def _start(self) -> None:
        self._copy_to_host()
        self._request.Start()

    def _close(self) -> None:
        self._request.Free()


class Enqueued(Standalone):
    """What runs on a device, in its order on a stream.

    Where the stream is being captured for a graph it is complete at once.

    Args:
        device: its number.
        stream: handle of the stream that it has been put on; None: it has not been yet.
        check: raises what has gone wrong on a device.
        kept: what must stay alive until it has run.
    """

    def __init__(
        self, device: int, stream: int | None, check: Callable[[], object], kept: object
    ) -> None:
        self._device, self._check, self._kept = device, check, kept
        self._functions = functions = driver()
        with functions.on(device):
            self._event = functions.event()
        when_dropped(self, _free_event, functions, device, self._event)
        if stream is not None:
            self._mark(stream)

    def _mark(self, stream: int) -> None:
        with self._functions.on(self._device):
            # What a graph is made of is not under way: nobody waits for it.
            self._captured = self._functions.capturing(stream)
            if not self._captured:
                self._functions.record(self._event, stream)

    def _complete(self, status: MPI.Status | None) -> bool:
        done = self._is_complete(status)
        self._check()  # later: what ends by a failure has told it before
        self._pending = not done
        return done

    def _is_complete(self, status: MPI.Status | None) -> bool:
        with self._functions.on(self._device):
            done = self._captured or self._functions.happened(self._event)
        if done:
            fill(status)
        return done


def _free_event(functions: Functions, device: int, event: int) -> None:
    with functions.on(device):
        functions.free_event(event)


class EnqueuedPrequest(StandalonePrequest, Enqueued):
    """The persistent form.

    Args:
        put: puts it on the stream that is current at a start, or that was named when it was made;
            returns its handle.
        close: once it is freed.
        device, check, kept: see :class:`Enqueued`.
    """

    def __init__(
        self,
        device: int,
        put: Callable[[], int],
        close: Callable[[], object],
        check: Callable[[], object],
        kept: object,
    ) -> None:
        super().__init__(device, None, check, kept)
        self._put, self._freed = put, close

    def _start(self) -> None:
        self._mark(self._put())

    def _close(self) -> None:
        self._freed()
