"""Collectives that are passed through to the MPI library: there is no algorithm to choose.

They are the neighbourhood collectives of topologies, and all collectives of intercommunicators.
Each call is counted, as the library's own and as a fallback.  ``MPICOLL_FALLBACK`` does not hold
for them: nobody has asked for an algorithm, and there is nothing to warn of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from mpi4py import MPI

from mpicoll.base.libraries import REDUCING_ON_DEVICE
from mpicoll.comm.dispatch import Dispatch
from mpicoll.comm.messages import Messages
from mpicoll.comm.refusing import refuse, refused
from mpicoll.cuda.arrays import is_device
from mpicoll.engine import progress
from mpicoll.requests.library import PersistentFallback, bound, started
from mpicoll.runtime.calls import Prepared
from mpicoll.runtime.observe import observing
from mpicoll.runtime.state import State, Stats
from mpicoll.schedule import methods
from mpicoll.schedule.collectives import COLLECTIVES, Collective, Place
from mpicoll.tuning import NATIVE, Choice

#: The neighbourhood collectives, as what they are to the time limit, trace and counters.
NEIGHBOURHOOD = {
    name.lower(): COLLECTIVES["barrier"]._replace(name=name.lower(), method=name, summary="")
    for name in methods.NEIGHBOURHOOD
}
_REASON = f"%s collectives are passed through to the MPI library, so {NATIVE} serves"

_C = TypeVar("_C", bound="Intercomm")


def _forms(method: str) -> tuple[str, str, str]:
    """The methods of a collective: blocking, non-blocking and persistent."""
    return method, f"I{method.lower()}", f"{method}_init"


class Neighbourhood(Dispatch):
    """The neighbourhood collectives of a topology: the MPI library's own, counted."""

    def _prepared(self, definition: Collective) -> Prepared:
        state = self._ready()
        state.fallbacks[definition.name, _REASON % "neighbourhood"] += 1
        place = Place(state.rank, state.size, 0, 1)
        return Prepared(definition, place, Choice(NATIVE), None)

    def _now(self, definition: Collective, *arguments: Any, **more: Any) -> None:
        """Run one."""
        prepared, state = self._prepared(definition), self._ready()
        blocking, non_blocking, _ = (
            getattr(MPI.Topocomm, name) for name in _forms(definition.method)
        )
        state.guard.enter(prepared)
        with observing(state, prepared):
            if state.waits:
                state.guard.wait(non_blocking(self, *arguments, **more), arguments, more)
            else:
                with progress.meanwhile():
                    blocking(self, *arguments, **more)
        state.count(definition.name, NATIVE)

    def _start(self, definition: Collective, *arguments: Any, **more: Any) -> Any:
        """Start one; returns a request."""
        prepared, state = self._prepared(definition), self._ready()
        ticket, comparison = state.guard.start(prepared)
        request = getattr(MPI.Topocomm, _forms(definition.method)[1])(self, *arguments, **more)
        state.count(definition.name, NATIVE)
        return started(request, state, ticket, comparison, (arguments, more))

    def _bind(self, definition: Collective, *arguments: Any, **more: Any) -> Any:
        """Bind one to its buffers; returns a persistent request."""
        prepared, state = self._prepared(definition), self._ready()
        state.guard.enter(prepared)
        try:
            with progress.meanwhile():
                request = self._native_prequest(definition, *arguments, **more)
        except NotImplementedError:  # mpi4py's, for a library before MPI 4.0
            request = None
        if request is None:
            return self._restarted(state, prepared, *arguments, **more)
        return bound(request, state, prepared, (arguments, more), observed=False)

    def _native_prequest(self, definition: Collective, *arguments: Any, **more: Any) -> Any:
        """A persistent request of the MPI library's own."""
        return getattr(MPI.Topocomm, _forms(definition.method)[2])(self, *arguments, **more)

    def _restarted(
        self, state: State, prepared: Prepared, sendbuf: Any, recvbuf: Any, info: Any = None
    ) -> PersistentFallback:
        """What stands for one."""
        start = getattr(MPI.Topocomm, _forms(prepared.definition.method)[1])
        state.connect()
        pool = state.lanes.with_topology(self)
        return PersistentFallback(
            state, prepared, self, lambda own: start(own, sendbuf, recvbuf), pool
        )


def _neighbours(name: str, definition: Collective, how: Callable[..., Any]) -> Callable[..., Any]:
    """A method with mpi4py's signature and docstring."""

    @wraps(getattr(MPI.Topocomm, name))
    def call(self: Neighbourhood, *arguments: Any, **more: Any) -> Any:
        refuse(name, *arguments, *more.values())
        return how(self, definition, *arguments, **more)

    return call


for _definition in NEIGHBOURHOOD.values():
    _ways = (Neighbourhood._now, Neighbourhood._start, Neighbourhood._bind)
    for _name, _how in zip(_forms(_definition.method), _ways, strict=True):
        setattr(Neighbourhood, _name, _neighbours(_name, _definition, _how))


class Intercomm(Messages, MPI.Intercomm):
    """An intercommunicator whose collectives are the MPI library's own, counted.

    Args:
        comm: an intercommunicator.  Local: nothing is sent.

    Raises:
        TypeError: not an intercommunicator.

    ``Merge`` and what else makes communicators return mpi4py's.
    """

    def __new__(cls: type[_C], comm: MPI.Intercomm | None = None) -> _C:
        if comm is not None and not isinstance(comm, MPI.Intercomm):
            raise TypeError(f"expected an intercommunicator, not {type(comm).__name__}")
        made = super().__new__(cls, comm)
        made._calls, made._fallbacks = Counter(), Counter()
        return made

    @classmethod
    def fromhandle(cls: type[_C], handle: int) -> _C:
        """The intercommunicator of a handle of the MPI library's.  Raises as the class does."""
        made: Any = super().fromhandle(handle)
        return cls(made)

    _calls: Counter[tuple[str, str]]
    _fallbacks: Counter[tuple[str, str]]

    def stats(self) -> Stats:
        """What was called through this object, on this rank."""
        return Stats(dict(self._calls), dict(self._fallbacks))


def _between_groups(name: str, definition: Collective) -> Callable[..., Any]:
    """A method with mpi4py's signature and docstring."""
    original = getattr(MPI.Intercomm, name)

    @wraps(original)
    def call(self: Intercomm, *arguments: Any, **more: Any) -> Any:
        words, given = f"{name} of an intercommunicator", (*arguments, *more.values())
        refuse(words, *given)
        if definition.reduces and name not in REDUCING_ON_DEVICE and any(map(is_device, given)):
            refused(words)
        self._fallbacks[definition.name, _REASON % "an intercommunicator's"] += 1
        result = original(self, *arguments, **more)
        self._calls[definition.name, NATIVE] += 1
        return result

    return call


for _method in methods.METHODS.values():
    for _name in _forms(_method.name):
        if hasattr(MPI.Intercomm, _name):  # there are no scans
            setattr(Intercomm, _name, _between_groups(_name, _method.definition))
