"""What a communicator lets go the engine's fast path: calls like earlier ones, and the starts of
persistent ones.

The first call of its kind goes the slow path (:mod:`mpicoll.comm.dispatch`), which then tells here
how it was run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from mpicoll import hooks, tuning
from mpicoll.base import caller
from mpicoll.buffers import Buffer, typemaps, vectors
from mpicoll.cuda.transports import CUDA_IPC
from mpicoll.engine import progress, transport
from mpicoll.engine.lanes import Lane, Lanes
from mpicoll.engine.plan import Plan
from mpicoll.runtime.calls import Call
from mpicoll.runtime.guard import Guard
from mpicoll.runtime.plans import Plans, Runnable
from mpicoll.schedule.methods import METHODS, STARTED, Method

#: The collectives of the methods with blocks of one length, in the order of their numbers.
_EVEN = [method.collective for method in METHODS.values() if not method.varies]


class FastCalls:
    """The calls of one communicator that go the fast path; none where it has no fast path.

    Args:
        nodes: the number of each rank's node.

    Attributes:
        path: the engine's; None where every call goes the slow path.
    """

    def __init__(self, nodes: tuple[int, ...]) -> None:
        self._nodes = nodes
        self.path: transport.FastPath | None = None
        self._flies = self._survives = False

    def open(
        self, private: MPI.Intracomm, plans: Plans, lanes: Lanes, guard: Guard, peers: Any
    ) -> None:
        """Let calls go the fast path from now on, where MPI allows threads.

        Args:
            private: carries the messages that MPI carries.
            plans, lanes: those of the communicator.
            guard: waits for the calls, and is told of their failures.
            peers: serves arrays in device memory; None if nothing does.
        """
        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return
        self._plans, self._around = plans, (private, guard.idle, lanes)
        self._look = guard.look
        self.path = transport.FastPath(
            private,
            guard.idle,
            progress.poll,
            progress.under_way,
            hooks.installed,
            caller.parent,
            guard.fail,
        )
        if peers is not None:
            self.path.serve_devices(peers, [(collective, CUDA_IPC) for collective in _EVEN])

    def learn(
        self, call: Call, arguments: tuple[Any, ...], choice: tuning.Choice, ran: Runnable
    ) -> None:
        """Let a call of the same arguments, buffers apart, go the fast path from now on.

        Args:
            call: the parsed call.
            arguments: send buffer, receive buffer, operator, root, counts.
            choice: how it was run.
            ran: what ran it.
        """
        method = METHODS[call.definition.method]
        _meet_tensors(arguments)
        path = self._path_for(call, arguments, choice)
        if path is None:
            return
        packed = _packed(call, (call.send, call.recv))
        if packed is None:
            return
        name = method.collective, choice.algorithm
        path.learn(
            method.number, arguments, tuning.named(choice), name, call, ran.execution, *packed
        )

    def learn_started(
        self,
        call: Call,
        arguments: tuple[Any, ...],
        choice: tuning.Choice,
        plan: Plan | None,
        flights: type[Any],
    ) -> None:
        """The same for a call that is not blocking.

        Args:
            call, arguments, choice: as for :meth:`learn`.
            plan: of the call; None where another one's was scaled, from which the engine cannot
                make more.
            flights: the class of requests on the fast path.
        """
        method = METHODS[call.definition.method]
        _meet_tensors(arguments)
        path = self._path_for(call, arguments, choice)
        if path is None or not call.is_direct:
            return
        if not self._flies:
            private, pause, lanes = self._around
            lock, pollers = progress.lock, progress.pollers
            look = self._look if self._survives else None
            around = progress.poll, progress.under_way, pollers, caller.parent, lock, lanes, look
            path.serve_flights(transport.Airspace(private, pause, *around), flights)
            self._flies = True
        name = method.collective, choice.algorithm
        plan = plan or self._plans.plan(call.shape(choice))
        execution = transport.Execution(plan, self._plans.device)
        number = method.number + STARTED
        path.learn(
            *(number, arguments, tuning.named(choice), name, call, execution),
            *(None, (False, False), False),
        )

    def pass_on(self, served: Served) -> None:
        """The same for a call that a function of the MPI library serves."""
        # Nobody hears of deaths within a call of the library's.
        passes = self.path is not None and not self._survives
        if passes and served.is_repeatable(self._nodes):
            pass_on(self.path, served)

    def survive(self) -> None:
        """Make only such calls as hear of deaths while they wait, from now on."""
        self._survives, self._flies = True, False
        if self.path is not None:
            self.path.look = self._look
        self.forget()

    def _path_for(
        self, call: Call, arguments: tuple[Any, ...], choice: tuning.Choice
    ) -> transport.FastPath | None:
        """The fast path of a call, None if it may not go there."""
        if self.path is None or not _is_repeatable(call, arguments[2], choice, self._nodes):
            return None
        return self.path

    def starter(self, runnable: Runnable, lane: Lane, call: Call) -> transport.Starter | None:
        """The fast path of a persistent call, None if it has none."""
        if self.path is None or not call.is_direct:
            return None
        execution = self._plans.bind(runnable, lane, call)
        name = runnable.shape.collective, runnable.shape.algorithm
        return transport.Starter(self.path, execution, name, progress.pollers, progress.lock)

    def calls(self) -> dict[tuple[str, str], int]:
        """Number of calls that went the fast path, by (collective, algorithm)."""
        return {} if self.path is None else dict(self.path.calls())

    def forget(self) -> None:
        """Let every call go the slow path once more."""
        if self.path is not None:
            self.path.forget()

    def close(self) -> None:
        """Let every call go the slow path from now on."""
        if self.path is not None:
            self.path.open = False


class Served(NamedTuple):
    """A call that the MPI library has served.

    Attributes:
        method: what was called.
        arguments: send buffer, receive buffer, operator, root, counts.
        choice: why the library has served it.
        call: the parsed call.
        function: mpi4py's method.
        kind: what is added to the method's number, see :mod:`mpicoll.schedule.methods`.
    """

    method: Method
    arguments: tuple[Any, ...]
    choice: tuning.Choice
    call: Call
    function: Callable[..., Any]
    kind: int = 0

    def is_repeatable(self, nodes: tuple[int, ...] = ()) -> bool:
        """Whether calls of the same arguments, buffers apart, are served in the same way.

        ``nodes``: the number of each rank's node.
        """
        # A call that is started keeps its operator.
        op = None if self.kind else self.arguments[2]
        return _is_repeatable(self.call, op, self.choice, nodes)


def _is_repeatable(
    call: Call, op: MPI.Op | None, choice: tuning.Choice, nodes: tuple[int, ...]
) -> bool:
    """The same for any call by an operator; a user's may be another one next time."""
    if call.beyond:  # which is reported each time
        return False
    predefined = op is None or op.is_predefined
    return predefined and tuning.is_default(call.definition.name, choice, nodes)


def pass_on(path: transport.FastPath, served: Served) -> None:
    """Let a fast path make calls like one that the MPI library has served."""
    method, arguments, choice, call, function, kind = served
    _meet_tensors(arguments)
    if not _understood(call):
        return
    buffers = [
        buffer if side == number and buffer is not None and goes_to_all(buffer) else None
        for number, (side, buffer) in enumerate(
            zip(call.sides(), (call.send, call.recv), strict=True)
        )
    ]
    packed = _packed(call, (buffers[0], buffers[1]))
    if packed is None or (kind and packed[0] is not None):
        return
    messages: tuple[Any, ...] | None = None
    if call.definition.name == "exscan" and call.recv is None:
        if packed[0] is not None:
            return
        messages = None, call.messages()[1]  # memory that nothing is received in
    if packed[0] is not None:
        pairs = zip(call.messages(), buffers, strict=True)
        messages = tuple(None if buffer is None else message for message, buffer in pairs)
    path.pass_on(
        method.number + kind,
        arguments,
        tuning.named(choice),
        (method.collective, choice.algorithm),
        call,
        function,
        method.arguments,
        *packed,
        messages,
        _direct(call, method),
    )


def _meet_tensors(arguments: tuple[Any, ...]) -> None:
    """Let PyTorch's tensors be told from one another, once the program has passed one."""
    torch = sys.modules.get("torch")
    if torch is None or transport.meet_tensor is None:
        return
    for message in arguments[:2]:
        owner = message[0] if isinstance(message, (list, tuple)) and message else message
        if isinstance(owner, torch.Tensor):
            transport.meet_tensor(type(owner))


def goes_to_all(buffer: Buffer) -> bool:
    """Whether a buffer goes by value, to the MPI library's own collectives too."""
    return buffer.packed is not None and buffer.packed.for_all


def _understood(call: Call) -> bool:
    """Whether mpi4py's method takes the caller's own arguments for what they are here."""
    for buffer in (call.send, call.recv):
        if buffer is None:
            continue
        if buffer.datatype is None or (buffer.dtype is not None and buffer.dtype.isbuiltin != 1):
            return False
        if call.definition.reduces and buffer.datatype == MPI.BYTE:
            return False
    return True


def _direct(call: Call, method: Method) -> transport.Direct | None:
    """The MPI library's own function, with what it gets of the buffers; None where mpi4py's method
    knows better: of counts beyond an int, and of most derived datatypes of blocks of any lengths.
    """
    found: list[tuple[Any, ...] | None] = []
    both = 0 if call.definition.name == "scatter" else 1
    for side, buffer in enumerate((call.send, call.recv)):
        if call.in_place and call.definition.name != "bcast" and side != both:
            found.append(None)
            continue
        given = (0, MPI.BYTE) if buffer is None else _given(call, method, buffer, side)
        if given is None:
            return None
        found.append(given)
    try:
        return transport.Direct(method.number, *found)
    except OverflowError:
        return None


def _given(call: Call, method: Method, buffer: Buffer, side: int) -> tuple[Any, ...] | None:
    """What it gets of one of the buffers, see `mpicoll/engine/_library.pyx`; None: not known."""
    definition = call.definition
    if method.name == "Alltoallw":
        counts, places, datatypes = vectors.typed(call.given[side], call.place.size, "buffer")
        # The names of datatypes are mpi4py's.
        named = any(not isinstance(datatype, MPI.Datatype) for datatype in datatypes)
        return None if named else (counts, places, None)
    if buffer.packed is not None and not buffer.packed.for_all:
        parts = buffer.packed.parts
        if method.varies or parts is None or len(parts) > 1 or parts[0].offset:
            return None
        return parts[0].length // buffer.blocks, None
    alone = (definition.input_alone, definition.output_alone)[side]
    if call.layouts is None or (alone and not definition.reduces):
        return buffer.length, buffer.datatype
    unit = 1 if definition.reduces else buffer.itemsize
    numbers = ([n // unit for n in each] for each in reversed(call.layouts[side]))
    return *numbers, buffer.datatype


_Packed = tuple[tuple[Any, Any] | None, tuple[bool, bool], bool]


def _packed(call: Call, buffers: tuple[Buffer | None, Buffer | None]) -> _Packed | None:
    """How two buffers of a call go by value: packings, what to load, whether to store.

    None where the engine cannot pack one; no packings where none has to be packed.
    """
    if all(buffer is None or buffer.packed is None for buffer in buffers):
        return None, (False, False), False
    send, recv = buffers
    try:
        first = _packing(send)
        packings = first, first if recv is send else _packing(recv)
    except ValueError:
        return None
    # What a collective does not write is left as it was.
    gaps = call.recv is call.send or call.layouts is not None or call.definition.name == "exscan"
    stores = recv is not None and recv.packed is not None and recv.writable
    return packings, (True, gaps), stores


def _packing(buffer: Buffer | None) -> transport.Packing | None:
    """How the engine packs a buffer, None if it need not.

    Raises:
        ValueError: it cannot.
    """
    if buffer is None or buffer.packed is None:
        return None
    packed = buffer.packed
    if packed.arrays is not None and packed.memory.size == buffer.memory.size:
        return transport.StridedPacking(*packed.arrays)
    if packed.parts is not None and buffer.array is None and _names_one(buffer.given[-1]):
        datatype = packed.parts[0].datatype
        if not transport.is_described(datatype):
            transport.describe(datatype, typemaps.regular(datatype))
        parts = [(part.offset, part.length) for part in packed.parts]
        return transport.TypedPacking(parts, packed.memory.size)
    raise ValueError("several datatypes, or a part of an array")


def _names_one(datatypes: Any) -> bool:
    """Whether all of some datatypes are one; those of empty blocks too."""
    several = datatypes if isinstance(datatypes, (list, tuple)) else [datatypes]
    return all(each == several[0] for each in several)
