"""Collectives between the GPUs of one node, through memory that each of them maps of the others.

Every rank has a *window*, memory of its own GPU that all peers map when the communicator is made.
Collectives go through it in packets of data and flag (``exchange.cuh``), ordered on the caller's
stream, without a word between the hosts.  Where arrays are registered (:func:`mpicoll.cuda.empty`,
:func:`mpicoll.cuda.register`, persistent requests) long ones are read and written where they lie
(``direct.cuh``).  Every rank counts its steps in device memory, so a captured graph can be replayed
among other calls.

A wait on the GPU that exceeds its limit, or whose peer's process has died, ends; the next call
raises, and so does every later one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from mpicoll import ops
from mpicoll.cuda import kernels, shapes
from mpicoll.cuda.deaths import Watchdog
from mpicoll.cuda.shapes import Limits

try:
    from mpicoll import _cuda
except ImportError:  # a source tree where nothing has been built
    _cuda = None  # type: ignore[assignment]

__all__ = ["TIMEOUT", "Peers", "Plan", "Registered"]

#: Seconds that a device-side wait may take where ``MPICOLL_TIMEOUT`` does not say otherwise.
TIMEOUT = 600.0
#: Registered allocations that a communicator may have at a time.
REGISTERED = 256
#: Bytes of the alarm, see exchange.cuh.
ALARM = 64
#: Seconds to wait for the other ranks before memory is freed.
PATIENCE = 5.0
#: What a rank writes to its window for the others to read.
PATTERN = b"mpicoll window "

_ABSENT, _IN_PLACE = -1, -2
_OPERATORS = {getattr(MPI, name.upper()).handle: name for name in ops.OPERATORS}


class _Facts(NamedTuple):
    """What a rank tells the others of its GPU."""

    problem: str
    host: str
    pid: int
    uuid: bytes
    multiprocessors: int


class _Exported(NamedTuple):
    """What other processes need to map an allocation: its number, its handle; where in it."""

    number: int
    handle: bytes
    offset: int


class Peers:
    """The GPUs of a communicator's ranks, all of one node.

    Made by :meth:`open`.

    Attributes:
        failed: the error that has ended all use, or None.
        registered: number of registered allocations.
    """

    def __init__(
        self,
        private: MPI.Intracomm,
        device: int,
        seconds: float,
        facts: Sequence[_Facts],
        limits: Limits,
    ) -> None:
        self._private, self._device = private, device
        self._rank, self._size = private.Get_rank(), private.Get_size()
        self._facts = facts
        most = min(fact.multiprocessors for fact in facts)
        self._limits = limits._replace(blocks=min(limits.blocks, most))
        self._seconds = seconds or TIMEOUT
        self._owned: list[int] = []
        self._mapped: list[int] = []
        self._alarm = 0
        self._module: Any = None
        self._functions: dict[str, int] = {}
        self._launcher: Any = None
        self._handle = b""
        self._handles: list[bytes] = []
        self._held: dict[int, list[tuple[int, int]]] = {}
        self._free = [*reversed(range(REGISTERED))]
        self._mappings: dict[tuple[int, int], list[int]] = {}
        self._watchdog: Watchdog | None = None
        self.registered = 0
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
            None, and why, on all ranks alike, where it cannot be done.
        """
        facts = private.allgather(_facts(device))
        problem = _agreed(private, _problem(facts, share))
        if problem:
            return None, problem
        peers = cls(private, device, seconds, facts, limits or Limits())
        steps = (
            peers._make_window, peers._map_windows, peers._write_pattern, peers._read_patterns,
            peers._clear_pattern, peers._prepare,
        )  # fmt: skip
        for step in steps:
            problem = ""
            try:
                with peers._on_device():
                    step()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            problem = _agreed(private, problem)
            if problem:
                peers.close()
                return None, problem
            peers._handles = private.allgather(peers._handle)
        return peers, ""

    def _on_device(self) -> Any:
        import cupy

        return cupy.cuda.Device(self._device)

    def _make_window(self) -> None:
        self._window = self._allocate(2 * self._limits.region(self._size))
        self._handle = _cuda.export(self._window)

    def _map_windows(self) -> None:
        self._windows = [
            self._window if rank == self._rank else self._map(handle)
            for rank, handle in enumerate(self._handles)
        ]

    def _write_pattern(self) -> None:
        _cuda.write(self._window, self._pattern(self._rank))

    def _read_patterns(self) -> None:
        for rank, window in enumerate(self._windows):
            if _cuda.read(window, len(self._pattern(rank))) != self._pattern(rank):
                raise RuntimeError(f"memory of rank {rank} reads other than it was written")

    def _clear_pattern(self) -> None:
        _cuda.write(self._window, bytes(len(self._pattern(self._rank))))

    def _pattern(self, rank: int) -> bytes:
        return PATTERN + self._facts[rank].pid.to_bytes(8, "little")

    def _prepare(self) -> None:
        """Compile and load the kernels, and what they count in."""
        import cupy

        self._module, self._functions = kernels.compiled(self._size, self._limits)
        self._alarm = _cuda.allocate_host(ALARM)
        steps = self._allocate(8 * self._limits.warps)
        self._table = self._allocate(8 * REGISTERED * self._size)
        self._launcher = _cuda.Launcher(
            self._device,
            self._rank,
            self._windows,
            steps,
            self._alarm,
            self._table,
            self._limits.slot,
            self._limits.region(self._size),
            int(self._seconds * 1e9),
            cupy.ndarray,
            MPI.IN_PLACE,
            cupy.cuda.get_current_stream,
        )
        for function in self._functions.values():
            _cuda.make_ready(function)
        _cuda.synchronize()
        self._watchdog = Watchdog(
            {rank: fact.pid for rank, fact in enumerate(self._facts) if rank != self._rank},
            self._launcher.stop,
        )
        #: The compiled short way; see `_cuda.Launcher.serve`.
        self.serve = self._launcher.serve

    def _allocate(self, nbytes: int) -> int:
        address: int = _cuda.allocate(nbytes)
        self._owned.append(address)
        return address

    def _map(self, handle: bytes) -> int:
        address: int = _cuda.map(handle)
        self._mapped.append(address)
        return address

    def close(self) -> None:
        """Unmap the peers' memory and free this rank's.  Collective, but waits for no dead peer.

        Memory is freed when no peer has it mapped any more; if that is not known soon, the process
        keeps it.
        """
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
        if self._launcher is not None:
            self._launcher.close()
        owned, self._owned = self._owned, []
        mapped = [*self._mapped, *(entry[0] for entry in self._mappings.values())]
        self._mapped = []
        self._mappings.clear()
        try:
            with self._on_device():
                _cuda.synchronize()
                for address in mapped:
                    _cuda.unmap(address)
                if _all_have_come(self._private):
                    for address in owned:
                        _cuda.free(address)
        except RuntimeError as error:
            self.failed = self.failed or error  # the process is about to end, or the GPU is lost

    # ---- Calls ----

    def supports(self, collective: str, op: str | None, dtype: Any, nbytes: int) -> bool:
        """Whether a collective with equal blocks is served; the same on all ranks.

        Args:
            collective: as in ``mpicoll list``.
            op: name of the operator, None where nothing is reduced.
            dtype: of the elements.
            nbytes: of the whole vector.
        """
        if collective not in shapes.COLLECTIVES:
            return False
        if collective not in shapes.REDUCING:
            return True
        return op in shapes.OPS and _type(op, dtype) in shapes.TYPES

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
                an address, of a stream that lives until another is used.

        Raises:
            RuntimeError: a wait on the GPU has not ended in time, or a peer has died.
        """
        self.check()
        arguments = self._remembered(collective, send, recv, op, None, root)
        if arguments is not None:
            addresses = [0 if buffer is None else buffer.ptr for buffer in (send, recv)]
            self._launcher.run(*arguments, *addresses, stream)

    def learn(self, collective: str, sendbuf: Any, recvbuf: Any, op: Any, root: int) -> None:
        """Let :meth:`serve` serve such a call of CuPy's arrays from now on.

        Args:
            collective, sendbuf, recvbuf, op, root: as given to :meth:`serve`, of a call that has
                gone the long way and is supported.
        """
        import cupy

        send, recv = (
            buffer if type(buffer) is cupy.ndarray else None for buffer in (sendbuf, recvbuf)
        )
        name = _OPERATORS.get(op.handle) if isinstance(op, MPI.Op) else None
        if op is None or name is not None:
            self._remembered(collective, send, recv, name, op, root, sendbuf, recvbuf)

    def _remembered(
        self,
        collective: str,
        send: Any,
        recv: Any,
        op: str | None,
        handle: Any,
        root: int,
        sendbuf: Any = None,
        recvbuf: Any = None,
    ) -> tuple[Any, ...] | None:
        """What the launcher calls a call, of which it is told if it is new; None if it is empty."""
        collective = sys.intern(collective)
        lengths = [
            _IN_PLACE if given is MPI.IN_PLACE else _ABSENT if buffer is None else buffer.nbytes
            for buffer, given in ((send, sendbuf), (recv, recvbuf))
        ]
        dtype = (recv if send is None else send).dtype
        how = op if handle is None else handle
        arguments = (collective, how, dtype, root, *lengths)
        if self._launcher.known_call(*arguments):
            return arguments
        call = self._call(collective, send, recv, op, dtype, root)
        if call.nbytes == 0:
            return None
        launch = shapes.plan(call, self._limits, self.registered > 0)
        self._launcher.remember(*arguments, launch, self._functions[launch.kernel])
        return arguments

    def _call(
        self, collective: str, send: Any, recv: Any, op: str | None, dtype: Any, root: int
    ) -> shapes.Call:
        rank, size = self._rank, self._size
        given = 0 if send is None else send.nbytes
        wanted = 0 if recv is None else recv.nbytes
        nbytes, in_place = max(given, wanted), send is None
        if collective == "bcast":
            in_place = False
        elif collective == "scatter":
            in_place = rank == root and recv is None
            nbytes = given if rank == root else wanted * size
        elif collective == "gather":
            in_place = rank == root and send is None
            nbytes = wanted if rank == root else given * size
        elif collective == "reduce":
            nbytes = given or wanted
        elif collective == "allgather":
            nbytes = wanted
        elif collective == "reduce_scatter":
            nbytes = wanted if in_place else given
        reduced = op if collective in shapes.REDUCING else None
        type = _type(reduced, dtype) if reduced else ""
        return shapes.Call(collective, nbytes, rank, size, root, reduced or "", type, in_place)

    def check(self) -> None:
        """Raise if a wait on the GPU has not ended in time, or a peer has died."""
        if self.failed is None:
            self.failed = self._failure()
            if self.failed is None:
                return
            self._launcher.open = False
        raise RuntimeError(f"this communicator cannot be used any more: {self.failed}")

    def _failure(self) -> BaseException | None:
        if self._watchdog is not None and self._watchdog.dead:
            ranks = ", ".join(map(str, self._watchdog.dead))
            return RuntimeError(f"the process of rank {ranks} has died")
        alarmed = self._launcher.alarmed()
        if alarmed is None:
            return None
        return RuntimeError(
            f"rank {self._rank} has waited on its GPU for rank {alarmed[0]} (step {alarmed[1]}) "
            f"for longer than {self._seconds:g} s; MPICOLL_TIMEOUT sets the limit"
        )

    # ---- Registered memory ----

    def register(self, addresses: Sequence[tuple[int, int]]) -> Registered:
        """Let peers read and write memory of this rank where it lies.  Collective.

        Args:
            addresses: (address, length) of buffers, as many on every rank; length 0 for none.

        What cannot be mapped by another process (stream-ordered pools, virtual memory management,
        managed memory) stays unregistered on all ranks, and goes through the window.
        """
        self.check()
        indices = [self._register(address, length) for address, length in addresses]
        self._launcher.forget()
        return Registered(self, [index for index in indices if index is not None])

    def _register(self, address: int, length: int) -> int | None:
        with self._on_device():
            record = _exported(address, length) if self._free else None
            records = self._private.allgather((length, record))
            lengths = [length for length, _ in records]
            if not any(lengths) or any(held and found is None for held, found in records):
                return None
            keys: list[tuple[int, int]] = []
            problem, row = "", [0] * self._size
            try:
                for rank, (_, found) in enumerate(records):
                    if rank == self._rank:
                        row[rank] = address
                    elif found is not None:
                        row[rank] = self._mapped_once(rank, found) + found.offset
                        keys.append((rank, found.number))
            except RuntimeError as error:
                problem = str(error)
            if _agreed(self._private, problem):
                self._let_go(keys)
                return None
            index = self._free.pop()
            words = b"".join(word.to_bytes(8, "little") for word in row)
            _cuda.write(self._table + 8 * index * self._size, words)
            _cuda.synchronize()
        if length:
            self._launcher.register(address, length, index)
        self._held[index] = keys
        self.registered += 1
        return index

    def _mapped_once(self, rank: int, found: _Exported) -> int:
        """Where another rank's allocation is mapped, which is done once."""
        key = rank, found.number
        if key not in self._mappings:
            self._mappings[key] = [_cuda.map(found.handle), 0]
        self._mappings[key][1] += 1
        return self._mappings[key][0]

    def _let_go(self, keys: list[tuple[int, int]]) -> None:
        """Unmap what no registration needs any more."""
        for key in keys:
            entry = self._mappings[key]
            entry[1] -= 1
            if not entry[1]:
                del self._mappings[key]
                _cuda.unmap(entry[0])

    def unregister(self, indices: Sequence[int]) -> None:
        """Undo :meth:`register`.  Collective."""
        if self.failed is not None or not self._launcher.open:
            return
        with self._on_device():
            _cuda.synchronize()
            for index in indices:
                self._launcher.unregister(index)
                self._let_go(self._held.pop(index))
                self._free.append(index)
                self.registered -= 1
            self._launcher.forget()
            self._private.Barrier()

    def plan(
        self, collective: str, send: Any, recv: Any, op: str | None, root: int
    ) -> Plan:
        """Bind a collective to its buffers, see :meth:`run`.  Collective."""
        buffers = [(0, 0) if b is None else (b.ptr, b.nbytes) for b in (send, recv)]
        return Plan(self, self.register(buffers), (collective, send, recv, op, root))


class Registered:
    """Memory that peers may read and write; see :meth:`Peers.register`.

    Attributes:
        direct: whether there is any.
    """

    def __init__(self, peers: Peers, indices: list[int]) -> None:
        self._peers, self._indices = peers, indices
        self.direct = bool(indices)

    def close(self) -> None:
        """End it.  Collective."""
        indices, self._indices = self._indices, []
        if indices:
            self._peers.unregister(indices)


class Plan:
    """A collective bound to its buffers, which it keeps."""

    def __init__(self, peers: Peers, registered: Registered, call: tuple[Any, ...]) -> None:
        self._peers, self._registered, self._call = peers, registered, call

    def start(self, stream: Any) -> None:
        """Enqueue it; see :meth:`Peers.run`."""
        self._peers.run(*self._call, stream)

    def close(self) -> None:
        """Let the buffers go.  Collective."""
        self._registered.close()
        self._call = ()


def _all_have_come(private: MPI.Intracomm) -> bool:
    """Whether all ranks come here, within a time."""
    request = private.Ibarrier()
    end = time.monotonic() + PATIENCE
    while not request.Test():
        if time.monotonic() > end:
            request.Free()
            return False
        os.sched_yield()
    return True


def _agreed(private: MPI.Intracomm, problem: str) -> str:
    """The problem of the first rank that has one, "" where none has.  Collective."""
    problems = enumerate(private.allgather(problem))
    return next((f"rank {rank}: {text}" for rank, text in problems if text), "")


def _exported(address: int, length: int) -> _Exported | None:
    """What others need to map this memory, None where they cannot."""
    if not length:
        return None
    try:
        if not _cuda.exportable(address):
            return None
        base, _ = _cuda.address_range(address)
        return _Exported(_cuda.buffer_id(base), _cuda.export(base), address - base)
    except RuntimeError:
        return None


def _type(op: str | None, dtype: Any) -> str:
    """The kernels' name of a type; "" where the operator has no meaning for it."""
    try:
        return ops.reduction(op or "", dtype).type
    except (TypeError, ValueError):
        return ""


def _facts(device: int) -> _Facts:
    """This rank's facts; they say so if it cannot take part."""
    problem, uuid, multiprocessors = "", b"", 0
    if _cuda is None:
        problem = "mpicoll._cuda has not been built"
    else:
        try:
            import cupy

            _cuda.load()
            with cupy.cuda.Device(device) as current:
                cupy.cuda.runtime.free(0)  # makes the context
                uuid = _cuda.uuid(device)
                multiprocessors = current.attributes["MultiProcessorCount"]
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    return _Facts(problem, _host(), os.getpid(), uuid, multiprocessors)


def _host() -> str:
    """A name of this operating system's run, and of the namespace of its processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return MPI.Get_processor_name()


def _problem(facts: Sequence[_Facts], share: bool) -> str:
    """Why these ranks cannot map each other's memory, "" if nothing is known against it."""
    for fact in facts:
        if fact.problem:
            return fact.problem
    if len(facts) > 64:
        return f"{len(facts)} ranks, and at most 64 share memory of their GPUs"
    if len({fact.host for fact in facts}) > 1:
        return "the ranks are on several nodes, or in containers of their own"
    devices = [fact.uuid for fact in facts]
    if len(set(devices)) < len(devices) and not share:
        return "several ranks have the same GPU"
    return _unlinked(devices)


def _unlinked(devices: Sequence[bytes]) -> str:
    """Which GPU this process cannot reach from another one by NVLink."""
    seen = _cuda.uuids()
    for device in set(devices):
        if device not in seen:
            return "a rank's GPU is hidden from the others (CUDA_VISIBLE_DEVICES)"
    ordinals = sorted({seen.index(device) for device in devices})
    for one in ordinals:
        for other in ordinals:
            if one == other:
                continue
            access, atomic = _cuda.linked(one, other)
            if not access:
                return f"GPUs {one} and {other} cannot map each other's memory"
            if not atomic:
                # Packets stay whole on NVLink; on PCIe that is not known.
                return f"GPUs {one} and {other} are not linked by NVLink"
    return ""
