"""SIGTERM and SIGUSR1 ask a run to stop: what batch systems send before the time is over."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    waits for is left to it, but for the MPI library: MPICH waits for SIGUSR1 in every program.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: (signal.signal(number, _Ask(ask, signal.getsignal(number))), action)
        for number, action in zip(SIGNALS, map(_action, SIGNALS), strict=True)
        if not _is_taken(number, action)
    }
    try:
        yield
    finally:
        for number, (handler, action) in before.items():
            signal.signal(number, handler)
            _SYSTEM.sigaction(number, action, None)  # a handler that Python does not know


class _Place(ctypes.Structure):
    """``Dl_info``: the library that an address lies in, and the symbol."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


_SYSTEM = ctypes.CDLL(None)
_SYSTEM.dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Place))

#: More bytes than a ``struct sigaction`` has; the address of the handler comes first.
_ROOM = 512


def _action(number: signal.Signals) -> ctypes.Array[ctypes.c_char]:
    """What the system does when a signal comes: a ``struct sigaction``."""
    action = ctypes.create_string_buffer(_ROOM)
    _SYSTEM.sigaction(number, None, action)
    return action


def _address(action: ctypes.Array[ctypes.c_char]) -> int | None:
    """Of the handler in C; None if it is SIG_DFL."""
    return ctypes.c_void_p.from_buffer(action).value


def _is_taken(number: signal.Signals, action: ctypes.Array[ctypes.c_char]) -> bool:
    """Whether a handler is set that Python does not know, as `faulthandler.register` sets one."""
    handler = signal.getsignal(number)
    if handler is None:
        return True  # of before Python began; it could not be put back
    address = _address(action)
    if handler != signal.SIG_DFL or address is None:
        return False
    mpi = sys.modules.get("mpi4py.MPI")  # which a run in one process does not load
    if mpi is None or mpi.__file__ is None:
        return True
    of_mpi = ctypes.cast(ctypes.CDLL(mpi.__file__).MPI_Init, ctypes.c_void_p).value
    return _library_at(address) != _library_at(of_mpi)


def _library_at(address: int | None) -> bytes | None:
    place = _Place()
    found = _SYSTEM.dladdr(address, ctypes.byref(place))
    return place.library if found else None
