"""What mpicoll keeps for one communicator handle, and what the handle's end does to it.

It is an MPI attribute of the handle: all objects on one handle find the same, and freeing the
handle, by whichever object, frees it.

Until a call needs more, it says no more than what the communicator has from the one it comes from.
The ranks meet (:meth:`State.connect`) where they may wait for each other: where a communicator of
processes that have not met is wrapped; else in the first blocking or persistent call that names an
algorithm, or the eleventh blocking one.  A non-blocking call must not wait: before, it is the MPI
library's.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mpi4py import MPI

from mpicoll import tuning
from mpicoll.base import caller
from mpicoll.engine import progress, transport
from mpicoll.engine.lanes import Lanes
from mpicoll.engine.windows import Windows
from mpicoll.runtime import connections, handles, places
from mpicoll.runtime.alarm import Alarm
from mpicoll.runtime.connections import Connection
from mpicoll.runtime.family import Family
from mpicoll.runtime.fast_path import FastCalls
from mpicoll.runtime.first_calls import FirstCalls
from mpicoll.runtime.guard import Guard
from mpicoll.runtime.plans import Plans
from mpicoll.runtime.schedules import Loaded, placed
from mpicoll.runtime.settings import Settings, read
from mpicoll.runtime.unavailable import Unavailable
from mpicoll.runtime.watch import Watch

if TYPE_CHECKING:
    from mpicoll.cuda import group
    from mpicoll.runtime import trace

_T = TypeVar("_T")


class Stats(NamedTuple):
    """What ran on a communicator, on this rank.

    Attributes:
        calls: number of calls by (collective, algorithm).
        fallbacks: number of those that the MPI library ran because mpicoll could not, by
            (collective, reason).
    """

    calls: dict[tuple[str, str], int]
    fallbacks: dict[tuple[str, str], int]


class State:
    """What mpicoll keeps for one communicator handle.

    It costs next to nothing until :meth:`connect`.

    Args:
        comm: the communicator.
        first_calls: its calls before its ranks meet, and whose it is.

    Attributes:
        comm: its handle.
        connection: what its messages go through, once a call has needed that.
        connected: whether there is one.
        first_calls: its calls before.
        family, hints: what it has in common with those that it comes from; what it prefers.  Equal
            on all ranks.
        watch: the time limit of its calls, if there is one.
        alarm: what tells of the deaths of its ranks, if that is asked for.
        tracer: writes down what its calls do, if that is wanted.
        closed: the handle has been freed.
    """

    connection: Connection | None = None
    connected = False
    watch: Watch | None = None
    alarm: Alarm | None = None
    tracer: trace.Tracer | None = None
    closed = False
    _fast: FastCalls | None = None
    _guard: Guard | None = None
    _table: tuning.Table | None = None
    _nodes: tuple[int, ...] | None = None

    def __init__(self, comm: MPI.Intracomm, first_calls: FirstCalls) -> None:
        self.comm, self.first_calls = MPI.Intracomm(comm), first_calls
        self.family, self.hints = first_calls.family, first_calls.hints or {}
        self.size, self.rank = comm.Get_size(), comm.Get_rank()

    @property
    def settings(self) -> Settings:
        """Equal on all ranks."""
        return self.family.settings

    @cached_property
    def calls(self) -> Counter[tuple[str, str]]:
        """See :class:`Stats`; without those of the fast paths."""
        return Counter()

    @cached_property
    def counters(self) -> dict[tuple[str, str], transport.CallCount]:
        """What counts those of them that the engine starts, see :meth:`counter`."""
        return {}

    @cached_property
    def fallbacks(self) -> Counter[tuple[str, str]]:
        """See :class:`Stats`."""
        return Counter()

    @cached_property
    def made(self) -> dict[type, Any]:
        """What the first call that needs it has made, see :meth:`once`."""
        return {}

    @cached_property
    def schedules(self) -> Loaded:
        """The schedule files that it has loaded."""
        return Loaded(self.comm, self.nodes)

    @cached_property
    def restarted(self) -> set[object]:
        """The MPI library's collectives that run on communicators of their own, until complete."""
        return set()

    @cached_property
    def started(self) -> dict[int, object]:
        """The MPI library's collectives that are looked after, by id, until complete."""
        return {}

    @property
    def waits(self) -> bool:
        """Whether nothing may block within the MPI library, where no limit and no death is seen."""
        return self.watch is not None or self.alarm is not None

    @property
    def guard(self) -> Guard:
        """Lets calls begin, waits for them, and is told of failures."""
        if self._guard is None:
            self._guard = Guard(self.comm, self.settings.check, lambda: self.fast_path.close())
            self._guard.closed = self.closed
        return self._guard

    @property
    def fast_path(self) -> Any:
        """The calls that go a fast path: FastCalls once it is connected, FirstCalls before."""
        return self._fast or self.first_calls

    @property
    def nodes(self) -> tuple[int, ...]:
        """A number for each rank that is the same for the ranks of one node; equal on all."""
        if self._nodes is None:
            assert self.family.places is not None
            self._nodes = places.numbers(self.comm, self.family.places)
        return self._nodes

    @property
    def table(self) -> tuning.Table:
        """What chooses where the caller names no algorithm.  Equal on all ranks once connected."""
        if self._table is None:
            if self.connection is None:
                near = transport.may_share(self.nodes, self.settings.transport)
            else:
                near = self.connection.near
            rules = self.family.table(self.hints, near, tuning.is_grouped(self.nodes))
            self._table = placed(rules, self.nodes, self.rank)
        return self._table

    # --- what messages go through ---

    @property
    def _there(self) -> Connection:
        assert self.connection is not None, "a call has not connected its communicator"
        return self.connection

    @property
    def private(self) -> MPI.Intracomm:
        """Carries the collectives' messages."""
        return self._there.private

    @property
    def lanes(self) -> Lanes:
        """Keep collectives under way together apart."""
        return self._there.lanes

    @property
    def plans(self) -> Plans:
        """Run the schedules."""
        return self._there.plans

    @property
    def windows(self) -> Windows:
        """Arrays of its ranks that others read where they lie."""
        assert self._there.windows is not None
        return self._there.windows

    @property
    def gpus(self) -> group.Group | None:
        """How arrays in device memory travel; None where that is not agreed."""
        return None if self.connection is None else self.connection.gpus

    def connect(self) -> None:
        """Let its ranks meet, if they have not.  Collective; waits for all of them."""
        if self.connected:
            return
        with progress.meanwhile():
            self.connection = connections.take(self.comm, self.settings, self.guard.wait)
            self._look_after(self.connection)
        connection, checked = self.connection, self.settings.check or self.watch
        fast = self._fast = FastCalls(self.nodes)
        self.guard.connect(connection.private, self.watch)
        if self.alarm is not None:
            self.guard.survive(self.alarm)
        connection.plans.serve(self.guard, fast.forget)
        if connection.plans.device is not None and not checked:
            peers = None if self.gpus is None else self.gpus.peers
            private, plans, lanes = connection.private, connection.plans, connection.lanes
            fast.open(private, plans, lanes, self.guard, peers)
            if self.alarm is not None:
                fast.survive()
        self.connected, self._table = True, None
        if self.settings.progress:
            progress.start()
        _OPEN[self] = None
        _is_told_of_the_end()

    def _look_after(self, connection: Connection) -> None:
        """Make what is told of every call.  Collective.

        Raises:
            ValueError: on all ranks, if one cannot write its trace.
        """
        private, settings = connection.private, self.settings
        try:
            self.watch = Watch(private, settings.timeout) if settings.timeout else None
            if settings.trace:
                from mpicoll.runtime import trace  # seldom needed

                self.tracer = trace.tracer(private, settings.trace)
            self.alarm = Alarm(private) if settings.survive else None
        except BaseException:
            self.connection = None
            connections.give_back(connection)
            raise

    @property
    def under_way(self) -> list[progress.Operation]:
        """Non-blocking collectives and started plans, until complete."""
        return [operation for operation in progress.under_way if operation.owner is self]

    def hint(self, hints: tuning.Table) -> None:
        """Prefer what the communicator's hints ask for; the same on all ranks."""
        self.hints = self.first_calls.hints = hints
        self._table = None
        if hints:
            self.first_calls.left = 0
        self.fast_path.forget()

    def load(self, path: str) -> str:
        """Load a schedule file; the algorithm's name.  Collective; connects for what runs it."""
        self.connect()
        with progress.meanwhile():
            name = self.schedules.load(path)
        self.fast_path.forget()
        return name

    def once(self, kind: type[_T], make: Callable[[], _T | Unavailable]) -> _T | Unavailable:
        """What the first call that needs something of a kind has made of it."""
        if kind not in self.made:
            self.made[kind] = make()
        found: _T | Unavailable = self.made[kind]
        return found

    def count(self, collective: str, algorithm: str) -> None:
        """A call has run."""
        with _COUNTING:
            self.calls[collective, algorithm] += 1

    def counter(self, collective: str, algorithm: str) -> transport.CallCount:
        """What counts calls that the engine starts."""
        name = collective, algorithm
        return self.counters.setdefault(name, transport.CallCount(name))

    def stats(self) -> Stats:
        """What has run so far."""
        calls = self.calls + Counter(self.first_calls.calls())
        calls += Counter({name: counter.calls for name, counter in self.counters.items()})
        if self._fast is not None:
            calls += Counter(self._fast.calls())
        return Stats(dict(calls), dict(self.fallbacks))

    def revoke(self) -> None:
        """The handle has been revoked by this rank: what its collectives go by is, too."""
        for comm in () if self.connection is None else self.lanes.comms:
            comm.Revoke()
        self.guard.fail(MPI.Exception(MPI.ERR_REVOKED))

    def close(self) -> None:
        """Free everything, unless messages may still be under way."""
        if self.closed:
            return
        self.closed = True
        self.first_calls.close()
        connection = self.connection
        if connection is None:
            if self._guard is not None:
                self._guard.closed = True
            return
        self.guard.closed = True
        self.fast_path.close()
        _OPEN.pop(self, None)
        if self.guard.failure is None and not (self.under_way or self.restarted or self.started):
            self.made.clear()
            if self.alarm is not None:
                self.alarm.free()
            self.fast_path.forget()
            self.connection = self._fast = None
            connections.give_back(connection)
        else:
            _LOST.append(self)  # MPI may still use the memory of what was under way


#: All threads that make progress count.
_COUNTING = threading.Lock()
#: All that is connected and not closed, oldest first.
_OPEN: dict[State, None] = {}
#: What was closed with messages under way.
_LOST: list[State] = []


def _finalizing() -> None:
    progress.stop()
    for state in reversed([*_OPEN]):
        state.close()
    connections.drain()


@cache
def _is_told_of_the_end() -> bool:
    handles.before_the_end(_finalizing)
    return True


def find(comm: MPI.Intracomm) -> State | None:
    """What belongs to the communicator's handle, if it is there.  Local."""
    found: State | None = handles.find(comm)
    return found


def attach(comm: MPI.Intracomm, settings: Settings | None = None) -> State:
    """What belongs to the communicator's handle, made now if it is not there yet.  Collective.

    Args:
        comm: any intracommunicator.
        settings: equal on all ranks; None: rank 0 reads its environment.

    Raises:
        ValueError: on all ranks, if rank 0's environment has a setting that is not understood.
        RuntimeError: on all ranks, if it asks for a thread that MPI does not allow.
    """
    caller.check()
    state = find(comm)
    if state is not None:
        return state
    with progress.meanwhile():
        plain = MPI.Intracomm(comm)
        family = Family(settings or read(plain), places.places(plain))
        state = _attached(plain, FirstCalls(family, left=0))
        if family.settings.devices or not connections.have_met(plain, family.settings):
            state.connect()
    return state


def inherit(comm: MPI.Intracomm, first_calls: FirstCalls) -> State:
    """The same for a communicator that comes from another one.

    Local, unless a process is not in MPI.COMM_WORLD, or something is to be known of every call.
    """
    if not first_calls.family.is_plain or first_calls.hints:
        first_calls.left = 0
    return _attached(comm, first_calls)


def _attached(comm: MPI.Intracomm, first_calls: FirstCalls) -> State:
    state = State(comm, first_calls)
    if state.family.places is None:
        state._nodes = places.ask(comm)
    if state.settings.is_watched:
        state.connect()
    handles.attach(comm, state)
    return state
