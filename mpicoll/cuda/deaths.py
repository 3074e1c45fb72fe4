"""Whether the processes of other ranks live, looked at by a thread."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Mapping

__all__ = ["Watchdog"]

#: Seconds between two looks at whether this one is to end.
LOOK = 1.0


class Watchdog:
    """Waits for the death of a process, beside everything else.

    Args:
        pids: of each rank that is watched, all in this namespace of processes.
        died: called, in the thread, when one of them has died.

    Attributes:
        dead: ranks whose process has died.
    """

    def __init__(self, pids: Mapping[int, int], died: Callable[[], object]) -> None:
        self.dead: list[int] = []
        self._died = died
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}
        self._ending = threading.Event()
        for rank, pid in pids.items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._mourn(rank)
                continue
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)
        self._thread = threading.Thread(target=self._watch, name="mpicoll deaths", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ending.is_set() and self._ranks:
            for descriptor, _ in self._poll.poll(LOOK * 1000):
                self._poll.unregister(descriptor)
                os.close(descriptor)
                self._mourn(self._ranks.pop(descriptor))

    def _mourn(self, rank: int) -> None:
        self.dead.append(rank)
        self._died()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join()
        for descriptor in self._ranks:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._ranks.clear()
