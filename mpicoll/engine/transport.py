"""Memory that the ranks of one node share, and what the engine's messages go through.

The memory has no name in any file system: its first rank makes it, the others open it through
``/proc``, and it is gone when the last of them has ended, however that happens.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll.base import caller, processors
from mpicoll.base.consensus import agreed, combined
from mpicoll.base.forming import forming
from mpicoll.errors import TransportWarning

_PROBLEM = ""
try:
    from mpicoll.engine._attributes import Attributes
    from mpicoll.engine._datatypes import describe, is_described
    from mpicoll.engine._execution import Execution
    from mpicoll.engine._fast_path import FastPath
    from mpicoll.engine._flight import Airspace, CallCount, Flight, finish_all
    from mpicoll.engine._library import Direct
    from mpicoll.engine._messages import BlockingMessages, Messages
    from mpicoll.engine._methods import Collectives, FastComm, Method
    from mpicoll.engine._packing import Packing, StridedPacking, TypedPacking
    from mpicoll.engine._signature import meet_tensor
    from mpicoll.engine._starter import CountedPrequest, Starter
    from mpicoll.engine._transport import BUILT_FOR, Device, library, read_memory, space
except (ImportError, ValueError) as error:
    #: What runs a plan, makes calls again, starts persistent calls, and packs what goes by value;
    #: None where they are not built.
    Execution = FastPath = Starter = None
    Airspace = CallCount = CountedPrequest = Flight = finish_all = None
    Direct = Packing = StridedPacking = TypedPacking = meet_tensor = None
    BlockingMessages = Collectives = Messages = Method = None
    Attributes = describe = is_described = None
    #: A communicator that keeps a fast path, though no method looks for it.
    FastComm = type("FastComm", (MPI.Intracomm,), {"_fast_path": None})
    if isinstance(error, ModuleNotFoundError):
        _PROBLEM = "it is not built (no MPI compiler wrapper, mpicc, was found at installation)"
    else:  # built for another MPI, whose handles differ in size
        _PROBLEM = (
            f"it cannot be loaded ({error}): install mpicoll again with this MPI's mpicc on PATH"
        )

#: What ``MPICOLL_TRANSPORT`` accepts: all there is; slots alone; MPI's messages alone.
TRANSPORTS = ("auto", "shm", "mpi")

#: Bytes of all slots of a rank, of its longest slot, and of its shortest.
_SPACE, _LONGEST, _SHORTEST = 4 << 20, 1 << 20, 64 << 10
#: Ranks of one node that share memory; more than that use MPI's messages.
_RANKS = 256
#: Bytes of the proof that two ranks see the same memory.
_PROOF = 64
#: Messages at least this long are read from the sender's memory, if they have one reader.  Between
#: cores that share a cache slots would be better up to 256 KiB, between others they are far worse.
REMOTE = 8 << 10
#: Those at least this long are copied by both sides: one core alone does not use all bandwidth.
TOGETHER = 512 << 10
#: Steps without progress before the processor is offered to others: where every rank has one, and
#: where not.
_PATIENT, _IMPATIENT = 4000, 30


class Geometry(NamedTuple):
    """How the memory is divided (see ``_shared.h``): equal on all ranks of a node."""

    slots: int
    slot: int
    inside: int


def geometry(ranks: int) -> Geometry:
    """Slots of each rank, bytes of a slot, longest message inside its queue entry.

    A rank has slots for two messages to each of the others where these are few.
    """
    slots = max(4, min(2 * (ranks - 1), 64))
    slot = max(_SHORTEST, min(_LONGEST, _power(_SPACE // slots)))
    return Geometry(slots, slot, max(256, min(4096, _power((32 << 10) // ranks))))


def _power(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)


def engine_problem() -> str:
    """Why the compiled engine cannot run here, "" if it can."""
    if _PROBLEM:
        return _PROBLEM
    running, linked = MPI.Get_library_version(), library()
    if BUILT_FOR not in running:
        return f"it is built for {BUILT_FOR}, and this is {_first_words(running)}"
    # Two libraries on one machine: the loader may have found another one than mpi4py has.
    if linked.rstrip(_ENDS) != running.rstrip(_ENDS):
        return (
            f"it is linked with {_first_words(linked)}, and mpi4py with "
            f"{_first_words(running)}: look at LD_LIBRARY_PATH and LD_PRELOAD, or build it again"
        )
    return ""


#: What may follow the text of a library's version.
_ENDS = " \n\0"


def _first_words(library: str) -> str:
    return library.split(",")[0].split("\n")[0].strip(_ENDS)


class Transport(NamedTuple):
    """What the messages of a communicator go through.

    Attributes:
        device: the engine's, None without one; all ranks have one, or none has.
        slot: bytes of the smallest slot of all nodes, 0 where no two ranks share memory.
        reads: whether all ranks that share memory also read from that of their senders.
    """

    device: Any = None
    slot: int = 0
    reads: bool = False


def _warn(message: str) -> None:
    caller.warn_once(message, TransportWarning, MPI.COMM_WORLD.Get_rank())


def may_share(nodes: Sequence[int], transport: str) -> bool:
    """Whether ranks on these nodes share memory, as far as this rank knows by itself."""
    one_node = 1 < len(nodes) <= _RANKS and max(nodes) == 0
    return one_node and transport != "mpi" and not engine_problem()


def connect(private: MPI.Intracomm, transport: str) -> Transport:
    """Set up what messages go through.  Collective over ``private``."""
    problem = engine_problem()
    everywhere = combined(private, not problem, MPI.LAND)
    if problem:
        _warn(f"the compiled engine does not serve: {problem}; Python runs the algorithms instead")
    if not everywhere:
        return Transport()
    with node_of(private) as node:
        return _connect(private, node, transport)


@contextmanager
def node_of(private: MPI.Intracomm) -> Iterator[MPI.Intracomm]:
    """A communicator of the ranks of this node, in the ``with`` block.  Collective."""
    node = MPI.Intracomm(private.Split_type(MPI.COMM_TYPE_SHARED, private.Get_rank()))
    try:
        with forming(node):
            yield node
    finally:
        node.Free()


def _connect(private: MPI.Intracomm, node: MPI.Intracomm, transport: str) -> Transport:
    ranks = node.allgather((private.Get_rank(), os.getpid(), processors.cores()))
    memory, problem = None, ""
    shape = geometry(len(ranks))
    if transport != "mpi" and 1 < len(ranks) <= _RANKS:
        memory, problem = memory_of(node, space(len(ranks), shape))
    shared = memory is not None
    reads = shared and transport == "auto" and _engine_reads(node, [pid for _, pid, _ in ranks])
    # Cutting messages is for all ranks alike.
    slots = combined(private, shape.slot if shared else 1 << 62, MPI.MIN)
    slots = 0 if slots == 1 << 62 else slots
    all_read = bool(combined(private, reads or not shared, MPI.LAND)) and slots > 0
    if problem and node.Get_rank() == 0:
        _warn(f"shared memory does not serve: {problem}; MPI's messages are used instead")
    locals = [-1] * private.Get_size()
    for number, (rank, _, _) in enumerate(ranks):
        locals[rank] = number if shared else -1
    crowded = len(ranks) > len({core for _, _, own in ranks for core in own})
    return Transport(
        Device(
            locals,
            node.Get_rank(),
            memory,
            shape,
            [pid for _, pid, _ in ranks] if reads else [],
            REMOTE,
            TOGETHER,
            _IMPATIENT if crowded else _PATIENT,
            private,
        ),
        slots,
        all_read,
    )


def memory_of(node: MPI.Intracomm, length: int) -> tuple[np.ndarray | None, str]:
    """Zeros that all ranks of the node map, None on all of them if one cannot; and why."""
    proof = os.urandom(_PROOF)
    descriptor, problem, place = -1, "", None
    if node.Get_rank() == 0:
        try:
            descriptor = os.memfd_create("mpicoll", os.MFD_CLOEXEC)
            os.truncate(descriptor, length + _PROOF)
            place = os.getpid(), descriptor, proof
        except (AttributeError, OSError, OverflowError) as error:
            problem = f"no memory can be made for it ({error})"
    place = node.bcast(place)
    memory = None
    if place is not None:
        pid, number, proof = place
        try:
            if node.Get_rank() == 0:
                memory = _mapped(descriptor, length + _PROOF)
                memory[length:] = np.frombuffer(proof, np.uint8)
        except (OSError, ValueError, OverflowError) as error:
            memory, problem = None, f"it cannot be mapped ({error})"
        node.Barrier()
        if node.Get_rank() != 0:
            try:
                descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
                memory = _mapped(descriptor, length + _PROOF)
                if memory[length:].tobytes() != proof:
                    memory, problem = None, "rank 0 of the node has other memory (a container?)"
            except (OSError, ValueError, OverflowError) as error:
                memory, problem = None, f"it cannot be opened ({error})"
    failure = agreed(node, problem)
    if descriptor >= 0:
        os.close(descriptor)
    return (None, failure.text) if failure else (memory, "")


def _mapped(descriptor: int, length: int) -> np.ndarray:
    """A file's memory, until the array and its views are gone.

    Python's own mmap would keep a descriptor open for each of them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, _MMAP
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, length, access, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * length).from_address(address)
    mapped = ctypes.c_void_p(address), ctypes.c_size_t(length)
    weakref.finalize(memory, libc.munmap, *mapped).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


#: Arguments of the system's mmap.
_MMAP = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)


def _engine_reads(node: MPI.Intracomm, processes: list[int]) -> bool:
    """Whether every rank of the node can read the memory of its neighbours."""
    token = np.frombuffer(os.urandom(_PROOF), np.uint8)
    every = node.allgather((token.ctypes.data, token.tobytes()))
    peer = (node.Get_rank() + 1) % node.Get_size()
    found = np.zeros(_PROOF, np.uint8)
    address, content = every[peer]
    read = read_memory(processes[peer], address, found) and found.tobytes() == content
    return bool(combined(node, read, MPI.LAND))  # tokens live until all have read
