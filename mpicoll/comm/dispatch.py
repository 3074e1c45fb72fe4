"""One way for every collective of a communicator: parse, check, choose, plan, run.

Checks use this rank's arguments alone.  A call goes by one of mpicoll's algorithms, or to the MPI
library's own collective: because that is the choice, because mpicoll cannot serve what is asked for
(a fallback), or because the call is non-blocking or persistent and names no algorithm.  The latter
must make progress while a program is in any call of MPI, and only the library sees to that, or the
thread of :mod:`mpicoll.engine.progress`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpi4py import MPI

from mpicoll import hooks
from mpicoll.base import caller
from mpicoll.buffers import Unsupported, vectors
from mpicoll.comm import device
from mpicoll.cuda.arrays import is_device
from mpicoll.cuda.group import CUDA_IPC, STAGED
from mpicoll.engine import progress, runner
from mpicoll.errors import FallbackWarning
from mpicoll.ops.exact import EXACT
from mpicoll.requests import Prequest, Request
from mpicoll.requests.device import Staged, StagedPlan
from mpicoll.requests.library import KeptPrequest, LibraryPrequest, Restarted, started
from mpicoll.runtime import staging
from mpicoll.runtime.arguments import asked_for, parse, place_of, summed_exactly
from mpicoll.runtime.calls import METHODS, Call, Prepared
from mpicoll.runtime.observe import observing
from mpicoll.runtime.state import State, attach
from mpicoll.schedule.collectives import Collective
from mpicoll.schedule.parameters import Parameter
from mpicoll.tuning import NATIVE, Choice, placed

__all__ = ["Dispatch", "fall_back"]


class _Asked(NamedTuple):
    """A call as the caller made it."""

    definition: Collective
    sendbuf: Any
    recvbuf: Any
    op: Any
    root: Any
    counts: Sequence[int] | None

    def passed_on(self, call: Call | None) -> _Asked:
        """The same for the MPI library, which takes a parsed call's buffers as mpi4py has them."""
        if call is None:
            return self
        sendbuf, recvbuf = call.messages()
        return self._replace(sendbuf=sendbuf, recvbuf=recvbuf)

    def taken(self) -> list[Any]:
        """The arguments of mpi4py's method."""
        return [self[1 + number] for number in _taken(self.definition)]


def _taken(definition: Collective) -> tuple[int, ...]:
    """Which of send buffer, receive buffer, operator, root and counts mpi4py's method takes."""
    taken = {"barrier": (), "bcast": (1,)}.get(definition.name, (0, 1))
    if definition.method == "Reduce_scatter":
        taken += (4,)
    return (*taken, *((2,) if definition.reduces else ()), *((3,) if definition.rooted else ()))


class _NoShortWay:
    """Where every call goes the long way."""

    def serve(self, *arguments: Any) -> bool:
        """See ``_front.Front``."""
        return False

    serve_vectors = serve


_LONG_WAY_ALONE = _NoShortWay()


class Dispatch(MPI.Intracomm):
    """An intracommunicator that can run collectives by mpicoll's algorithms."""

    _state: State | None = None
    #: The short way for blocking calls, once one has been made.
    _front: Any = _LONG_WAY_ALONE

    def _ready(self) -> State:
        """What belongs to the handle; collective where the handle is used for the first time."""
        if self._state is None:
            self._state = attach(self)
        self._state.check()
        self._front = self._state.front or _LONG_WAY_ALONE
        return self._state

    def _blocking(
        self,
        method: str,
        sendbuf: Any = None,
        recvbuf: Any = None,
        *,
        op: Any = None,
        root: Any = 0,
        counts: Sequence[int] | None = None,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        reproducible: bool = False,
    ) -> None:
        """Run a collective."""
        state = self._ready()
        asked = self._asked(state, method, sendbuf, recvbuf, op, root, counts)
        try:
            prepared = self._decide(state, asked, algorithm, parameters, True, reproducible)
        except Exception as error:
            state.refuse(asked.definition, error)
            raise
        state.enter(prepared)
        with observing(state, prepared) as step:
            self._run(state, asked, prepared, step)

    def _run(
        self, state: State, asked: _Asked, prepared: Prepared, step: runner.Step | None = None
    ) -> None:
        """Run a collective that is decided."""
        if prepared.on_device:
            native = partial(self._native_part, state, asked)
            if device.run(state, prepared, asked[1:5], native, step):
                return
            # With a time limit it is a request that is waited for.
            prepared = device.on_host(state.gpus, prepared, blocking=state.watch is None)
        definition, _, choice, call = prepared
        if call is None or choice.algorithm == NATIVE:
            given = asked[1:]
            self._run_native(state, asked.passed_on(call), call)
            state.count(definition.name, NATIVE)
            if call is not None:
                function = getattr(MPI.Intracomm, definition.method)
                state.pass_on(definition, given, choice, function, _taken(definition))
            return
        call.load()
        try:
            planned = state.run(call.shape(choice), *call.memory(), call.reduction, step)
        except MPI.Exception as error:
            self._report(error)
            raise
        call.write_back()
        state.count(definition.name, choice.algorithm)
        state.learn(call, asked[1:], choice, planned)

    def _run_native(self, state: State, asked: _Asked, call: Call | None) -> None:
        """Run the MPI library's own collective."""
        if call is not None:
            call.load(native=True)
        method = asked.definition.method
        if state.watch is not None:
            # Within the library's blocking call nobody would look at the clock.
            request = self._native(asked, "I" + method.lower())
            state.wait(request, asked)
        else:
            with progress.meanwhile():
                self._native(asked, method)
        if call is not None:
            call.write_back(native=True)

    def _native_part(self, state: State, asked: _Asked, part: Call) -> None:
        """Run the MPI library's own collective for a part of a call."""
        self._run_native(state, asked.passed_on(part), part)

    def _non_blocking(
        self,
        method: str,
        sendbuf: Any = None,
        recvbuf: Any = None,
        *,
        op: Any = None,
        root: Any = 0,
        counts: Sequence[int] | None = None,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
    ) -> Any:
        """Start a collective; returns a request."""
        state = self._ready()
        asked = self._asked(state, method, sendbuf, recvbuf, op, root, counts)
        try:
            prepared = self._decide(state, asked, algorithm, parameters, False)
        except Exception as error:
            state.refuse_start(asked.definition, error)
            raise
        if prepared.choice.algorithm == CUDA_IPC:
            return device.start(state, prepared)
        by_value = prepared.on_device
        prepared = device.on_host(state.gpus, prepared, blocking=False)
        by_value &= not prepared.on_device
        call = prepared.call
        if call is not None and prepared.choice.algorithm != NATIVE:
            return Request.begin(state, prepared, self._report)
        ticket, comparison = state.start(prepared)
        with observing(state, prepared, complete=False):
            if call is not None:
                call.load(native=True)
            asked = asked.passed_on(call)
            request = self._native(asked, "I" + method.lower())
            state.count(asked.definition.name, NATIVE)
        progress.poll()
        made = started(request, state, ticket, comparison, asked)
        if by_value and call is not None:
            return Staged(made, call.arrive, call)
        return made

    def _persistent(
        self,
        method: str,
        sendbuf: Any = None,
        recvbuf: Any = None,
        *,
        op: Any = None,
        root: Any = 0,
        counts: Sequence[int] | None = None,
        info: MPI.Info,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
    ) -> Any:
        """Bind a collective to its buffers; returns a persistent request."""
        state = self._ready()
        asked = self._asked(state, method, sendbuf, recvbuf, op, root, counts)
        try:
            prepared = self._decide(state, asked, algorithm, parameters, False)
        except Exception as error:
            state.refuse(asked.definition, error)
            raise
        state.enter(prepared)
        if prepared.choice.algorithm == CUDA_IPC:
            return device.bind(state, prepared)
        by_value = prepared.on_device
        prepared = device.on_host(state.gpus, prepared, blocking=False)
        by_value &= not prepared.on_device
        call = prepared.call
        if call is not None and prepared.choice.algorithm != NATIVE:
            return Prequest(state, prepared, self._report)
        asked = asked.passed_on(call)
        kept = self._bound(state, method, asked, prepared, info)
        state.count(asked.definition.name, NATIVE)
        if by_value and call is not None:
            return StagedPlan(kept, partial(call.load, native=True), call.arrive, call)
        if prepared.on_device and call is not None:
            leave = partial(device.wait_for_streams, call)
            return StagedPlan(kept, leave, lambda status: None, call)
        return kept

    def _bound(
        self, state: State, method: str, asked: _Asked, prepared: Prepared, info: MPI.Info
    ) -> KeptPrequest | Restarted:
        """A persistent request of the MPI library's own collective, or what stands for one."""
        try:
            with progress.meanwhile():
                request = self._native(asked, f"{method}_init", info)
        except NotImplementedError:  # mpi4py's, for a library before MPI 4.0
            function = getattr(MPI.Intracomm, "I" + method.lower())
            return Restarted(
                state, prepared, self, lambda own: function(own, *asked.taken()), state.lanes.whole
            )
        kept: KeptPrequest = KeptPrequest(request)
        if state.watch is not None or state.tracer is not None or hooks.installed:
            kept = LibraryPrequest.bound(request, state, prepared)
        kept.kept = asked
        return kept

    def _asked(
        self,
        state: State,
        method: str,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        root: Any,
        counts: Sequence[int] | None,
    ) -> _Asked:
        """The arguments of a call; collective where a Reduce_scatter does not give its counts."""
        if method == "Reduce_scatter" and counts is None and sendbuf is not MPI.IN_PLACE:
            count = vectors.count(recvbuf, what="receive buffer")
            with progress.meanwhile():
                counts = state.private.allgather(count)
            if min(counts) < 0:
                counts = None  # for the library to find out
        return _Asked(METHODS[method], sendbuf, recvbuf, op, root, counts)

    def _decide(
        self,
        state: State,
        asked: _Asked,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        blocking: bool,
        reproducible: bool = False,
    ) -> Prepared:
        """The parsed call and the algorithm."""
        definition = asked.definition
        parameters = dict(parameters)
        stream: Any = parameters.pop("stream", None)
        named = asked_for(definition, algorithm, parameters)
        if reproducible:
            if named:
                raise ValueError(
                    f"{definition.method}: reproducible=True has an algorithm of its own; leave "
                    f"out either it or algorithm={algorithm!r}"
                )
            named = Choice(EXACT, (), "reproducible=True")
        place = place_of(definition, state.rank, state.size, asked.root)
        try:
            call = parse(definition, place, *asked[1:4], asked.counts)
        except Unsupported as reason:
            if is_device(asked.sendbuf) or is_device(asked.recvbuf):
                raise BufferError(
                    f"{definition.method} of an array in device memory: {reason}; pass a "
                    "contiguous array of a predefined datatype, or copy it to the host"
                ) from None
            if named is None:
                self._fall_back(state, definition, f"{reason}, so {NATIVE} serves")
            elif named.algorithm != NATIVE:
                how = "reproducible=True" if reproducible else f"algorithm={algorithm!r}"
                remedy = "" if reproducible else f", or algorithm={NATIVE!r}"
                raise Unsupported(
                    f"{definition.method} by {how}: {reason}; pass a contiguous array of a "
                    f"predefined datatype{remedy}"
                ) from None
            return Prepared(definition, place, Choice(NATIVE), None)
        if stream is not None:
            call = call.on_stream(device.handle_of(stream))
        if reproducible:
            return Prepared(definition, place, Choice(EXACT), summed_exactly(call))
        choice, refused = (named, "") if named else self._choose(state, call, blocking)
        if refused:
            self._fall_back(state, definition, refused)
        if choice.algorithm in (CUDA_IPC, STAGED):
            return Prepared(definition, place, choice, call)
        obstacle = call.obstacle(choice)
        if obstacle:
            how = f" by algorithm={choice.algorithm!r}" if named else ""
            remedy = "" if named else "; name an algorithm by algorithm="
            raise type(obstacle)(f"{definition.method}{how}: {obstacle}{remedy}")
        if choice.algorithm == NATIVE and not blocking:
            call.check_lasting()
        return Prepared(definition, place, placed(definition.name, choice, state.nodes), call)

    def _choose(self, state: State, call: Call, blocking: bool) -> tuple[Choice, str]:
        """The algorithm where the caller names none; why it is not the one of the environment."""
        found = device.choose(state, call, blocking) if call.on_device else None
        if found is not None:
            return found, ""
        segmented = call.on_device and blocking and state.gpus is not None
        nbytes = staging.sized(call) if segmented else call.nbytes
        choice, refused = call.choose(state.table, nbytes)
        if not (blocking or state.settings.progress or choice.algorithm == NATIVE):
            if choice.asked:
                refused = (
                    f"{choice.source}: what is not blocking must progress outside mpicoll's calls "
                    f"too unless algorithm= is given or MPICOLL_PROGRESS=thread, so {NATIVE} serves"
                )
            choice = Choice(NATIVE, (), choice.source)
        return choice, refused

    def _native(self, asked: _Asked, method: str, *more: Any) -> Any:
        """The MPI library's own collective, by the method of mpi4py that is named."""
        return getattr(MPI.Intracomm, method)(self, *asked.taken(), *more)

    def _report(self, error: BaseException) -> None:
        """Tell the communicator's error handler what MPI has reported."""
        if isinstance(error, MPI.Exception) and self != MPI.COMM_NULL:
            self.Call_errhandler(error.Get_error_code())

    def _fall_back(self, state: State, definition: Collective, reason: str) -> None:
        """Count, and report as the policy says, that what was asked for cannot serve."""
        fall_back(state.settings.policy, state.fallbacks, state.rank, definition, reason)


def fall_back(
    policy: str,
    fallbacks: Counter[tuple[str, str]],
    rank: int,
    definition: Collective,
    reason: str,
) -> None:
    """Count, and report as the policy says, that what was asked for cannot serve.

    Raises:
        Unsupported: the policy is "error".
    """
    message = f"{definition.method}: {reason}"
    if policy == "error":
        raise Unsupported(f"{message}, which MPICOLL_FALLBACK=error forbids")
    fallbacks[definition.name, reason] += 1
    if policy == "warn":
        caller.warn_once(
            f"{message} (said once; MPICOLL_FALLBACK=silent or error changes that)",
            FallbackWarning,
            rank,
        )
