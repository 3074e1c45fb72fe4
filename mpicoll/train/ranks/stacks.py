"""Where all ranks are: their Python stacks on standard error, asked for by a signal or by a clock.

SIGUSR2 to one rank makes all write the stacks of their threads; so does a rank that has ended no
step for long. The rank that gets the signal writes from within the handler, whatever it is in; the
others are told by a datagram, which a thread of theirs waits for. No MPI is involved: where ranks
hang, messages of MPI may not come through.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mpicoll.train.ranks.workers import Workers

#: Seconds in which stacks are not written twice, and between two looks at the clock.
_PAUSE, _LOOK = 5.0, 1.0


class Stacks:
    """Waits in a thread for a reason to write stacks. Made by all ranks, in their main threads.

    Args:
        workers: The ranks; making it is collective.
        hang_after: Seconds without the end of a step after which ranks are suspected to hang; None
            for never.
        doing: What this rank is in, in words; "" for nothing to say.
    """

    def __init__(
        self,
        workers: Workers,
        hang_after: float | None,
        doing: Callable[[], str] = lambda: "",
    ) -> None:
        self._rank, self._hang_after, self._doing = workers.rank, hang_after, doing
        self._written = -_PAUSE
        self._alive: float | None = None
        node = platform.node()
        alone = len(set(workers.gather(node))) == 1
        self._socket = _bound("127.0.0.1" if alone else "")
        port = self._socket.getsockname()[1] if self._socket else 0
        self._secret = workers.gather(secrets.token_bytes(16))[0]
        everyone = workers.gather((node, port))
        self._others = [
            ("127.0.0.1" if host == node else host, port)
            for rank, (host, port) in enumerate(everyone)
            if rank != workers.rank and port
        ]
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        self._catch_signal()
        self._thread = threading.Thread(target=self._watch, name="mpicoll stacks", daemon=True)
        self._thread.start()

    def alive(self) -> None:
        """A step has ended; the next one begins."""
        self._alive = time.monotonic()

    def rest(self) -> None:
        """No step is awaited."""
        self._alive = None

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._catches:
            faulthandler.unregister(signal.SIGUSR2)
            signal.set_wakeup_fd(self._wakeup_before)
            signal.signal(signal.SIGUSR2, self._handler_before)
        os.write(self._woken, b"\0")
        self._thread.join()
        if self._socket is not None:
            self._socket.close()
        os.close(self._wake)
        os.close(self._woken)

    def _catch_signal(self) -> None:
        """The fault handler writes at once; then Python's own handler wakes up the thread."""
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGUSR2)
        self._catches = main and sys.__stderr__ is not None and before is not None
        if self._catches:
            assert sys.__stderr__ is not None
            self._handler_before = signal.signal(signal.SIGUSR2, lambda *_: None)
            self._wakeup_before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
            faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True, chain=True)

    def _watch(self) -> None:
        look = None if self._hang_after is None else min(_LOOK, self._hang_after / 4)
        sources: list[Any] = [self._wake, *([self._socket] if self._socket else [])]
        while True:
            ready, _, _ = select.select(sources, [], [], look)
            if self._wake in ready:
                numbers = os.read(self._wake, 64)
                if b"\0" in numbers:
                    return
                if signal.SIGUSR2 in numbers:
                    self._written = time.monotonic()
                    self._say("asked for by a signal")
                    self._tell()
            if self._socket is not None and self._socket in ready:
                data = self._socket.recv(64)
                if secrets.compare_digest(data[:16], self._secret):
                    asking = int.from_bytes(data[16:], "big")
                    self._write(f"asked for by rank {asking}")
            alive = self._alive
            if self._hang_after is not None and alive is not None:
                idle = time.monotonic() - alive
                if idle > self._hang_after:
                    self._alive = None  # once for each step
                    self._write(f"no step has ended for {idle:.0f} s")
                    self._tell()

    def _tell(self) -> None:
        """Ask the others for their stacks."""
        for address in self._others if self._socket else ():
            with suppress(OSError):  # a host that cannot be reached
                assert self._socket is not None
                self._socket.sendto(self._secret + self._rank.to_bytes(4, "big"), address)

    def _write(self, why: str) -> None:
        if sys.__stderr__ is None or time.monotonic() - self._written < _PAUSE:
            return
        self._written = time.monotonic()
        self._say(why)
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)

    def _say(self, why: str) -> None:
        """Why there are stacks, and what this rank is in."""
        doing = self._doing()
        where = f", in {doing}" if doing else ""
        print(f"[rank {self._rank}] stacks: {why}{where}", file=sys.__stderr__, flush=True)


def _bound(address: str) -> socket.socket | None:
    """A socket for datagrams at a free port; None where there can be none."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.bind((address, 0))
    except OSError:
        made.close()
        return None
    return made
