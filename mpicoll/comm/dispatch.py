"""One way for every collective of a communicator: parse, check, choose, plan, run.

Checks use this rank's arguments alone.  A call goes by one of mpicoll's algorithms, or to the MPI
library's own collective: because that is the choice, because mpicoll cannot serve what is asked for
(a fallback), or because the call is non-blocking or persistent and names no algorithm.  The latter
must make progress while a program is in any call of MPI, and only the library sees to that, or the
thread of :mod:`mpicoll.engine.progress`.
"""

from __future__ import annotations

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
from mpicoll.registry import of_a_user
from mpicoll.requests import Prequest, Request
from mpicoll.requests.device import Staged, StagedPrequest
from mpicoll.requests.library import OwnedPrequest, PersistentFallback, bound, started
from mpicoll.requests.own import FastRequest
from mpicoll.runtime import staging
from mpicoll.runtime.admission import Admission
from mpicoll.runtime.arguments import asked_for, parse, place_of, summed_exactly
from mpicoll.runtime.calls import Call, Prepared
from mpicoll.runtime.observe import observing
from mpicoll.runtime.state import State, attach
from mpicoll.schedule.collectives import Collective
from mpicoll.schedule.methods import COUNTS, METHODS, STARTED, Method
from mpicoll.schedule.parameters import Parameter
from mpicoll.tuning import BUILTIN_SOURCE, NATIVE, Choice, placed


class Arguments(NamedTuple):
    """A method, and its arguments as the caller gave them."""

    method: Method
    sendbuf: Any = None
    recvbuf: Any = None
    op: Any = None
    root: Any = 0
    counts: Sequence[int] | None = None

    def passed_on(self, call: Call | None) -> Arguments:
        """The same for the MPI library, which takes a parsed call's buffers as mpi4py has them."""
        if call is None:
            return self
        sendbuf, recvbuf = call.messages()
        return self._replace(sendbuf=sendbuf, recvbuf=recvbuf)

    def taken(self) -> list[Any]:
        """The arguments of mpi4py's method."""
        return [self[1 + number] for number in self.method.arguments]


class NoFastPath:
    """In place of a :class:`mpicoll.engine.transport.FastPath`: every call goes the slow path."""

    def serve(self, *arguments: Any) -> bool:
        return False

    def start(self, *arguments: Any) -> None:
        return None


_NO_FAST_PATH = NoFastPath()


class Dispatch(MPI.Intracomm):
    """An intracommunicator that can run collectives by mpicoll's algorithms.

    Its three ways to run one take a method's name, the caller's algorithm and its parameters, and
    then, as far as the method has them, send buffer, receive buffer, operator, root and counts.
    """

    _state: State | None = None
    #: The fast path of calls like earlier ones, once one has been made.
    _fast_path: Any = _NO_FAST_PATH

    def _ready(self) -> State:
        """What belongs to the handle; collective where the handle is used for the first time."""
        if self._state is None:
            self._state = attach(self)
        try:
            self._state.guard.check()
        except MPI.Exception as error:
            self._report(error)
            raise
        self._fast_path = self._state.fast_path.path or _NO_FAST_PATH
        return self._state

    def _blocking(
        self,
        method: str,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        *given: Any,
        reproducible: bool = False,
    ) -> None:
        """Run a collective."""
        state = self._ready()
        asked = algorithm, parameters, True, reproducible
        arguments, prepared = self._prepare(state, method, given, *asked)
        state.guard.enter(prepared)
        with observing(state, prepared) as step:
            self._run(state, arguments, prepared, step)

    def _run(
        self, state: State, arguments: Arguments, prepared: Prepared, step: runner.Step | None
    ) -> None:
        """Run a collective that is decided."""
        if prepared.on_device:
            native = partial(self._run_native, state, arguments)
            if device.run(state, prepared, arguments[1:5], native, step):
                return
            # With a time limit it is a request that is waited for.
            prepared = device.on_host(state.gpus, prepared, blocking=state.watch is None)
        definition, _, choice, call = prepared
        if call is None or choice.algorithm == NATIVE:
            self._run_native(state, arguments, call)
            state.count(definition.name, NATIVE)
            if call is not None:
                function = getattr(MPI.Intracomm, arguments.method.name)
                state.fast_path.pass_on(arguments.method, arguments[1:], choice, call, function)
            return
        call.load()
        try:
            ran = state.plans.run(call, choice, step)
        except MPI.Exception as error:
            meant = state.guard.meant(error)
            self._report(meant)
            raise meant from None
        call.write_back()
        state.count(definition.name, choice.algorithm)
        state.fast_path.learn(call, arguments[1:], choice, ran)

    def _run_native(self, state: State, arguments: Arguments, call: Call | None) -> None:
        """Run the MPI library's own collective for a call, or a part of one."""
        arguments = arguments.passed_on(call)
        if call is not None:
            call.load(native=True)
        method = arguments.method.name
        if state.watch is not None:
            # Within the library's blocking call nobody would look at the clock.
            request = self._native(arguments, "I" + method.lower())
            state.guard.wait(request, arguments)
        else:
            with progress.meanwhile():
                self._native(arguments, method)
        if call is not None:
            call.write_back(native=True)

    def _non_blocking(
        self,
        method: str,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        *given: Any,
    ) -> Any:
        """Start a collective; returns a request."""
        state = self._ready()
        asked = algorithm, parameters, False
        arguments, prepared = self._prepare(state, method, given, *asked, waits=False)
        if prepared.choice.algorithm == CUDA_IPC:
            return device.start(state, prepared)
        by_value = prepared.on_device
        prepared = device.on_host(state.gpus, prepared, blocking=False)
        by_value &= not prepared.on_device
        call = prepared.call
        if call is not None and prepared.choice.algorithm != NATIVE:
            begun = Request.begin(state, prepared, self._report)
            state.fast_path.learn_started(
                call, arguments[1:], prepared.choice, begun.plan, FastRequest
            )
            return begun
        ticket, comparison = state.guard.start(prepared)
        with observing(state, prepared, complete=False):
            if call is not None:
                call.load(native=True)
            passed = arguments.passed_on(call)
            request = self._native(passed, "I" + method.lower())
            state.count(arguments.method.definition.name, NATIVE)
        progress.poll()
        if call is not None and not prepared.on_device:
            function, given = getattr(MPI.Intracomm, "I" + method.lower()), arguments[1:]
            state.fast_path.pass_on(
                arguments.method, given, prepared.choice, call, function, STARTED
            )
        made = started(request, state, ticket, comparison, passed)
        if by_value and call is not None:
            return Staged(made, call.arrive, call)
        return made

    def _persistent(
        self,
        method: str,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        info: MPI.Info,
        *given: Any,
    ) -> Any:
        """Bind a collective to its buffers; returns a persistent request."""
        state = self._ready()
        arguments, prepared = self._prepare(state, method, given, algorithm, parameters, False)
        state.guard.enter(prepared)
        if prepared.choice.algorithm == CUDA_IPC:
            return device.bind(state, prepared)
        by_value = prepared.on_device
        prepared = device.on_host(state.gpus, prepared, blocking=False)
        by_value &= not prepared.on_device
        call = prepared.call
        if call is not None and prepared.choice.algorithm != NATIVE:
            return Prequest(state, prepared, self._report)
        arguments = arguments.passed_on(call)
        kept = self._bound(state, method, arguments, prepared, info)
        if by_value and call is not None:
            return StagedPrequest(kept, partial(call.load, native=True), call.arrive, call)
        if prepared.on_device and call is not None:
            leave = partial(device.wait_for_streams, call)
            return StagedPrequest(kept, leave, lambda status: None, call)
        return kept

    def _bound(
        self, state: State, method: str, arguments: Arguments, prepared: Prepared, info: MPI.Info
    ) -> OwnedPrequest | PersistentFallback:
        """A persistent request of the MPI library's own collective, or what stands for one."""
        try:
            with progress.meanwhile():
                request = self._native(arguments, f"{method}_init", info)
        except NotImplementedError:  # mpi4py's, for a library before MPI 4.0
            function = getattr(MPI.Intracomm, "I" + method.lower())
            return PersistentFallback(
                state,
                prepared,
                self,
                lambda own: function(own, *arguments.taken()),
                state.lanes.whole,
            )
        observed = state.tracer is not None or bool(hooks.installed)
        return bound(request, state, prepared, arguments, observed)

    def _prepare(
        self, state: State, method: str, given: tuple[Any, ...], *asked: Any, waits: bool = True
    ) -> tuple[Arguments, Prepared]:
        """The arguments of a call, and the call; ranks that compare theirs hear of an error.

        ``asked``: as for :meth:`_decide`; ``waits``: whether the call may wait for other ranks.
        """
        arguments = self._arguments(state, method, *given)
        try:
            prepared = self._decide(state, arguments, *asked)
            if of_a_user(prepared.definition.name, prepared.choice.algorithm):
                admission: Any = state.once(Admission, lambda: Admission(state.guard))
                admission.check(prepared, waits)
            return arguments, prepared
        except Exception as error:
            state.guard.refuse(arguments.method.definition, error, waits)
            raise

    def _arguments(self, state: State, method: str, *given: Any) -> Arguments:
        """The arguments of a call; collective where a Reduce_scatter does not give its counts."""
        arguments = Arguments(METHODS[method], *given)
        if method == "Alltoallw":
            sendbuf, recvbuf = map(vectors.without_null, arguments[1:3])
            return arguments._replace(sendbuf=sendbuf, recvbuf=recvbuf)
        missing = arguments.counts is None and COUNTS in arguments.method.arguments
        in_place = arguments.sendbuf is None or arguments.sendbuf is MPI.IN_PLACE
        if missing and not in_place:
            count = vectors.count(arguments.recvbuf, what="receive buffer")
            with progress.meanwhile():
                counts = state.private.allgather(count)
            if min(counts) >= 0:  # else it is for the library to find out
                return arguments._replace(counts=counts)
        return arguments

    def _decide(
        self,
        state: State,
        arguments: Arguments,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        blocking: bool,
        reproducible: bool = False,
    ) -> Prepared:
        """The parsed call and the algorithm."""
        definition = arguments.method.definition
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
        place = place_of(definition, state.rank, state.size, arguments.root)
        try:
            call = parse(definition, place, *arguments[1:4], arguments.counts)
        except Unsupported as reason:
            if is_device(arguments.sendbuf) or is_device(arguments.recvbuf):
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
        for beyond in call.beyond:
            self._fall_back(state, definition, beyond, alone=True)
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
        if call.definition.method == "Alltoallw" and choice.source == BUILTIN_SOURCE:
            # Other ranks may have datatypes with holes, which the library packs while it sends.
            choice = Choice(NATIVE, (), BUILTIN_SOURCE)
        if not (blocking or state.settings.progress or choice.algorithm == NATIVE):
            if choice.asked:
                refused = (
                    f"{choice.source}: what is not blocking must progress outside mpicoll's calls "
                    f"too unless algorithm= is given or MPICOLL_PROGRESS=thread, so {NATIVE} serves"
                )
            # A choice without a source is made anew each time, and so is its report.
            choice = Choice(NATIVE, (), "" if refused else choice.source)
        return choice, refused

    def _native(self, arguments: Arguments, method: str, *more: Any) -> Any:
        """The MPI library's own collective, by the method of mpi4py that is named."""
        return getattr(MPI.Intracomm, method)(self, *arguments.taken(), *more)

    def _report(self, error: BaseException) -> None:
        """Tell the communicator's error handler what MPI has reported."""
        if isinstance(error, MPI.Exception) and self != MPI.COMM_NULL:
            self.Call_errhandler(error.Get_error_code())

    def _fall_back(
        self, state: State, definition: Collective, reason: str, alone: bool = False
    ) -> None:
        """Count, and report as the policy says, that what was asked for cannot serve.

        ``alone``: whether other ranks may not know of it.

        Raises:
            Unsupported: the policy is "error".
        """
        message = f"{definition.method}: {reason}"
        if state.settings.policy == "error":
            raise Unsupported(f"{message}, which MPICOLL_FALLBACK=error forbids")
        state.fallbacks[definition.name, reason] += 1
        if state.settings.policy == "warn":
            caller.warn_once(
                f"{message} (said once; MPICOLL_FALLBACK=silent or error changes that)",
                FallbackWarning,
                0 if alone else state.rank,
            )
