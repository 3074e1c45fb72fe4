"""SIGTERM and SIGUSR1 ask a run to stop: what batch systems send before the time is over.

SIGUSR2 makes a rank write the Python stacks of its threads to standard error, whatever it is in.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

#: Exit status of a run that a signal stopped: EX_TEMPFAIL of sysexits.h, "try again later".
STATUS = 75


@contextmanager
def heard(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` when a signal comes, in place of what it did before; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True)
    before = {number: signal.signal(number, lambda *_: ask()) for number in SIGNALS}
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR2)
        for number, handler in before.items():
            # None: a handler that was not set from Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
