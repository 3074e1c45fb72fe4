"""Requests of what uses arrays in device memory.

They are no requests of the MPI library, whose ``Waitall`` would not bring what has come to the
device, and refuses them; :meth:`mpicoll.requests.Request.Waitall` and its like take all kinds.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.cuda.driver import Functions, driver
from mpicoll.errors import CudaError
from mpicoll.requests.base import Watched, fill
from mpicoll.requests.library import Restarted
from mpicoll.requests.standalone import Standalone, StandalonePlan

__all__ = ["Enqueued", "EnqueuedPlan", "Staged", "StagedPlan"]


class Staged(Standalone):
    """A message or collective of the MPI library's own, of memory that stands for a device's.

    Args:
        request: the library's, started.
        arrive: brings what has come to the device, once the library is done; gets the status.
        kept: what must stay alive until then.
    """

    _request: Any

    def __init__(
        self,
        request: MPI.Request | Restarted,
        arrive: Callable[[MPI.Status], object],
        kept: object,
    ) -> None:
        self._request, self._arrive, self._kept = request, arrive, kept

    def patience(self) -> Callable[[], object]:
        """What to call while waiting for it; raises TimeoutError, and gives it up, at the limit."""
        return self._request.patience() if isinstance(self._request, Watched) else os.sched_yield

    def _complete(self, status: MPI.Status | None) -> bool:
        """Whether the library is done; then what has come is on its way to the device."""
        status = MPI.Status() if status is None else status
        if not self._request.Test(status):
            return False
        self._pending = False  # also where the next fails
        self._arrive(status)
        return True

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether ``Wait`` would return, or raise, at once."""
        return not self._pending or self._request.Get_status(status)

    def Cancel(self) -> None:
        """Cancel a message; see mpi4py's."""
        self._request.Cancel()


class StagedPlan(StandalonePlan, Staged):
    """The persistent form: brings what is sent from the device at each start.

    Args:
        request: the library's persistent one.
        leave: brings what is sent from the device.
        arrive, kept: see :class:`Staged`.
    """

    def __init__(
        self,
        request: MPI.Prequest | Restarted,
        leave: Callable[[], object],
        arrive: Callable[[MPI.Status], object],
        kept: object,
    ) -> None:
        super().__init__(request, arrive, kept)
        self._plan, self._leave = request, leave

    def _start(self) -> None:
        self._leave()
        self._plan.Start()

    def _close(self) -> None:
        self._plan.Free()


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
        # Also where the object is dropped.
        self._end = weakref.finalize(self, _free_event, functions, device, self._event)
        self._end.atexit = False
        if stream is not None:
            self._mark(stream)

    def _mark(self, stream: int) -> None:
        with self._functions.on(self._device):
            # What a graph is made of is not under way: nobody waits for it.
            self._captured = self._functions.capturing(stream)
            if not self._captured:
                self._functions.record(self._event, stream)

    def _complete(self, status: MPI.Status | None) -> bool:
        """Whether the device has run it."""
        done = self.Get_status()
        self._check()  # later: what ends by a failure has told it before
        if done:
            fill(status)
        return done

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether ``Wait`` would return, or raise, at once."""
        with self._functions.on(self._device):
            return not self._pending or self._captured or self._functions.happened(self._event)


def _free_event(functions: Functions, device: int, event: int) -> None:
    # When the program ends the driver may have ended before.
    with contextlib.suppress(CudaError):
        if not caller.is_forked():
            with functions.on(device):
                functions.free_event(event)


class EnqueuedPlan(StandalonePlan, Enqueued):
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
