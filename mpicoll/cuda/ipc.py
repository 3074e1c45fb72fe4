"""Collectives between the GPUs of one node, through memory that each GPU maps of the others.

Every rank has a *window*: memory of its own GPU, which all peers map when the communicator is
built.  Collectives go through it in packets of data and flag (``exchange.cuh``), ordered on the
caller's stream, without a message between the hosts.  Long registered arrays
(:func:`mpicoll.cuda.empty`, :func:`mpicoll.cuda.register`, persistent requests) are accessed in
place (``direct.cuh``).  Every rank counts its steps in device memory, so a captured graph can be
replayed among other calls.

A wait on the GPU ends if it exceeds its limit or if the peer's process has died.  Then the next
call and all later calls raise.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from mpicoll import ops
from mpicoll.base.consensus import agreed, attempt, together
from mpicoll.cuda import _driver, _launch, kernels, keys, links
from mpicoll.cuda.keys import key_of
from mpicoll.cuda.launches import Limits, launch_of
from mpicoll.cuda.links import Facts
from mpicoll.cuda.liveness import Watchdog
from mpicoll.cuda.registered import MOST, TABLE, Registered, Registry
from mpicoll.cuda.windows import Windows, all_have_come
from mpicoll.errors import MemoryGone

__all__ = ["TIMEOUT", "Bound", "Peers", "Registered"]

#: Seconds that a device-side wait may take where ``MPICOLL_TIMEOUT`` does not say otherwise.
TIMEOUT = 600.0
#: Bytes of the alarm, see exchange.cuh.
ALARM = 64

_ABSENT, _IN_PLACE = -1, -2
_OPERATORS = {getattr(MPI, name.upper()).handle: name for name in ops.OPERATORS}


class Peers:
    """The GPUs of a communicator's ranks, all of one node.

    Made by :meth:`open`.

    Attributes:
        device: ordinal of this rank's GPU.
        failed: the error that has ended all use, or None.
    """

    def __init__(
        self,
        private: MPI.Intracomm,
        device: int,
        seconds: float,
        facts: Sequence[Facts],
        limits: Limits,
    ) -> None:
        self._private, self.device = private, device
        self._rank, self._size = private.Get_rank(), private.Get_size()
        most = min(fact.multiprocessors for fact in facts)
        self._limits = limits._replace(blocks=min(limits.blocks, most))
        self._seconds = seconds or TIMEOUT
        self._pids = {rank: fact.pid for rank, fact in enumerate(facts)}
        self._windows = Windows(self._rank, self._pids, self._limits)
        self._alarm = 0
        self._functions: dict[str, Any] = {}
        self._launcher: Any = None
        self._registry: Any = None
        self._watchdog: Watchdog | None = None
        self.failed: BaseException | None = None

    # ---- Made and freed ----

    @classmethod
    def open(
        cls,
        private: MPI.Intracomm,
        device: int,
        seconds: float = 0.0,
        share: bool = False,
        limits: Limits | None = None,
    ) -> tuple[Peers | None, str]:
        """Map the peers' memory.  Collective.

        Args:
            private: the communicator, of mpicoll's own.
            device: ordinal of this rank's GPU.
            seconds: that a device-side wait may take; 0: :data:`TIMEOUT`.
            share: whether several ranks may have one GPU, which works, but very slowly.
            limits: of launches, equal on all ranks.

        Returns:
            None, and why, on all ranks alike, where it cannot be done; else, in words, where it
            cannot be done as well as it might.
        """
        facts = private.allgather(links.facts_of(device))
        problem = links.problem(facts, share) or agreed(private, links.unlinked(facts))
        if problem:
            return None, str(problem)
        limits = limits or Limits.of(private.Get_size())
        if not limits.ring:
            limits = limits._replace(ring=links.ring(facts))
        if len({*private.allgather(limits.ring)}) > 1:
            return None, "the ranks see different links between their GPUs"
        peers = cls(private, device, seconds, facts, limits)
        windows = peers._windows
        for step in (*windows.steps, peers._prepare):
            failure = attempt(private, partial(peers._make, step))
            if failure is not None:
                peers.close()
                return None, str(failure)
            windows.handles = private.allgather(windows.handle)
        return peers, links.IN_A_RING if limits.ring else ""

    def _make(self, step: Callable[[], None]) -> None:
        with self._on_device():
            step()

    def _on_device(self) -> Any:
        import cupy

        return cupy.cuda.Device(self.device)

    def _prepare(self) -> None:
        """Compile and load the kernels, and what they count in."""
        import cupy

        windows = self._windows
        self._functions = kernels.compiled(self._size, self._limits)
        self._alarm = _driver.pinned(ALARM)
        ctypes.memset(self._alarm, 0, ALARM)
        table = windows.allocate(TABLE * self._size)
        self._launcher = _launch.Launcher(
            self.device,
            self._rank,
            windows.addresses,
            self._alarm,
            table,
            tuple((windows.allocate(8 * c[0]), *c) for c in self._limits.channels(self._size)),
            int(self._seconds * 1e9),
            cupy.ndarray,
            MPI.IN_PLACE,
            cupy.cuda.get_current_stream,
        )
        # In a ring nothing can be registered: not all ranks could map it.
        numbers = 0 if self._limits.ring else MOST
        self._registry = Registry(
            self._private, self.device, self._launcher, table, windows.stream, numbers
        )
        for function in self._functions.values():
            _driver.make_ready(function.ptr)
        _driver.synchronize(windows.stream)
        self._watchdog = Watchdog(
            {rank: pid for rank, pid in self._pids.items() if rank != self._rank},
            self._launcher.stop,
        )
        #: The compiled fast path; see `_launch.Launcher.serve`.
        self.serve = self._launcher.serve

    def close(self) -> None:
        """Unmap the peers' memory and free this rank's.  Collective, but waits for no dead peer.

        Memory is freed when no peer has it mapped any more; if that is not known soon, the process
        keeps it.
        """
        if self._launcher is not None:
            self._launcher.close()
        windows, registry, self._registry = self._windows.take(), self._registry, None
        try:
            with self._on_device():
                _driver.synchronize_device()  # the watchdog ends waits for a process that has died
                self._look_last()
                self._end_watchdog()
                windows.unmap()
                if registry is not None:
                    registry.unmap_all()
                windows.free_stream()
                self._free_alarm()
                if all_have_come(self._private, registry):
                    windows.free()
                    if registry is not None:
                        registry.let_all_go()
        except RuntimeError as error:
            self.failed = self.failed or error  # the process is about to end, or the GPU is lost
        finally:
            self._end_watchdog()

    def _look_last(self) -> None:
        """Tell of a wait that was given up, which no later call will tell."""
        if self.failed is None and self._launcher is not None and self._launcher.alarmed():
            self.failed = self._failure()
            warnings.warn(
                f"what was enqueued last on a communicator is not done: {self.failed}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _end_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None

    def _free_alarm(self) -> None:
        """Free what no kernel and no thread looks at any more."""
        if self._alarm:
            if self._launcher is not None:
                self._launcher.drop_alarm()
            _driver.free_pinned(self._alarm)
            self._alarm = 0

    # ---- Calls ----

    def supports(self, collective: str, op: str | None, dtype: Any, nbytes: int) -> bool:
        """Whether a collective with equal blocks is served; the same on all ranks.

        Args:
            collective: as in ``mpicoll list``.
            op: name of the operator, None where nothing is reduced.
            dtype: of the elements.
            nbytes: of the whole vector.
        """
        if collective not in (keys.RING if self._limits.ring else keys.COLLECTIVES):
            return False
        if collective not in keys.REDUCING:
            return True
        return op in keys.OPS and keys.type_of(op, dtype) in keys.TYPES

    def run(
        self, collective: str, send: Any, recv: Any, op: str | None, root: int, stream: Any
    ) -> None:
        """Enqueue a collective on a stream.

        Args:
            collective: one that is supported.
            send, recv: with ``ptr``, ``nbytes`` and ``dtype``; None as a send buffer: in place, or
                none; None as a receive buffer: none, or in place at the root of a scatter.
            op, root: as in the call.
            stream: an object with ``ptr``, which is kept alive while it is the last one used; or
                its handle.

        Raises:
            RuntimeError: a wait on the GPU has not ended in time, or a peer has died.
        """
        self.check()
        arguments = self._remembered(collective, send, recv, op, None, root)
        if arguments is not None:
            self._launcher.run(*arguments, *_addresses(send, recv), stream)

    def learn(
        self, collective: str, sendbuf: Any, recvbuf: Any, op: Any, root: int, element: Any
    ) -> None:
        """Let :meth:`serve` serve such a call from now on.

        Args:
            collective, sendbuf, recvbuf, op, root: as given to :meth:`serve`, of a call that has
                gone the slow path and is supported.
            element: dtype of the elements, as NumPy has it.
        """
        send, recv = (None if buffer is MPI.IN_PLACE else buffer for buffer in (sendbuf, recvbuf))
        name = _OPERATORS.get(op.handle) if isinstance(op, MPI.Op) else None
        if op is None or name is not None:
            self._meet_tensors(send, recv)
            given = sendbuf, recvbuf
            self._remembered(collective, send, recv, name, op, root, element, given)

    def _meet_tensors(self, *buffers: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            kinds = {type(buffer) for buffer in buffers if isinstance(buffer, torch.Tensor)}
            if kinds:
                # PyTorch's Stream objects take longer to make than a kernel to start.
                self._launcher.meet_tensors(kinds, torch._C._cuda_getCurrentRawStream)

    def _remembered(
        self,
        collective: str,
        send: Any,
        recv: Any,
        op: str | None,
        handle: Any,
        root: int,
        element: Any = None,
        given: tuple[Any, Any] = (None, None),
    ) -> tuple[Any, ...] | None:
        """What the launcher calls a call, of which it is told if it is new; None if it is empty."""
        collective = sys.intern(collective)
        lengths = [
            _IN_PLACE if own is MPI.IN_PLACE else _ABSENT if buffer is None else buffer.nbytes
            for buffer, own in zip((send, recv), given, strict=True)
        ]
        dtype = (recv if send is None else send).dtype
        how = op if handle is None else handle
        arguments = (collective, how, dtype, root, *lengths)
        if self._launcher.known_call(*arguments):
            return arguments
        sent, received = (None if buffer is None else buffer.nbytes for buffer in (send, recv))
        element = dtype if element is None else element
        key = key_of(collective, sent, received, op, element, self._rank, self._size, root)
        if key.nbytes == 0:
            return None
        launch = launch_of(key, self._limits, self._registry.any)
        self._launcher.remember(*arguments, launch, self._functions[launch.kernel].ptr)
        return arguments

    def check(self) -> None:
        """Raise if a wait on the GPU has not ended in time, or a peer has died."""
        if self.failed is None:
            self.failed = self._failure()
            if self.failed is None:
                return
            self._launcher.open = False
        kind = MemoryGone if isinstance(self.failed, MemoryGone) else RuntimeError
        raise kind(f"this communicator cannot be used any more: {self.failed}")

    def _failure(self) -> BaseException | None:
        if self._watchdog is not None and self._watchdog.dead:
            ranks = ", ".join(map(str, self._watchdog.dead))
            return MemoryGone(f"the process of rank {ranks} has died")
        alarmed = self._launcher.alarmed()
        if alarmed is None:
            return None
        return RuntimeError(
            f"rank {self._rank} has waited on its GPU for rank {alarmed[0]} (step {alarmed[1]}) "
            f"for longer than {self._seconds:g} s; MPICOLL_TIMEOUT sets the limit"
        )

    # ---- Registered memory ----

    def register(self, spans: Sequence[tuple[int, int]], kept: Any = None) -> Registered:
        """Let peers read and write memory of this rank where it lies.  Collective.

        Args:
            spans: (address, length) of buffers, as many on every rank; length 0 for none.
            kept: what keeps the memory alive, until no peer has it mapped any more.

        What cannot be mapped by another process (stream-ordered pools, virtual memory management,
        managed memory) stays unregistered on all ranks, and goes through the window.
        """
        together(self._private, self.check)
        with self._on_device():
            return self._registry.register(spans, kept)

    def empty(self, nbytes: int) -> tuple[int, Any]:
        """Memory of an allocation of its own, which is registered.  Collective.

        Returns:
            its address, and what keeps it: it is given back by the first registration after that
            has gone on all ranks.

        Raises:
            MemoryError: on all ranks, if one does not have so much.
        """
        together(self._private, self.check)
        with self._on_device():
            return self._registry.empty(nbytes)

    def bind(self, collective: str, send: Any, recv: Any, op: str | None, root: int) -> Bound:
        """Bind a collective to its buffers, see :meth:`run`.  Collective."""
        spans = [(0, 0) if b is None else (b.ptr, b.nbytes) for b in (send, recv)]
        registered = self.register(spans, (send, recv))
        return Bound(self, registered, (collective, send, recv, op, root))


class Bound:
    """A collective bound to its buffers, which it keeps."""

    def __init__(self, peers: Peers, registered: Registered, call: tuple[Any, ...]) -> None:
        self._peers, self._registered, self._call = peers, registered, call
        self._addresses = _addresses(*call[1:3])
        self._known: tuple[Any, ...] | None = None
        self._captured = False

    def start(self, stream: Any) -> None:
        """Enqueue it; see :meth:`Peers.run`."""
        peers = self._peers
        peers.check()
        self._captured = self._captured or _driver.capturing(getattr(stream, "ptr", stream))
        # The launcher forgets calls: all where memory is registered, one where there are many.
        if self._known is None or not peers._launcher.known_call(*self._known):
            collective, send, recv, op, root = self._call
            self._known = peers._remembered(collective, send, recv, op, None, root)
        if self._known is not None:
            peers._launcher.run(*self._known, *self._addresses, stream)

    def close(self) -> None:
        """Let the buffers go, unless a graph has been made of it: that may be launched again."""
        if not self._captured:
            self._registered.close()


def _addresses(send: Any, recv: Any) -> list[int]:
    return [0 if buffer is None else buffer.ptr for buffer in (send, recv)]
