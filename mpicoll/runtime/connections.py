"""What the messages of communicators go through, made by the first call that needs it.

A communicator has its own while it lives.  Then it goes to the next one of the same processes, so
that programs that make many communicators pay for a few: the ranks agree on one that all of them
have to spare.  As many are kept as :data:`IDLE` says.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll.base.consensus import combined
from mpicoll.base.forming import forming
from mpicoll.base.later import Later
from mpicoll.cuda import driver
from mpicoll.engine import transport
from mpicoll.engine.lanes import Lanes
from mpicoll.engine.windows import Windows
from mpicoll.runtime.places import world_ranks
from mpicoll.runtime.plans import Plans
from mpicoll.runtime.settings import Settings

if TYPE_CHECKING:
    from mpicoll.cuda import group
else:
    group = Later("mpicoll.cuda.group")

#: Connections that a process keeps for communicators to come: for the same processes, and in all.
ALIKE, IDLE = 4, 64
#: Numbers of connections of the same processes.
_NUMBERS = 63


class Key(NamedTuple):
    """What connections have in common that can take each other's place.

    Attributes:
        processes: by their ranks in MPI.COMM_WORLD.
        transport: one of :data:`mpicoll.engine.transport.TRANSPORTS`.
    """

    processes: tuple[int, ...]
    transport: str


class Connection:
    """What the messages of one communicator at a time go through.

    Args:
        private: carries the messages that MPI carries, and no others.  Collective over it.
        settings: of the communicator.

    Attributes:
        lanes: keep collectives under way together apart.
        plans: run the schedules.
        windows: arrays of its ranks that others read where they lie.
        gpus: how arrays in device memory travel; None where that is not agreed.
        near: whether each rank shares memory with all others, of which there are some.
        alike, number: where it waits for the next communicator, if it may, and what by.
        order: of their making, in this process.
    """

    def __init__(self, private: MPI.Intracomm, settings: Settings) -> None:
        self.private, self.lanes = private, Lanes(private)
        connected = transport.connect(private, settings.transport)
        near = connected.device is not None and connected.device.is_near()
        # What all ranks say: no other node; that there may be arrays in device memory.
        flags = combined(private, near | driver.is_wanted() << 1, MPI.BAND)
        self.near = bool(flags & 1)
        self.gpus: group.Group | None = None
        if flags & 2:
            self.gpus = group.connect(private, settings.gpu, settings.timeout)
        if settings.trace:  # what Python runs can be traced; all else is as without
            connected = connected._replace(device=None)
        self.windows = Windows(private, connected.device)
        self.plans = Plans(self.lanes, connected)
        self.alike: Alike | None = None
        self.number = 0
        self.order = next(_ORDER)

    @property
    def may_serve_again(self) -> bool:
        """Whether it is as good as new for another communicator."""
        return self.gpus is None and not (self.windows.used or self.lanes.have_topology)

    def free(self) -> None:
        """Free it; nothing is under way.  Collective."""
        self.plans.clear()
        self.windows.close()
        if self.gpus is not None:
            self.gpus.close()
        for comm in reversed(self.lanes.comms):
            comm.Free()


_ORDER = itertools.count()


class Alike:
    """The connections of the same processes, by the same transport.

    Attributes:
        idle: those that no communicator has, by number.
        numbers: those that this process has given to connections.
        lent: another thread is about to take one.
        over: nothing waits here any more.
    """

    def __init__(self) -> None:
        self.idle: dict[int, Connection] = {}
        self.numbers: set[int] = set()
        self.lent = self.over = False


_pool: dict[Key, Alike] = {}
_lock = threading.Lock()


def have_met(comm: MPI.Intracomm, settings: Settings) -> bool:
    """Whether the processes of a communicator have had a connection.  Equal on all ranks."""
    processes = world_ranks(comm)
    return processes is not None and Key(processes, settings.transport) in _pool


def take(comm: MPI.Intracomm, settings: Settings, wait: Callable[..., object]) -> Connection:
    """A connection for a communicator.  Collective over it.

    ``wait``: for a request; it gets its buffers, too, and moves on what is under way: the other
    ranks may have to complete something before they come here.

    Raises:
        MPI.Exception: what MPI reports.
    """
    processes = world_ranks(comm)
    if processes is None or settings.is_watched:
        return _made(comm, settings)
    key = Key(processes, settings.transport)
    with _lock:
        alike = _pool.setdefault(key, Alike())
        here = not alike.lent  # else two threads could take the same
        alike.lent = True
    try:
        # What no process has taken, by number: of connections, and of numbers.
        # Those that wait serve no arrays in device memory.
        may = here and not driver.is_usable()
        idle = sum(1 << number for number in [*alike.idle]) if may else 0
        spare = ~sum(1 << number for number in alike.numbers) & ((1 << _NUMBERS) - 1) if here else 0
        own, common = np.array([idle, spare], np.int64), np.zeros(2, np.int64)
        wait(MPI.Intracomm.Iallreduce(comm, own, common, MPI.BAND), own, common)
        idle, spare = map(int, common)
        if idle:
            return alike.idle.pop(_lowest(idle))
        connection = _made(comm, settings)
        if spare:
            connection.alike, connection.number = alike, _lowest(spare)
            alike.numbers.add(connection.number)
        return connection
    finally:
        if here:
            alike.lent = False


def give_back(connection: Connection) -> None:
    """The communicator has been freed, and nothing is under way.  Collective, as that is."""
    alike = connection.alike
    if alike is not None:
        every = sum(len(each.idle) for each in _pool.values())
        room = not alike.over and len(alike.idle) < ALIKE and every < IDLE
        if room and connection.may_serve_again:
            alike.idle[connection.number] = connection
            return
        alike.numbers.discard(connection.number)
    connection.free()


def drain() -> None:
    """Free all that no communicator has, the youngest first.  Collective, in MPI_Finalize."""
    idle = [connection for alike in _pool.values() for connection in alike.idle.values()]
    for alike in _pool.values():
        alike.over = True
    _pool.clear()
    for connection in sorted(idle, key=lambda connection: connection.order, reverse=True):
        connection.free()


def _lowest(numbers: int) -> int:
    return (numbers & -numbers).bit_length() - 1


def _made(comm: MPI.Intracomm, settings: Settings) -> Connection:
    # Unlike MPI_Comm_dup this copies no attributes, hints or topology of the user's.
    with forming(comm):
        private = MPI.Intracomm(MPI.Intracomm.Split(comm, 0, comm.Get_rank()))
    private.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        with forming(private):
            return Connection(private, settings)
    except BaseException:
        private.Free()
        raise
