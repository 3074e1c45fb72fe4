"""One way for every collective of a communicator: decide (:mod:`mpicoll.comm.decisions`), run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from mpicoll import hooks
from mpicoll.base.later import Later
from mpicoll.comm.decisions import Arguments, prepare, without_waiting
from mpicoll.cuda.arrays import is_device
from mpicoll.cuda.transports import CUDA_IPC
from mpicoll.engine import progress, runner
from mpicoll.engine.transport import FastComm
from mpicoll.registry import is_path
from mpicoll.requests import Prequest, Request
from mpicoll.requests.device import Staged, StagedPrequest
from mpicoll.requests.library import OwnedPrequest, PersistentFallback, bound, started
from mpicoll.requests.own import FastRequest
from mpicoll.runtime.arguments import asked_for
from mpicoll.runtime.calls import Call, Prepared
from mpicoll.runtime.fast_path import Served
from mpicoll.runtime.first_calls import FirstCalls
from mpicoll.runtime.guard import FREED
from mpicoll.runtime.observe import observing
from mpicoll.runtime.state import State, attach, find, inherit
from mpicoll.schedule.methods import METHODS, STARTED
from mpicoll.schedule.parameters import Parameter
from mpicoll.tuning import NATIVE

if TYPE_CHECKING:
    from mpicoll.comm import device
else:
    device = Later("mpicoll.comm.device")


class Dispatch(FastComm):
    """An intracommunicator that can run collectives by mpicoll's algorithms.

    Its three ways to run one take a method's name, the caller's algorithm and its parameters, and
    then, as far as the method has them, send buffer, receive buffer, operator, root and counts.
    """

    _state: State | None = None
    #: All that is kept of one that comes from another, until a call needs more.
    _first_calls: FirstCalls | None = None

    def _ready(self) -> State:
        """What belongs to the handle; collective where the handle is used for the first time."""
        if self._state is None:
            self._state = self._begun()
        try:
            self._state.guard.check()
        except MPI.Exception as error:
            self._report(error)
            raise
        self._fast_path = self._state.fast_path.path
        return self._state

    def _begun(self) -> State:
        """What belongs to the handle, made now if it is not there yet."""
        first_calls = self._first_calls
        if first_calls is None:
            return attach(self)
        if self == MPI.COMM_NULL:
            raise ValueError(FREED)
        return find(self) or inherit(self, first_calls)

    def _connected(self) -> State:
        """The same where its messages have a way of their own; collective where that is new."""
        self._ready().connect()
        return self._ready()

    def _meet(
        self,
        state: State,
        method: str,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        given: tuple[Any, ...],
        needs: bool,
    ) -> State:
        """Connect the communicator if a call that may wait for other ranks needs it.

        ``needs``: whether it does whatever its arguments are.  That is the same on all ranks.
        """
        if isinstance(algorithm, str) and is_path(algorithm):
            return self._connected()  # which also loads it
        named = {key: value for key, value in parameters.items() if key != "stream"}
        choice = asked_for(METHODS[method].definition, algorithm, named)  # raises
        if choice is not None:
            needs |= choice.algorithm != NATIVE
        return self._connected() if needs or any(map(is_device, given[:2])) else state

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
        if not state.connected:
            few = algorithm is None and not state.first_calls.may_pass(METHODS[method].number)
            needs = few or reproducible
            state = self._meet(state, method, algorithm, parameters, given, needs)
        asked = algorithm, parameters, True, reproducible
        arguments, prepared = prepare(state, method, given, *asked)
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
            prepared = device.on_host(state.gpus, prepared, blocking=not state.waits)
        definition, _, choice, call = prepared
        if call is None or choice.algorithm == NATIVE:
            try:
                self._run_native(state, arguments, call)
            except MPI.Exception as error:
                state.first_calls.count(arguments.method.number, error)
                raise
            state.first_calls.count(arguments.method.number)
            state.count(definition.name, NATIVE)
            if call is not None:
                function = getattr(MPI.Intracomm, arguments.method.name)
                state.fast_path.pass_on(
                    Served(arguments.method, arguments[1:], choice, call, function)
                )
            return
        call.load()
        try:
            ran = state.plans.run(call, choice, step)
        except MPI.Exception as error:
            self._report(error)
            raise
        call.write_back()
        state.count(definition.name, choice.algorithm)
        state.fast_path.learn(call, arguments[1:], choice, ran)

    def _run_native(self, state: State, arguments: Arguments, call: Call | None) -> None:
        """Run the MPI library's own collective for a call, or a part of one."""
        arguments = arguments.passed_on(call)
        if call is not None:
            call.load(native=True)
        method = arguments.method.name
        if state.waits:
            # Within the library's blocking call nobody would look.
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
        if not (state.connected or algorithm is None or algorithm == NATIVE):
            algorithm, parameters = without_waiting(state, method, algorithm, parameters)
        asked = algorithm, parameters, False
        arguments, prepared = prepare(state, method, given, *asked, waits=False)
        if prepared.choice.algorithm == CUDA_IPC:
            return device.start(state, prepared)
        by_value = prepared.on_device
        if by_value:
            prepared = device.on_host(state.gpus, prepared, blocking=False)
            by_value = not prepared.on_device
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
                Served(arguments.method, given, prepared.choice, call, function, STARTED)
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
        if not state.connected:
            state = self._meet(state, method, algorithm, parameters, given, False)
        arguments, prepared = prepare(state, method, given, algorithm, parameters, False)
        state.guard.enter(prepared)
        if prepared.choice.algorithm == CUDA_IPC:
            return device.bind(state, prepared)
        by_value = prepared.on_device
        if by_value:
            prepared = device.on_host(state.gpus, prepared, blocking=False)
            by_value = not prepared.on_device
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
            state.connect()
            return PersistentFallback(
                state,
                prepared,
                self,
                lambda own: function(own, *arguments.taken()),
                state.lanes.whole,
            )
        observed = state.tracer is not None or bool(hooks.installed)
        return bound(request, state, prepared, arguments, observed)

    def _native(self, arguments: Arguments, method: str, *more: Any) -> Any:
        """The MPI library's own collective, by the method of mpi4py that is named."""
        return getattr(MPI.Intracomm, method)(self, *arguments.taken(), *more)

    def _report(self, error: BaseException) -> None:
        """Tell the communicator's error handler what MPI has reported."""
        if isinstance(error, MPI.Exception) and self != MPI.COMM_NULL:
            self.Call_errhandler(error.Get_error_code())
