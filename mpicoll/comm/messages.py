"""Messages between two ranks: mpi4py's, also for arrays in device memory.

``Send, Recv, Sendrecv, Isend, Irecv, Send_init`` and ``Recv_init`` take mpi4py's arguments, and
arrays in device memory.  Those go through pinned host memory as one message, so they match messages
of host memory, and of any communicator on the same handle.  All other methods that take a buffer
refuse device memory with an error (:mod:`mpicoll.comm.refusing`).  If the MPI library reports that
it is CUDA-aware, and ``MPICOLL_GPU`` is not ``staged``, they pass it on, except for methods that
read the buffer on the host (``recv``, ``irecv``, ``sendrecv``, ``Attach_buffer``, ``Iagree``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mpi4py import MPI

from mpicoll.buffers import Buffer, parse
from mpicoll.buffers.staged import OnDevice
from mpicoll.comm.compiled import set_messages
from mpicoll.comm.refusing import Message, library_takes, refuse, set_refusing, settle
from mpicoll.cuda.arrays import is_device, recognise
from mpicoll.cuda.transports import STAGED
from mpicoll.engine import progress
from mpicoll.requests.device import Staged, StagedPrequest
from mpicoll.requests.library import OwnedPrequest, OwnedRequest

__all__ = ["Messages"]

#: What takes buffers and cannot be staged.
REFUSING = (
    *("Bsend", "Ssend", "Rsend", "Sendrecv_replace", "Ibsend", "Issend", "Irsend", "Isendrecv"),
    *("Isendrecv_replace", "Bsend_init", "Ssend_init", "Rsend_init", "Psend_init", "Precv_init"),
)
#: What the host looks at, whatever the library can do.
ON_HOST_ALONE = ("recv", "irecv", "Attach_buffer", "Iagree")

#: mpi4py's methods; a class that derived from it could not be combined with others of mpi4py's.
_COMM: Any = MPI.Comm
_SENDRECV: Any = MPI.Comm.Sendrecv


def _leaving(buf: Any) -> Buffer:
    """A send buffer whose bytes are in memory of the host."""
    staged = parse(buf, what="send buffer", moved=True).on_host()
    assert staged.packed is not None
    staged.packed.load()
    return staged


def _arriving(buf: Any) -> tuple[Buffer, OnDevice]:
    """A receive buffer of memory of the host, and what brings it to the device."""
    staged = parse(buf, what="receive buffer", writable=True, moved=True).on_host(loads=False)
    assert isinstance(staged.packed, OnDevice)
    staged.packed.load()  # of what is packed on the device, since the message may be shorter
    return staged, staged.packed


def _arrived(packed: OnDevice, status: MPI.Status) -> None:
    """Bring what a message has brought to the device; it may be shorter than the buffer."""
    # Get_count does not know more than 2 GiB before MPI-4.
    packed.write_back(min(status.Get_elements(MPI.BYTE), packed.memory.size))


class Messages:
    """What makes a class of mpi4py's communicators one whose messages may be in device memory."""

    _state: Any = None

    def _by_value(self, buf: Any) -> bool:
        """Whether a buffer has to go through the host.

        Where the library takes it, what is on its stream is done when this returns.
        """
        if not is_device(buf):
            return False
        forced = self._state is not None and self._state.settings.gpu == STAGED
        if forced or not library_takes():
            return True
        array = recognise(buf[0] if isinstance(buf, (list, tuple)) else buf)
        if array is not None and not array.is_contiguous:
            return True  # mpi4py refuses it
        settle(buf)
        return False

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a message; see mpi4py's method."""
        if not self._by_value(buf):
            _COMM.Send(self, buf, dest, tag)
            return
        message = _leaving(buf).message(reduced=False)
        with progress.meanwhile():
            _COMM.Send(self, message, dest, tag)

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Receive a message; see mpi4py's method."""
        if not self._by_value(buf):
            _COMM.Recv(self, buf, source, tag, status)
            return
        staged, packed = _arriving(buf)
        status = MPI.Status() if status is None else status
        with progress.meanwhile():
            _COMM.Recv(self, staged.message(reduced=False), source, tag, status)
        _arrived(packed, status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send and receive a message; see mpi4py's method."""
        packed = None
        if self._by_value(sendbuf):
            sendbuf = _leaving(sendbuf).message(reduced=False)
        if self._by_value(recvbuf):
            staged, packed = _arriving(recvbuf)
            recvbuf = staged.message(reduced=False)
            status = MPI.Status() if status is None else status
        _SENDRECV(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        if packed is not None and status is not None:
            _arrived(packed, status)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Start to send a message; see mpi4py's method."""
        if not self._by_value(buf):
            return _COMM.Isend(self, buf, dest, tag)
        staged = _leaving(buf)
        request = OwnedRequest(_COMM.Isend(self, staged.message(reduced=False), dest, tag))
        request.kept = staged
        return request

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        """Start to receive a message; see mpi4py's method.

        Into device memory it is no request of the library's; see :mod:`mpicoll.requests.device`.
        """
        if not self._by_value(buf):
            return _COMM.Irecv(self, buf, source, tag)
        staged, packed = _arriving(buf)
        request = _COMM.Irecv(self, staged.message(reduced=False), source, tag)
        return Staged(request, partial(_arrived, packed), staged)

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Any:
        """Bind a message to be sent; see mpi4py's method.  For device memory see ``Irecv``."""
        if not self._by_value(buf):
            return _COMM.Send_init(self, buf, dest, tag)
        staged = parse(buf, what="send buffer", moved=True).on_host()
        assert staged.packed is not None
        plan = OwnedPrequest(_COMM.Send_init(self, staged.message(reduced=False), dest, tag))
        return StagedPrequest(plan, staged.packed.load, lambda status: None, staged)

    def Recv_init(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        """Bind a message to be received; see mpi4py's method.  For device memory see ``Irecv``."""
        if not self._by_value(buf):
            return _COMM.Recv_init(self, buf, source, tag)
        staged, packed = _arriving(buf)
        plan = OwnedPrequest(_COMM.Recv_init(self, staged.message(reduced=False), source, tag))
        return StagedPrequest(plan, packed.load, partial(_arrived, packed), staged)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        *more: Any,
        **named: Any,
    ) -> Any:
        """Send and receive an object; see mpi4py's method."""
        refuse("sendrecv", recvbuf, always=True)
        return _COMM.sendrecv(self, sendobj, dest, sendtag, recvbuf, *more, **named)

    def Mprobe(self, *arguments: Any, **more: Any) -> Message:
        """Match a message, waiting for it; see mpi4py's method."""
        return Message(_COMM.Mprobe(self, *arguments, **more))

    def Improbe(self, *arguments: Any, **more: Any) -> Message | None:
        """Match a message if there is one; see mpi4py's method."""
        found = _COMM.Improbe(self, *arguments, **more)
        return None if found is None else Message(found)


set_messages(
    Messages,
    {
        **dict.fromkeys(("Send", "Recv", "Isend", "Irecv", "Send_init", "Recv_init"), (1,)),
        "Sendrecv": (1, 4),
    },
)
set_refusing(Messages, MPI.Comm, REFUSING)
set_refusing(Messages, MPI.Comm, ON_HOST_ALONE, always=True)
