"""What PyTorch waits for: operations, and the futures of them."""

from __future__ import annotations

import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from typing import Any, Literal

import torch
from torch.distributed import DistBackendError, Work

NO_LIMIT = timedelta(0)
#: Whether PyTorch keeps the Python object of a Work as long as its C++ code has it.
KEEPS_OBJECTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
#: Operations kept for PyTorch's C++ code where it does not, and how many of those that are over.
_kept: deque[Operation] = deque()
MOST_KEPT = 64
#: Held by who makes or completes the future of an operation.
_FUTURES = threading.Lock()


class Operation(Work):
    """An operation of a group.

    Args:
        tensors: what it gives, which it keeps alive.
    """

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors
        self._over = False
        self._error: BaseException | None = None
        self._end: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[Any] | None = None

    def _complete(self, seconds: float) -> None:
        """Return once it is over; raise if that takes longer (0: as long as its group allows)."""

    def _finish(self, error: BaseException | None) -> None:
        """It is over.  Not to be called twice."""
        if isinstance(error, TimeoutError):  # PyTorch's callers catch this class
            cause, error = error, DistBackendError(str(error))
            error.__cause__ = cause
        self._error = error
        self._over = True
        with _FUTURES:
            awaited = self._end is not None
        if awaited:  # its callbacks may wait for other operations
            _publishers().submit(self._publish)

    def _publish(self) -> None:
        """Complete the future, if there is one that is not."""
        with _FUTURES:
            end, self._end = self._end, None
        if end is not None:
            end.set_result(None)

    def _outcome(self, end: object) -> Any:
        if self._error is not None:
            raise self._error
        return self._tensors

    def wait(self, timeout: timedelta = NO_LIMIT) -> Literal[True]:
        """Wait until it is complete on this rank.

        Raises:
            DistBackendError: it has taken longer than its limit, or than ``timeout``.
        """
        if not self._over:
            self._complete(timeout.total_seconds())
        if self._end is not None:
            self._publish()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it is over, or has failed."""
        return self._over

    def is_success(self) -> bool:
        """Whether it is over, and has not failed."""
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        """What it has failed by."""
        return self._error

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors that it has written."""
        self.wait()
        found: list[torch.Tensor] = self._tensors
        return found

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors."""
        with _FUTURES:
            if self._future is None:
                self._end = torch.futures.Future(devices=_devices(self._tensors))
                # An exception of the first would reach C++ callers as a value.
                self._future = self._end.then(self._outcome)
        if self._over:
            self._publish()
        return self._future


class Done(Operation):
    """An operation that is over."""

    def __init__(self, tensors: Any) -> None:
        super().__init__(tensors)
        self._over = True


class Enqueued(Operation):
    """An operation of CUDA tensors on a stream; who waits for it lets the current stream wait.

    Args:
        tensors: what it gives.
        event: is recorded after it.
        stream: where it is.
    """

    def __init__(self, tensors: Any, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        super().__init__(tensors)
        self._event, self._stream = event, stream
        self._over = True  # as far as the host is concerned

    def wait(self, timeout: timedelta = NO_LIMIT) -> Literal[True]:
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event.query()

    def is_success(self) -> bool:
        return self.is_completed()

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            self._future = torch.futures.Future(devices=_devices(self._tensors))
            with torch.cuda.stream(self._stream):  # for which those wait who wait for the future
                self._future.set_result(self._tensors)
        return self._future


class Several(Operation):
    """Operations that were started together."""

    def __init__(self, parts: list[Operation]) -> None:
        super().__init__([tensor for part in parts for tensor in part._tensors])
        self._parts = parts

    def _complete(self, seconds: float) -> None:
        limit = timedelta(seconds=seconds)
        try:
            for part in self._parts:
                part.wait(limit)
        except BaseException as error:
            self._finish(error)
        else:
            self._finish(None)

    def wait(self, timeout: timedelta = NO_LIMIT) -> Literal[True]:
        super().wait(timeout)
        for part in self._parts:  # each time the current stream may be another one
            part.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        return all(part.is_success() for part in self._parts)

    def get_future(self) -> torch.futures.Future[Any]:
        futures = [part.get_future() for part in self._parts]
        return torch.futures.collect_all(futures).then(self._gathered)

    def _gathered(self, futures: torch.futures.Future[Any]) -> Any:
        for future in futures.value():
            future.value()  # raises what it has failed by
        return self._tensors


def keep(operation: Operation) -> None:
    """Keep an operation for PyTorch's C++ code, where that does not.

    It takes the future at once, before the next operation, but may wait much later.
    """
    if KEEPS_OBJECTS:
        return
    for earlier in _kept:
        # Held here, by the loop and as the argument: Python's code has it no more.
        if earlier.is_completed() and sys.getrefcount(earlier) == 3:
            earlier._tensors = []
    while len(_kept) > MOST_KEPT and _kept[0].is_completed():
        _kept.popleft()
    _kept.append(operation)


def _devices(tensors: list[torch.Tensor]) -> list[torch.device]:
    """The devices that a future has to know: those with streams."""
    flat = (t for each in tensors for t in (each if isinstance(each, list) else [each]))
    return list({tensor.device for tensor in flat if tensor.is_cuda})


@cache
def _publishers() -> ThreadPoolExecutor:
    """Threads that complete futures.

    A callback may wait for another operation whose future has to be completed meanwhile.
    """
    return ThreadPoolExecutor(64, "mpicoll futures")
