"""One call of a collective: parsed and checked, then turned into what runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll import algorithms, ops, tuning
from mpicoll.base.later import Later
from mpicoll.buffers import Buffer
from mpicoll.buffers.buffer import Bytes
from mpicoll.buffers.packing import Packed
from mpicoll.buffers.staged import OnDevice
from mpicoll.cuda.transports import CUDA_IPC, STAGED
from mpicoll.engine import plan
from mpicoll.registry import COMMUTATIVE, EQUAL_BLOCKS
from mpicoll.runtime import agree
from mpicoll.schedule import layout
from mpicoll.schedule.collectives import Collective, Place
from mpicoll.schedule.layout import Layout
from mpicoll.schedule.methods import METHODS, OWN, Method
from mpicoll.tuning import EXACT, NATIVE, Choice

if TYPE_CHECKING:
    from mpicoll.ops import exact
else:
    exact = Later("mpicoll.ops.exact")


class Call(NamedTuple):
    """One rank's call, parsed and checked.

    Attributes:
        definition: the collective, under the method's name.
        place: rank, size and root; as many blocks as ranks where each rank has one, else one.
        send, recv, in_place, layouts: see :class:`mpicoll.buffers.pair.Operands`.
        reduction: what the operator is on these elements; None where nothing is reduced.
        given: the two buffers as the caller passed them.
        stream: handle of the stream that the caller has named, None if none.
    """

    definition: Collective
    place: Place
    send: Buffer | None
    recv: Buffer | None
    in_place: bool
    reduction: ops.Reduction | None
    layouts: tuple[Layout, Layout] | None = None
    given: tuple[Any, Any] = (None, None)
    stream: int | None = None

    @property
    def _method(self) -> Method:
        return METHODS[self.definition.method]

    @property
    def buffer(self) -> Buffer | None:
        """A buffer that tells type and count; None for a barrier."""
        return self.send if self.send is not None else self.recv

    @property
    def beyond(self) -> set[str]:
        """What the caller's counts reach beyond, in words."""
        return {b.beyond for b in (self.send, self.recv) if b is not None and b.beyond}

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector, equal on all ranks; 0 where no rank knows all of it."""
        if self.layouts is not None and self.buffer is not None:
            if self._method.blocks is OWN:
                return 0
            unit = self.buffer.itemsize if self.reduction is not None else 1
            return sum(self.layouts[1].counts) * unit
        return self.buffer.block_bytes * self.place.nblocks if self.buffer is not None else 0

    def obstacle(self, choice: Choice) -> TypeError | ValueError | None:
        """Why an algorithm cannot serve this call, None if it can; equal on all ranks."""
        algorithm = choice.algorithm
        if algorithm == NATIVE:
            if self.buffer is None or self.reduction is None or self._has_datatype():
                return None
            return TypeError(f"this MPI library has no datatype for {self.buffer.name}")
        entry = algorithms.find(self.definition.name, algorithm)
        if COMMUTATIVE in entry.needs and self.reduction and not self.reduction.commutative:
            return TypeError(f"{algorithm} needs a commutative operator, and this one is not")
        if EQUAL_BLOCKS in entry.needs and self._method.blocks is OWN:
            return ValueError(
                f"{algorithm} passes on blocks of other ranks, whose lengths a rank does not know "
                f"in {self.definition.method}"
            )
        place, rooted = self.place, self.definition.rooted
        misfit = entry.misfit(place.size, dict(choice.parameters), place.root if rooted else None)
        return ValueError(f"{algorithm}: {misfit}") if misfit else None

    def _has_datatype(self) -> bool:
        return self.buffer is None or self.buffer.datatype is not None

    def choose(self, table: tuning.Table, nbytes: int) -> tuple[Choice, str]:
        """The algorithm if the caller names none; why it is not the one asked for.

        ``nbytes``: of the whole vector that goes at a time.
        """
        facts = self.definition.name, self.place.size, nbytes, table
        wanted = tuning.choose(*facts)
        obstacle = self.obstacle(wanted)
        if not obstacle:
            return wanted, ""
        choice = tuning.choose(*facts, serves=lambda candidate: not self.obstacle(candidate))
        if not wanted.asked:
            return choice, ""
        return choice, f"{wanted.source}: {obstacle}, so {choice.algorithm} serves"

    def facts(self) -> agree.CallSignature:
        """What must be equal on all ranks, of buffers and operator.

        What is only moved may be of different types, bytes on one rank, as long as its length is
        the same.
        """
        if self.buffer is None or self._method.blocks is OWN:
            return {}
        if self.layouts is not None:
            counts = agree.short_hash(self.layouts[1].counts)
            common: dict[str, Any] = {"hash of the counts": counts}
        else:
            common = {}
        if self.reduction is None:
            return common or {"bytes of a block": self.buffer.block_bytes}
        operator = self.reduction.name
        if self.reduction.function is not None:
            kind = "commutative" if self.reduction.commutative else "not commutative"
            operator = f"user-defined, {kind}"
        return {
            "operator": operator,
            "datatype": str(self.reduction.dtype),
            **(common or {"count": self.buffer.length}),
        }

    def messages(self) -> tuple[Any, Any]:
        """Send and receive buffer as mpi4py wants them."""
        if self._method.varies and not self.definition.reduces and self._has_datatype():
            return self._vector(self.send, 0), self._vector(self.recv, 1)
        send = self._message(self.send, 0)
        recv = self._message(self.recv, 1)
        if self.definition.name == "exscan" and recv is None and send is not None:
            # The library wants a buffer where nothing is received.
            recv = [np.empty_like(send[0]), *send[1:]]
        if not self.in_place or self.definition.name == "bcast":
            return send, recv
        return (send, MPI.IN_PLACE) if self.definition.name == "scatter" else (MPI.IN_PLACE, recv)

    def _vector(self, buffer: Buffer | None, side: int) -> Any:
        """One buffer as the caller passed it, or what goes by value in its place."""
        message = self.given[side]
        packed = _by_value(buffer, native=True)
        if buffer is None or packed is None or message is MPI.IN_PLACE:
            return message
        if isinstance(packed, OnDevice):
            return self._blocks(buffer, side)
        more = list(message[1:]) if isinstance(message, (list, tuple)) else []
        typed = more and isinstance(more[-1], (MPI.Datatype, str))
        if not typed and self.definition.method != "Alltoallw":
            more.append(buffer.datatype)
        return [packed.memory, *more]

    def _blocks(self, buffer: Buffer, side: int) -> Any:
        """A vector of whose memory there are the bytes used alone."""
        if (
            self.layouts is None
            or (self.definition.input_alone, self.definition.output_alone)[side]
        ):
            return buffer.message(reduced=False)
        datatype, unit = buffer.datatype or MPI.BYTE, buffer.itemsize
        if buffer.datatype is None or self.definition.method == "Alltoallw":
            datatype, unit = MPI.BYTE, 1
        blocks = self.layouts[side]
        cut = [n // unit for n in blocks.counts], [n // unit for n in blocks.offsets]
        if self.definition.method == "Alltoallw":
            return [buffer.memory, cut, [datatype] * self.place.size]
        return [buffer.memory, cut, datatype]

    def _message(self, buffer: Buffer | None, side: int) -> Any:
        """One buffer as mpi4py wants it."""
        whole = not (self.definition.input_alone, self.definition.output_alone)[side]
        if buffer is None or self.definition.reduces or self.layouts is None or not whole:
            return None if buffer is None else buffer.message(self.definition.reduces)
        blocks = self.layouts[side]
        return [buffer.memory, (list(blocks.counts), list(blocks.offsets)), MPI.BYTE]

    def memory(self) -> tuple[Bytes | None, Bytes | None]:
        """Send and receive buffer as a runner wants them."""
        send, recv = self.send, self.recv
        return None if send is None else send.memory, None if recv is None else recv.memory

    def sides(self) -> tuple[int, int]:
        """Which of the caller's two arguments send and receive buffer come from; -1: from none."""
        if self.in_place:
            both = 0 if self.definition.name == "scatter" else 1
            sides = both, both
        else:
            sides = 0, 1
        send, recv = self.send, self.recv
        return (
            -1 if send is None or not send.memory.size else sides[0],
            -1 if recv is None or not recv.memory.size else sides[1],
        )

    def places(self) -> list[tuple[int, int, int, int]]:
        """Where send and receive buffer lie.

        For each, which argument it comes from, its address (0: where that argument's memory
        begins), and the first byte used and the one behind the last, 0 where they need not be apart
        from the other's.
        """
        pairs = zip(self.sides(), (self.send, self.recv), strict=True)
        return [(side, *(_place(buffer) if side >= 0 else (0, 0, 0))) for side, buffer in pairs]

    @property
    def on_device(self) -> bool:
        """Whether a buffer is in device memory, at which the host must not look."""
        return any(b is not None and b.device is not None for b in (self.send, self.recv))

    def on_host(self) -> Call:
        """The same call where what is in device memory goes by value."""
        # What is received overwrites all, but between blocks of different lengths may be a gap.
        gaps = self.layouts is not None
        return self.with_buffers(lambda buffer: buffer.on_host(loads=gaps or buffer is self.send))

    def on_stream(self, stream: int) -> Call:
        """The same call ordered on a stream."""
        return self.with_buffers(lambda buffer: buffer.on_stream(stream))._replace(stream=stream)

    def with_buffers(self, change: Callable[[Buffer], Buffer]) -> Call:
        """The same call of other buffers."""
        send = None if self.send is None else change(self.send)
        if self.recv is None or self.recv is self.send:
            return self._replace(send=send, recv=None if self.recv is None else send)
        return self._replace(send=send, recv=change(self.recv))

    @property
    def is_direct(self) -> bool:
        """Whether runners use the caller's own memory."""
        return not any(buffer is not None and buffer.packed for buffer in (self.send, self.recv))

    def load(self, native: bool = False) -> None:
        """Bring what goes by value into the memory that a runner sees; before it starts.

        ``native``: what the MPI library's own collective sees.
        """
        for buffer in (self.send, None if self.recv is self.send else self.recv):
            packed = _by_value(buffer, native)
            if packed is not None:
                packed.load()

    def write_back(self, native: bool = False) -> None:
        """Bring what has come by value to the caller's memory; once the runner is done."""
        packed = _by_value(self.recv, native)
        if packed is not None and self.recv is not None and self.recv.writable:
            packed.write_back()

    def arrive(self, status: MPI.Status) -> None:
        """The MPI library's own collective is done."""
        self.write_back(native=True)

    def check_lasting(self) -> None:
        """Raise if something goes by value where nobody would bring it back.

        What is in device memory has requests that do.

        Raises:
            BufferError: the requests of the MPI library's own collectives do not copy.
        """
        for side, buffer in (("send", self.send), ("receive", self.recv)):
            on_device = buffer is not None and buffer.device is not None
            if not on_device and _by_value(buffer, native=True) is not None:
                raise BufferError(
                    f"{side} buffer: goes by value, because it is not contiguous or not in the "
                    f"order of the other one, and a request of {NATIVE} does not copy it; pass "
                    "numpy.ascontiguousarray(array), or name an algorithm by algorithm="
                )

    def shape(self, choice: Choice) -> plan.Shape:
        """What to plan.  Reductions are cut in elements, data movement in bytes."""
        length, itemsize, wide = 0, 1, 1
        if self.buffer is not None and self.reduction is not None:
            length, itemsize = self.buffer.length, self.buffer.itemsize
            wide = self.reduction.wide.itemsize
        elif self.buffer is not None:
            length = self.buffer.block_bytes
        place = self.place
        algorithm = _schedule(self.definition, choice)
        blocks = algorithms.find(self.definition.name, algorithm).blocks(place.size)
        cut = _even(length * place.nblocks, blocks)
        input, output = self.layouts or (cut, cut)
        return plan.Shape(
            collective=self.definition.name,
            algorithm=algorithm,
            parameters=choice.parameters,
            rank=place.rank,
            size=place.size,
            root=place.root,
            in_place=self.in_place,
            itemsize=itemsize,
            wide=wide,
            input=input,
            output=output,
            whole=choice.algorithm == EXACT,
        )


def _place(buffer: Buffer | None) -> tuple[int, int, int]:
    """Address of a buffer's memory, and the bytes used, see :meth:`Call.places`."""
    assert buffer is not None
    if buffer.packed is None:
        address = buffer.memory.ctypes.data
        return address, address, address + buffer.memory.size
    if not isinstance(buffer.array, np.ndarray):  # of a derived datatype, or on a GPU
        return 0, 0, 0
    address = first = end = buffer.array.ctypes.data
    for length, stride in zip(buffer.array.shape, buffer.array.strides, strict=True):
        first, end = first + min(0, (length - 1) * stride), end + max(0, (length - 1) * stride)
    return address, first, end + buffer.array.itemsize


def _by_value(buffer: Buffer | None, native: bool) -> Packed | None:
    """What goes by value, through mpicoll or the MPI library's own collective."""
    packed = None if buffer is None else buffer.packed
    return None if packed is None or (native and not packed.for_all) else packed


_even = lru_cache(layout.even)


def _schedule(definition: Collective, choice: Choice) -> str:
    """The algorithm whose schedule a choice has."""
    return exact.SCHEDULES[definition.name] if choice.algorithm == EXACT else choice.algorithm


class Prepared(NamedTuple):
    """A call that can run.

    Attributes:
        definition: the collective, under the method's name.
        place: see :class:`Call`.
        choice: the algorithm.
        call: the call; None where the MPI library alone understands the arguments.
    """

    definition: Collective
    place: Place
    choice: Choice
    call: Call | None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector; 0 where that is not known."""
        return self.call.nbytes if self.call is not None else 0

    @property
    def on_device(self) -> bool:
        """See :attr:`Call.on_device`."""
        return self.call is not None and self.call.on_device

    def described(self) -> str:
        """The call in words."""
        return f"{self.definition.method} by {self.choice.algorithm}"

    def facts(self) -> agree.CallSignature:
        """What must be equal on all ranks."""
        choice, root = self.choice, self.place.root
        known: dict[str, Any] = {"collective": self.definition.method}
        if self.definition.rooted:
            known["root"] = root
        known["algorithm"] = choice.words
        if self.call is not None:
            known["memory"] = "of devices" if self.call.on_device else "of the host"
        if choice.algorithm not in (NATIVE, CUDA_IPC, STAGED):
            algorithm = _schedule(self.definition, choice)
            known["schedule"] = agree.schedule_hash(
                self.definition.name, algorithm, choice.parameters, self.place.size, root
            )
        return {**known, **(self.call.facts() if self.call is not None else {})}
