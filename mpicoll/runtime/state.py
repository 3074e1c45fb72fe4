"""What mpicoll keeps for one communicator handle, and what the handle's end does to it.

It is an MPI attribute of the handle: all objects on one handle find the same, and freeing the
handle, by whichever object, frees it.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from mpi4py import MPI

from mpicoll import tuning
from mpicoll.base import caller
from mpicoll.base.consensus import Problem, attempt
from mpicoll.cuda import driver, group
from mpicoll.engine import progress, transport
from mpicoll.engine.lanes import Lanes
from mpicoll.engine.windows import Windows
from mpicoll.runtime import trace
from mpicoll.runtime.fast_path import FastCalls
from mpicoll.runtime.guard import Guard
from mpicoll.runtime.plans import Plans
from mpicoll.runtime.settings import Settings, read
from mpicoll.runtime.unavailable import Unavailable
from mpicoll.runtime.watch import Watch

_T = TypeVar("_T")


@dataclass(frozen=True)
class Stats:
    """What ran on a communicator, on this rank.

    Attributes:
        calls: number of calls by (collective, algorithm).
        fallbacks: those of them that the MPI library served only because mpicoll could not, by
            (collective, reason).
    """

    calls: dict[tuple[str, str], int]
    fallbacks: dict[tuple[str, str], int]


class State:
    """What mpicoll keeps for one communicator handle.

    Attributes:
        private: carries the collectives' messages.
        settings: equal on all ranks.
        nodes: a number for each rank that is the same for the ranks of one node; equal on all.
        calls, fallbacks: see :class:`Stats`; without the calls that went the fast path.
        watch: the time limit of its calls, if there is one.
        tracer: writes down what its calls do, if that is wanted.
        lanes: keep collectives under way together apart.
        fast_path: the calls that go the engine's fast path.
        guard: lets calls begin, waits for them, and is told of failures.
        plans: run the schedules.
        gpus: how arrays in device memory travel; None where that is not agreed.
        windows: arrays of its ranks that others read where they lie.
        made: what the first call that needs it has made, see :meth:`once`.
        hints, table: what the communicator prefers; what chooses where the caller names no
            algorithm.  Equal on all ranks.
        restarted: the MPI library's collectives that run on communicators of their own, until
            complete.
    """

    def __init__(
        self, private: MPI.Intracomm, settings: Settings, hints: tuning.Table | None = None
    ) -> None:
        self.private, self.settings = private, settings
        self.size, self.rank = private.Get_size(), private.Get_rank()
        self.nodes = _nodes(private)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()  # all threads that make progress count
        self.lanes = Lanes(private)
        self.watch = Watch(private, settings.timeout) if settings.timeout else None
        self.tracer = _tracer(private, settings.trace) if settings.trace else None
        connected = transport.connect(private, settings.transport)
        near = connected.device is not None and connected.device.is_near()
        # What all ranks say: no other node; that there may be arrays in device memory.
        flags = private.allreduce(near | driver.is_wanted() << 1, MPI.BAND)
        self._near = bool(flags & 1)
        self.gpus = group.connect(private, settings.gpu, settings.timeout) if flags & 2 else None
        if self.tracer is not None:  # what Python runs can be traced; all else is as without
            connected = connected._replace(device=None)
        self.windows = Windows(private, connected.device)
        self.made: dict[type, Any] = {}
        self.fast_path = FastCalls(self.nodes)
        self.guard = Guard(private, settings.check, self.watch, self.fast_path.close)
        self.plans = Plans(self.lanes, connected, self.guard, self.fast_path.forget)
        if connected.device is not None and not (settings.check or self.watch):
            peers = None if self.gpus is None else self.gpus.peers
            self.fast_path.open(private, self.plans, self.lanes, self.guard, peers)
        self.hint(hints or {})
        if settings.progress:
            progress.start()
        self.restarted: set[object] = set()
        _OPEN[self] = None

    @property
    def under_way(self) -> list[progress.Operation]:
        """Non-blocking collectives and started plans, until complete."""
        return [operation for operation in progress.under_way if operation.owner is self]

    def hint(self, hints: tuning.Table) -> None:
        """Prefer what the communicator's hints ask for; the same on all ranks."""
        self.hints = hints
        self.table = tuning.for_layout(
            tuning.combined(self.settings.table, hints), self._near, tuning.is_grouped(self.nodes)
        )
        self.fast_path.forget()

    def once(self, kind: type[_T], make: Callable[[], _T | Unavailable]) -> _T | Unavailable:
        """What the first call that needs something of a kind has made of it."""
        if kind not in self.made:
            self.made[kind] = make()
        found: _T | Unavailable = self.made[kind]
        return found

    def count(self, collective: str, algorithm: str) -> None:
        """A call has run."""
        with self._lock:
            self.calls[collective, algorithm] += 1

    def stats(self) -> Stats:
        """What has run so far."""
        calls = self.calls + Counter(self.fast_path.calls())
        return Stats(dict(calls), dict(self.fallbacks))

    def revoke(self) -> None:
        """The handle has been revoked by this rank: what its collectives go by is, too."""
        for comm in self.lanes.comms:
            comm.Revoke()
        self.guard.fail(MPI.Exception(MPI.ERR_REVOKED))

    def close(self) -> None:
        """Free everything, unless messages may still be under way."""
        if self.guard.closed:
            return
        self.guard.closed = True
        self.fast_path.close()
        _OPEN.pop(self, None)
        self.plans.clear()
        if self.guard.failure is None and not (self.under_way or self.restarted):
            self.plans.device = None
            self.made.clear()
            self.windows.close()
            if self.gpus is not None:
                self.gpus.close()
            self.fast_path.forget()
            for comm in reversed(self.lanes.comms):
                comm.Free()
        else:
            _LOST.append(self)  # MPI may still use the memory of what was under way


#: All that is not closed, oldest first.
_OPEN: dict[State, None] = {}
#: Numbers of the communicators whose rank 0 is this process.
_NAMES = itertools.count()
#: What was closed with messages under way.
_LOST: list[State] = []


def _freed(comm: MPI.Comm, keyval: int, state: State) -> None:
    state.close()


def _finalizing(comm: MPI.Comm, keyval: int, value: object) -> None:
    progress.stop()
    for state in reversed([*_OPEN]):
        state.close()


@cache
def _keyval() -> int:
    """The attribute that carries :class:`State`.

    MPI_Finalize deletes the attributes of COMM_SELF first, while everything can still be freed.
    """
    MPI.COMM_SELF.Set_attr(MPI.Intracomm.Create_keyval(delete_fn=_finalizing), _OPEN)
    return MPI.Intracomm.Create_keyval(delete_fn=_freed)


def find(comm: MPI.Intracomm) -> State | None:
    """What belongs to the communicator's handle, if it is there.  Local."""
    found: Any = comm.Get_attr(_keyval())
    return found


def attach(
    comm: MPI.Intracomm, settings: Settings | None = None, hints: tuning.Table | None = None
) -> State:
    """What belongs to the communicator's handle, made now if it is not there yet.  Collective.

    Args:
        comm: any intracommunicator.
        settings: those of the communicator that this one comes from; else rank 0 reads its
            environment.
        hints: those that it is made with.

    Raises:
        ValueError: on all ranks, if rank 0's environment has a setting that is not understood.
        RuntimeError: on all ranks, if it asks for a thread that MPI does not allow.
    """
    caller.check()
    state = find(comm)
    if state is None:
        with progress.meanwhile():
            state = _made(comm, settings, hints)
    return state


def _made(comm: MPI.Intracomm, settings: Settings | None, hints: tuning.Table | None) -> State:
    # Unlike MPI_Comm_dup this copies no attributes, hints or topology of the user's.
    private = MPI.Intracomm(MPI.Intracomm.Split(comm, 0, comm.Get_rank()))
    private.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        state = State(private, settings or read(private), hints)
    except BaseException:
        private.Free()
        raise
    comm.Set_attr(_keyval(), state)
    return state


def _nodes(private: MPI.Intracomm) -> tuple[int, ...]:
    """The number of each rank's node, in the order of their first ranks.  Collective."""
    with transport.node_of(private) as node:
        first = private.allgather(node.bcast(private.Get_rank()))
    numbers = {rank: number for number, rank in enumerate(dict.fromkeys(first))}
    return tuple(numbers[rank] for rank in first)


def _tracer(private: MPI.Intracomm, path: str) -> trace.Tracer:
    """The trace of a communicator, under a name that its rank 0 gives it.  Collective.

    Raises:
        ValueError: on all ranks, if one cannot write its file.
    """
    world = MPI.COMM_WORLD
    place = world.Get_rank(), world.Get_size()
    name = private.bcast(f"{place[0]}.{next(_NAMES)}")
    made = attempt(private, lambda: trace.Tracer(path, place, name, private.Get_rank()), OSError)
    if isinstance(made, Problem):
        raise ValueError(f"MPICOLL_TRACE={path!r}: {made.text}; name files that can be written")
    return made
