"""Whether the processes of other ranks live, looked at by a thread."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping


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
        self._end = os.eventfd(0)
        self._poll.register(self._end, select.POLLIN)
        try:
            for rank, pid in pids.items():
                self._watch_over(rank, pid)
        except OSError:
            self._close_all()
            raise
        self._thread = threading.Thread(target=self._watch, name="mpicoll deaths", daemon=True)
        self._thread.start()

    def _watch_over(self, rank: int, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._on_death(rank)
            return
        self._ranks[descriptor] = rank
        self._poll.register(descriptor, select.POLLIN)

    def _watch(self) -> None:
        while self._ranks:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._end:
                    return
                self._poll.unregister(descriptor)
                os.close(descriptor)
                self._on_death(self._ranks.pop(descriptor))

    def _on_death(self, rank: int) -> None:
        self.dead.append(rank)
        self._died()

    def close(self) -> None:
        """End the thread, at once."""
        if self._end >= 0:
            os.eventfd_write(self._end, 1)
            self._thread.join()
            self._close_all()

    def _close_all(self) -> None:
        for descriptor in (*self._ranks, self._end):
            os.close(descriptor)
        self._ranks.clear()
        self._end = -1
