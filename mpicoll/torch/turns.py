"""The collectives of one group, in the order in which they are called.

A call that blocks runs at once in its thread, after what was called before.  The others are run by
a thread of the group's own, or by who waits for them: so a rank's blocking call meets another
rank's that does not block.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

from mpicoll.torch.work import Operation

#: Seconds that operations under way are given when their group, or the process, ends.
GRACE = 5.0


class Limit:
    """How long what runs now may wait.

    Attributes:
        over: why nothing may wait any more, if so.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._what, self._begin, self._end = "", 0.0, math.inf
        self.over = ""

    def set(self, what: str, begin: float, end: float) -> None:
        """What runs, when it was called, and until when it may wait, in seconds of the clock."""
        self._what, self._begin, self._end = what, begin, end

    def pause(self) -> None:
        """Offer the processor to others; called again and again while nothing moves.

        Raises:
            TimeoutError: the limit is exceeded.
            RuntimeError: the group has ended.
        """
        os.sched_yield()
        if self.over:
            raise RuntimeError(f"{self._what} of {self._group}: {self.over}")
        if time.monotonic() > self._end:
            raise TimeoutError(
                f"{self._what} of {self._group} has not ended within its timeout of "
                f"{self._end - self._begin:g} s: a rank has not called it, or has ended; "
                "MPICOLL_TIMEOUT=seconds names the rank, and timeout= of the group gives more time"
            )


class Task(Operation):
    """A collective that does not block.

    Args:
        turns: of its group.
        what: names it.
        seconds: how long it may take.
        function: runs it.
        tensors: what it gives.
    """

    def __init__(
        self,
        turns: Turns,
        what: str,
        seconds: float,
        function: Callable[[], object],
        tensors: Any,
    ) -> None:
        super().__init__(tensors)
        self._turns, self._what, self._function = turns, what, function
        self._begin = time.monotonic()
        self.end = self._begin + seconds

    def execute(self, limit: Limit, end: float = math.inf) -> None:
        """Run it; what goes wrong is for who waits."""
        limit.set(self._what, self._begin, min(self.end, end))
        try:
            self._function()
        except BaseException as error:
            self._finish(error)
        else:
            self._finish(None)
        del self._function

    def fail(self, reason: str) -> None:
        """It is not going to run."""
        self._finish(RuntimeError(f"{self._what}: {reason}"))

    def _complete(self, seconds: float) -> None:
        self._turns.finish(self, seconds)


class Turns:
    """See the module.

    Args:
        limit: of what runs.
        threaded: whether a thread may run collectives.
    """

    def __init__(self, limit: Limit, threaded: bool) -> None:
        self._limit, self._threaded = limit, threaded
        self._tasks: deque[Task] = deque()
        self._turn = threading.Lock()
        self._calls: SimpleQueue[bool] = SimpleQueue()  # whether there is more to come
        self._thread: threading.Thread | None = None

    def now(self, what: str, seconds: float, function: Callable[[], object]) -> None:
        """Run a collective in this thread."""
        with self._turn:
            while self._tasks:
                self._tasks.popleft().execute(self._limit)
            begin = time.monotonic()
            self._limit.set(what, begin, begin + seconds)
            function()

    def later(
        self, what: str, seconds: float, function: Callable[[], object], tensors: Any
    ) -> Task:
        """Let a collective run; at once where no thread may."""
        task = Task(self, what, seconds, function, tensors)
        self._tasks.append(task)
        if not self._threaded:
            self.finish(task, 0.0)
            return task
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="mpicoll group", daemon=True)
            self._thread.start()
            _OPEN.add(self)
        self._calls.put(True)
        return task

    def finish(self, task: Task, seconds: float) -> None:
        """Wait for a task, and run what is before it; see :meth:`Operation._complete`."""
        end = time.monotonic() + seconds if seconds > 0 else math.inf
        while not task.is_completed():
            left = -1.0 if end == math.inf else max(end - time.monotonic(), 0.0)
            if not self._turn.acquire(timeout=left):
                raise TimeoutError(
                    f"wait with a timeout of {seconds:g} s: an earlier collective still runs"
                )
            try:
                if self._tasks and not task.is_completed():
                    self._tasks.popleft().execute(self._limit, end)
            finally:
                self._turn.release()

    def _serve(self) -> None:
        while self._calls.get():
            while self._tasks:
                with self._turn:
                    if self._tasks:
                        self._tasks.popleft().execute(self._limit)

    def close(self, seconds: float, reason: str) -> bool:
        """Run what is left, within some time; whether all of it has."""
        end, complete = time.monotonic() + seconds, True
        while self._tasks or not self._turn.acquire(timeout=0.01):
            if time.monotonic() > end:
                complete = False
                break
            if self._thread is None:
                break
            time.sleep(1e-4)
        else:
            self._turn.release()
        self._limit.over = reason
        while self._tasks:
            self._tasks.popleft().fail(reason)
        if self._thread is not None:
            self._calls.put(False)
            if self._thread is not threading.current_thread():
                self._thread.join(timeout=GRACE)
            self._thread = None
        _OPEN.discard(self)
        return complete


#: Those with a thread.
_OPEN: WeakSet[Turns] = WeakSet()


def _close_all() -> None:
    for turns in [*_OPEN]:
        turns.close(GRACE, "the process ends")


# Threads are ended before the interpreter ends them wherever they are, and before MPI is finalised.
atexit.register(_close_all)
