"""The functions of the CUDA driver that bring bytes to the host and back.

They are those of the compiled module ``mpicoll.cuda._driver``, which is imported when they are
first asked for.  Whoever wants to run without a GPU puts something else in its place, by
:func:`use`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol, cast

from mpicoll.base import caller
from mpicoll.errors import CudaError

#: Modules of which each can bring arrays in device memory.
_BRINGERS = ("cupy", "torch", "numba.cuda", "jax", "pycuda", "tensorflow")


class Functions(Protocol):
    """What is used of the driver.

    Addresses, streams and events are integers.  Stream 0 is the legacy default one.  Copies,
    records and waits are ordered on their stream; they return at once, but a copy from or to
    memory of the host that is not pinned may wait.  All but ``count`` and ``place`` are for the
    device of the innermost ``on``.
    """

    def count(self) -> int:
        """Number of devices."""

    def current(self) -> int:
        """Number of the device that this thread uses, 0 if it has used none."""

    def uuid(self, device: int) -> str:
        """What names the device on every host and in every process."""

    def name(self, device: int) -> str:
        """The device's name in words."""

    def linked(self, device: int, other: int) -> tuple[bool, bool]:
        """Whether a device can map memory of another one, and whether their link has atomics."""

    def place(self, address: int) -> int | None:
        """Number of the device of an address; None for memory of the host not given by CUDA."""

    def on(self, device: int) -> Any:
        """A ``with`` block in which a device is the current one."""

    def pinned(self, nbytes: int) -> int:
        """The address of new pinned memory of the host."""

    def free_pinned(self, address: int) -> None:
        """Free it."""

    def register(self, address: int, nbytes: int) -> None:
        """Pin memory of the host that is there."""

    def unregister(self, address: int) -> None:
        """Do not pin it any more."""

    def allocate(self, nbytes: int, stream: int) -> int:
        """The address of new memory of the device, to be used in the order of a stream."""

    def free(self, address: int, stream: int) -> None:
        """Free it, in the order of a stream."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two addresses, of the host or of devices."""

    def synchronize(self, stream: int) -> None:
        """Wait until all that was put on a stream is done."""

    def stream(self) -> int:
        """A new stream that does not wait for the legacy default one."""

    def free_stream(self, stream: int) -> None:
        """Free a stream; what was put on it goes on."""

    def capturing(self, stream: int) -> bool:
        """Whether a stream is being captured for a graph."""

    def event(self) -> int:
        """A new event, which has happened until it is recorded."""

    def free_event(self, event: int) -> None:
        """Free an event."""

    def record(self, event: int, stream: int) -> None:
        """The event happens when all that was put on the stream before is done."""

    def wait(self, stream: int, event: int) -> None:
        """What is put on the stream from now on waits for the event, as recorded last."""

    def happened(self, event: int) -> bool:
        """Whether the event, as recorded last, has happened."""

    def await_event(self, event: int) -> None:
        """Wait until it has."""

    def launch(
        self, function: int, blocks: int, threads: int, arguments: tuple[int, ...], stream: int
    ) -> None:
        """Put a kernel on a stream, given the handle of its function and whole numbers."""


_used: Functions | None = None
_problem: str | None = None


def is_wanted() -> bool:
    """Whether this program may have arrays in device memory: what makes them is imported."""
    return _used is not None or any(name in sys.modules for name in _BRINGERS)


def is_usable() -> bool:
    """Whether it may, and there is a driver for them."""
    return is_wanted() and not problem()


def problem() -> str:
    """Why there is no driver, "" if there is one."""
    global _used, _problem
    if _used is None and _problem is None:
        try:
            compiled = importlib.import_module("mpicoll.cuda._driver")
            compiled.load()
            _used = cast(Functions, compiled)
        except ModuleNotFoundError:
            _problem = "mpicoll.cuda._driver has not been built"
        except CudaError as error:
            _problem = str(error)
    return "" if _used is not None else _problem or ""


def driver() -> Functions:
    """The driver of this process.

    Raises:
        CudaError: there is none.
    """
    why = problem()
    if _used is None:
        raise CudaError(f"no CUDA driver: {why}")
    return _used


def when_dropped(owner: object, release: Callable[..., object], *arguments: Any) -> None:
    """Call ``release(*arguments)`` when the owner is gone, but not in a forked child."""

    def end() -> None:
        # When the program ends the driver may have ended before.
        if not caller.is_forked():
            with contextlib.suppress(CudaError):
                release(*arguments)

    weakref.finalize(owner, end).atexit = False


def use(functions: Functions | None) -> Callable[[], None]:
    """Put something else in the driver's place; what is returned undoes that."""
    global _used, _problem
    before = _used, _problem
    _used, _problem = functions, None

    def undo() -> None:
        global _used, _problem
        _used, _problem = before

    return undo
