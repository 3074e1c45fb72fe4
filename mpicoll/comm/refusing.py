"""Methods that only the MPI library can run, and that refuse device memory with an error.

mpi4py takes the address of any object with ``__cuda_array_interface__`` or DLPack and passes it to
the MPI library.  A library that is not CUDA-aware reads it from the host, and the process crashes.
So methods that cannot be staged check first.  The methods of windows, files and matched messages
belong to classes of mpi4py; they check too if the program creates them with
``mpicoll.Win.Create``, ``mpicoll.File.Open`` or ``mpicoll.Intracomm.Mprobe``.  Everything else
about them is mpi4py's.

A CUDA-aware library gets the buffer once the work on its stream is done.  Exceptions are the calls
that Open MPI does not support there (tuning guide, "Which MPI APIs do NOT work with CUDA-aware?"),
and buffers that are unpickled on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any, NoReturn, TypeVar

from mpi4py import MPI

from mpicoll.base import libraries
from mpicoll.cuda.arrays import is_device, recognise
from mpicoll.cuda.driver import driver

__all__ = ["File", "Message", "Win", "library_takes", "refuse", "refused", "set_refusing", "settle"]

_W = TypeVar("_W", bound="Win")


@cache
def library_takes() -> bool:
    """Whether the MPI library says that it takes what is in device memory."""
    return libraries.cuda_aware() is True


def settle(buf: Any) -> None:
    """Wait for what is on the stream of a buffer in device memory, before the library gets it."""
    array = recognise(buf[0] if isinstance(buf, (list, tuple)) else buf)
    assert array is not None
    with driver().on(array.device):
        driver().synchronize(array.stream)


def refused(method: str, always: bool = False) -> NoReturn:
    """Raise BufferError; ``always``: whether no MPI library takes it there."""
    whom = "no MPI library takes" if always else "this MPI library is not known to take"
    raise BufferError(
        f"{method}: a buffer in device memory, which {whom} there; use Send, Recv, Sendrecv, "
        "Isend, Irecv, Send_init, Recv_init or a collective of mpicoll.Intracomm, or copy it to "
        "the host"
    )


def refuse(method: str, *arguments: object, always: bool = False) -> None:
    """Raise if an argument of a method of the MPI library's is in device memory.

    Args:
        method: its name.
        arguments: of the call.
        always: whether a CUDA-aware library does not take it either.

    Raises:
        BufferError: one is, and the library does not say that it takes that.
    """
    for argument in arguments:
        if is_device(argument):
            if always or not library_takes():
                refused(method, always)
            settle(argument)


def set_refusing(kind: type, original: type, names: Iterable[str], always: bool = False) -> None:
    """Give a class methods of mpi4py's that refuse first; those that mpi4py has.

    Args:
        kind: the class.
        original: mpi4py's, whose methods they are.
        names: of the methods.
        always: see :func:`refuse`.
    """
    words = "" if original is MPI.Comm else f"{original.__name__}."
    for name in names:
        if hasattr(original, name):
            setattr(kind, name, _refusing(getattr(original, name), words + name, always))


def _refusing(method: Callable[..., Any], words: str, always: bool) -> Callable[..., Any]:
    """A method with mpi4py's signature and docstring."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        refuse(words, *arguments, *more.values(), always=always)
        return method(self, *arguments, **more)

    return call


class Win(MPI.Win):
    """A window of mpi4py's, which refuses buffers in device memory by name."""

    @classmethod
    def Create(cls: type[_W], memory: Any, *arguments: Any, **more: Any) -> _W:
        """Create a window; see mpi4py's method."""
        refuse("Win.Create", memory)
        return super().Create(memory, *arguments, **more)


class File(MPI.File):
    """A file of mpi4py's, which refuses buffers in device memory by name."""


class Message(MPI.Message):
    """A matched message of mpi4py's, which refuses buffers in device memory by name."""


set_refusing(Win, MPI.Win, ("Attach", "Detach", "Put", "Get"))
set_refusing(
    Win,
    MPI.Win,
    (
        *("Rput", "Rget", "Accumulate", "Raccumulate", "Get_accumulate", "Rget_accumulate"),
        *("Fetch_and_op", "Compare_and_swap"),
    ),
    always=True,
)
for _way in ("Read", "Write"):
    _calls = [f"{_way}{_where}" for _where in ("_at", "_at_all", "", "_all", "_shared")]
    set_refusing(File, MPI.File, [*_calls, f"{_way}_ordered"])
    set_refusing(File, MPI.File, [f"I{_name.lower()}" for _name in _calls])
    for _where in ("_at_all", "_all", "_ordered"):
        set_refusing(File, MPI.File, [f"{_way}{_where}_begin", f"{_way}{_where}_end"])
set_refusing(Message, MPI.Message, ("Recv", "Irecv"))
