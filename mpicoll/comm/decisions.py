"""What a call is, and what serves it: decided from the arguments of a method.

Checks use this rank's arguments alone, so that all ranks decide the same way without a message.  A
call goes to the MPI library's own collective because that is the choice, because mpicoll cannot
serve what is asked for (a fallback), or because the call is non-blocking or persistent and names no
algorithm.  The latter must make progress while a program is in any call of MPI, and only the
library sees to that, or the thread of :mod:`mpicoll.engine.progress`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.base.later import Later
from mpicoll.buffers import Unsupported, vectors
from mpicoll.cuda.arrays import is_device
from mpicoll.cuda.transports import CUDA_IPC, STAGED
from mpicoll.engine import progress
from mpicoll.errors import FallbackWarning
from mpicoll.registry import of_a_user, path_of
from mpicoll.runtime.admission import Admission
from mpicoll.runtime.arguments import asked_for, parse, place_of, summed_exactly
from mpicoll.runtime.calls import Call, Prepared
from mpicoll.runtime.state import State
from mpicoll.schedule.collectives import Collective
from mpicoll.schedule.methods import COUNTS, METHODS, Method
from mpicoll.schedule.parameters import Parameter
from mpicoll.tuning import BUILTIN_SOURCE, EXACT, NATIVE, Choice, placed

if TYPE_CHECKING:
    from mpicoll.comm import device
    from mpicoll.runtime import staging
else:
    device, staging = Later("mpicoll.comm.device"), Later("mpicoll.runtime.staging")


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


def prepare(
    state: State, method: str, given: tuple[Any, ...], *asked: Any, waits: bool = True
) -> tuple[Arguments, Prepared]:
    """The arguments of a call, and the call; ranks that compare theirs hear of an error.

    ``asked``: as for :func:`decide`; ``waits``: whether the call may wait for other ranks.
    """
    arguments = _arguments(state, method, *given)
    try:
        prepared = decide(state, arguments, *asked)
        if of_a_user(prepared.definition.name, prepared.choice.algorithm):
            admission: Any = state.once(Admission, lambda: Admission(state.guard))
            admission.check(prepared, waits)
        return arguments, prepared
    except Exception as error:
        state.guard.refuse(arguments.method.definition, error, waits)
        raise


def _arguments(state: State, method: str, *given: Any) -> Arguments:
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
            counts = state.comm.allgather(count)
        if min(counts) >= 0:  # else it is for the library to find out
            return arguments._replace(counts=counts)
    return arguments


def decide(
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
    if isinstance(algorithm, str):
        algorithm = _loaded(state, definition, algorithm, blocking)
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
            _fall_back(state, definition, f"{reason}, so {NATIVE} serves")
        elif named.algorithm != NATIVE:
            how = "reproducible=True" if reproducible else f"algorithm={algorithm!r}"
            remedy = "" if reproducible else f", or algorithm={NATIVE!r}"
            raise Unsupported(
                f"{definition.method} by {how}: {reason}; pass a contiguous array of a "
                f"predefined datatype{remedy}"
            ) from None
        return Prepared(definition, place, Choice(NATIVE), None)
    for beyond in call.beyond:
        _fall_back(state, definition, beyond, alone=True)
    if stream is not None:
        call = call.on_stream(device.handle_of(stream))
    if reproducible:
        return Prepared(definition, place, Choice(EXACT), summed_exactly(call))
    choice, refused = (named, "") if named else _choose(state, call, blocking)
    if refused:
        _fall_back(state, definition, refused)
    if choice.algorithm in (CUDA_IPC, STAGED):
        return Prepared(definition, place, choice, call)
    obstacle = call.obstacle(choice)
    if obstacle:
        how = f" by algorithm={choice.algorithm!r}" if named else ""
        remedy = "" if named else "; name an algorithm by algorithm="
        raise type(obstacle)(f"{definition.method}{how}: {obstacle}{remedy}")
    if choice.algorithm == NATIVE:
        if not blocking:
            call.check_lasting()
        return Prepared(definition, place, choice, call)
    return Prepared(definition, place, placed(definition.name, choice, state.nodes), call)


def _loaded(state: State, definition: Collective, algorithm: str, waits: bool) -> str:
    """An algorithm's name; of a file, with what was in it.  Collective where it is loaded."""
    name = state.schedules.name(algorithm)
    if name is None and not waits:
        path = path_of(algorithm)
        raise ValueError(
            f"{definition.method}: {algorithm} has not been loaded, and a call that is not "
            "blocking may not wait for the other ranks to do so; call "
            f"comm.load({path!r}) first"
        )
    return state.load(path_of(algorithm)) if name is None else name


def _choose(state: State, call: Call, blocking: bool) -> tuple[Choice, str]:
    """The algorithm where the caller names none; why it is not the one of the environment."""
    found = device.choose(state, call, blocking) if call.on_device else None
    if found is not None:
        return found, ""
    if blocking and not state.connected:
        return Choice(NATIVE, (), "a communicator's first calls"), ""
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


def without_waiting(
    state: State,
    method: str,
    algorithm: str,
    parameters: Mapping[str, Parameter],
) -> tuple[str, Mapping[str, Parameter]]:
    """What serves a non-blocking call that must not wait until the communicator is connected.

    Raises:
        ValueError: it names no algorithm or parameter that is known, or a file that has not
            been loaded.
        Unsupported: the policy is "error".
    """
    definition = METHODS[method].definition
    named = {key: value for key, value in parameters.items() if key != "stream"}
    if isinstance(algorithm, str):
        algorithm = _loaded(state, definition, algorithm, waits=False)
    asked_for(definition, algorithm, named)
    reason = (
        f"I{method.lower()} by {algorithm} must not wait for the other ranks, which have made "
        f"no blocking call of mpicoll's on this communicator, so {NATIVE} serves; call "
        'Barrier(algorithm="dissemination") once before'
    )
    _fall_back(state, definition, reason)
    return NATIVE, {key: value for key, value in parameters.items() if key not in named}


def _fall_back(state: State, definition: Collective, reason: str, alone: bool = False) -> None:
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
