"""SIGTERM and SIGUSR1 ask a run to stop: what batch systems send before the time is over."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

#: Exit status of a run that a signal stopped: EX_TEMPFAIL of sysexits.h, "try again later".
STATUS = 75


class _Ask:
    """A handler that asks a run to stop, and what it stands in."""

    def __init__(self, ask: Callable[[], None], outer: Any) -> None:
        self._ask = ask
        self._outer = outer if isinstance(outer, _Ask) else None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._ask()
        if self._outer is not None:
            self._outer(number, frame)


@contextmanager
def heard(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` when a signal comes, in place of what it did before; in the main thread only.

    Where one is inside another, both are asked: a signal that comes as the inner one ends, too
    late to stop it, still stops the outer one. A signal that something else than Python code
    waits for is left to it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, _Ask(ask, signal.getsignal(number)))
        for number in SIGNALS
        if not _is_taken(number)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_taken(number: signal.Signals) -> bool:
    """Whether a handler is set that Python does not know, as `faulthandler.register` sets one.

    It could not be put back.
    """
    handler = signal.getsignal(number)
    if handler is None:
        return True
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.M)
    is_caught = caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
    return handler == signal.SIG_DFL and is_caught
