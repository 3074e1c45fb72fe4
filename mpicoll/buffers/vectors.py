"""The buffers of collectives whose blocks may differ in length: Allgatherv, Alltoallw, ...

A vector is an array, or a list or tuple of it: ``[buffer, datatype]``, ``[buffer, counts]``,
``[buffer, (counts, displacements)]``, ``[buffer, counts, datatype]``,
``[buffer, (counts, displacements), datatype]``, ``[buffer, counts, displacements, datatype]``, as
in mpi4py: one integer as counts stands for equal blocks, one as displacements for equal distances;
without counts the buffer is cut into blocks that differ by at most one element.  For Alltoallw it
is ``[buffer, datatypes]``, ``[buffer, (counts, displacements), datatypes]`` or
``[buffer, counts, displacements, datatypes]``, with displacements in bytes.

Errors are those of :mod:`mpicoll.buffers`; and ValueError for a block that is not within the
buffer, and for receive blocks that overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from mpicoll.base.wording import plural
from mpicoll.buffers.buffer import Buffer
from mpicoll.buffers.datatypes import kind_of
from mpicoll.buffers.integers import is_integer, natural, naturals
from mpicoll.buffers.packing import Part
from mpicoll.buffers.pair import Operands, check_apart, check_types, no_place, order_error
from mpicoll.buffers.parsing import (
    by_value,
    goes_by_value,
    items,
    parse,
    reaching,
    view,
)
from mpicoll.errors import Unsupported
from mpicoll.schedule import layout
from mpicoll.schedule.collectives import Collective, Place
from mpicoll.schedule.layout import Layout


def parse_vector(message: Any, *, what: str, writable: bool, blocks: int) -> tuple[Buffer, Layout]:
    """The memory of a vector, up to the end of its last block, and its blocks in elements."""
    owner, counts, displacements, datatype = _unpack(message, what)
    cut = None if counts is None else naturals(counts, blocks, "counts", what)
    places = None
    if is_integer(displacements):
        distance = natural(displacements, "displacement", what)
        places = [distance * index for index in range(blocks)]
    elif displacements is not None:
        places = naturals(displacements, blocks, "displacements", what)
    if goes_by_value(owner, datatype):
        _, extent = datatype.Get_extent()

        def parts(held: int) -> list[Part]:
            vector = layout.displaced(
                _even(held, extent, blocks, what) if cut is None else cut, places
            )
            pairs = zip(vector.offsets, vector.counts, strict=True)
            return [Part(offset * extent, count, datatype) for offset, count in pairs]

        trusted = cut is not None
        return _by_value(message, sum(cut or ()), parts, what, writable, trusted)
    seen = view(owner, datatype, sum(cut or ()), what, writable)
    itemsize, trusted = seen.kind.itemsize, cut is not None and datatype is not None
    if cut is None:
        cut = _even(seen.memory.size, itemsize, blocks, what)
    vector = layout.displaced(cut, places)
    if trusted:
        seen = reaching(seen, vector.extent * itemsize, what)
    _check_blocks(layout.scaled(vector, itemsize), seen.memory.size, what, writable)
    used = seen.memory[: vector.extent * itemsize]
    return seen.buffer(used, sum(cut), 1, writable), vector


def _even(held: int, extent: int, blocks: int, what: str) -> list[int]:
    """Elements of each block where the message does not say."""
    if held % max(extent, 1) or (held and extent < 1):
        raise ValueError(
            f"{what}: {held} bytes are not a multiple of the datatype's {extent} bytes; pass counts"
        )
    return list(layout.even(held // max(extent, 1), blocks).counts)


def _by_value(
    message: Any,
    counted: int,
    parts: Callable[[int], list[Part]],
    what: str,
    writable: bool,
    trusted: bool,
) -> tuple[Buffer, Layout]:
    """A copy of elements of any datatypes, one part a block, and the blocks in bytes."""
    lengths: list[int] = []

    def noted(held: int) -> list[Part]:
        found = parts(held)
        lengths[:] = [part.nbytes for part in found]
        return found

    buffer = by_value(message, counted, noted, what, writable, trusted=trusted)
    return buffer, layout.displaced(lengths)


def parse_typed(message: Any, *, what: str, writable: bool, blocks: int) -> tuple[Buffer, Layout]:
    """The memory of a vector with a datatype a block, and its blocks in bytes."""
    owner = _unpack_typed(message, what)[0]
    numbers, places, datatypes = typed(message, blocks, what)
    if any(goes_by_value(owner, datatype) for datatype in datatypes):
        kinds = [
            d if goes_by_value(owner, d) else MPI.Datatype(kind_of(d, what).datatype)
            for d in datatypes
        ]
        parts = [*map(Part, places, numbers, kinds)]
        return _by_value(message, sum(numbers), lambda held: parts, what, writable, True)
    sizes = [kind_of(datatype, what).itemsize for datatype in datatypes]
    seen = view(owner, MPI.BYTE, sum(numbers), what, writable)
    vector = layout.displaced(
        [count * size for count, size in zip(numbers, sizes, strict=True)], places
    )
    seen = reaching(seen, vector.extent, what)
    _check_blocks(vector, seen.memory.size, what, writable)
    used = seen.memory[: vector.extent]
    return seen.buffer(used, sum(vector.counts), 1, writable), vector


def typed(message: Any, blocks: int, what: str) -> tuple[list[int], list[int], list[Any]]:
    """Count, displacement in bytes and datatype of each block of such a vector."""
    _, counts, displacements, datatypes = _unpack_typed(message, what)
    if counts is None and displacements is None:
        counts, displacements = 1, 0
    if len(datatypes) != blocks:
        raise ValueError(
            f"{what}: {plural(len(datatypes), 'datatype')} for {plural(blocks, 'rank')}; "
            "pass one a rank"
        )
    numbers = naturals(counts, blocks, "counts", what)
    return numbers, naturals(displacements, blocks, "displacements", what), datatypes


def count(message: Any, *, what: str) -> int:
    """Elements of a buffer; 0 if it is refused, -1 if it is unsupported."""
    try:
        return parse(message, what=what).length
    except Unsupported:
        return -1
    except (TypeError, ValueError, BufferError):
        return 0


def _unpack(message: Any, what: str) -> tuple[Any, Any, Any, Any]:
    """Buffer, counts, displacements and datatype; None for what is not there."""
    owner, counts, displacements, datatype = items(
        message, what, "[buffer, (counts, displacements), datatype] or a shorter form of it"
    )
    if isinstance(counts, tuple) and len(message) < 4:
        if len(counts) != 2:
            raise ValueError(
                f"{what}: a tuple of {plural(len(counts), 'item')} in the place of "
                "(counts, displacements); write counts alone as a list"
            )
        counts, displacements = counts
    return owner, counts, displacements, datatype


def _unpack_typed(message: Any, what: str) -> tuple[Any, Any, Any, list[Any]]:
    """Buffer, counts, displacements and datatypes; None for what is not there."""
    if isinstance(message, (list, tuple)) and 2 <= len(message) <= 4:
        owner, *given, datatypes = message
        with suppress(TypeError, ValueError):
            counts, displacements = (
                given if len(given) == 2 else given[0] if given else (None, None)
            )
            return owner, counts, displacements, [*datatypes]
    raise TypeError(
        f"{what}: {message!r} in the place of [buffer, (counts, displacements in bytes), datatypes]"
    )


def without_null(message: Any) -> Any:
    """A message of Alltoallw with ``MPI.BYTE`` for ``MPI.DATATYPE_NULL`` where the count is 0.

    Not all MPI libraries take that one.  What is wrong with a message is for others to say.
    """
    try:
        owner, counts, displacements, datatypes = _unpack_typed(message, "buffer")
        null = [
            not count and datatype == MPI.DATATYPE_NULL
            for count, datatype in zip(counts, datatypes, strict=True)
        ]
    except (TypeError, ValueError):
        return message
    if not any(null):
        return message
    kinds = [MPI.BYTE if unused else kind for unused, kind in zip(null, datatypes, strict=True)]
    return [owner, counts, displacements, kinds]


def _check_blocks(vector: Layout, held: int, what: str, apart: bool) -> None:
    """Blocks, in bytes, must be within the buffer, and apart where they are written."""
    blocks = sorted(
        (offset, count, rank)
        for rank, (offset, count) in enumerate(zip(vector.offsets, vector.counts, strict=True))
        if count
    )
    end, before = 0, 0
    for offset, count, rank in blocks:
        if offset + count > held:
            raise ValueError(
                f"{what}: block {rank} ends at byte {offset + count}, behind the end of a buffer "
                f"of {plural(held, 'byte')}; pass a larger buffer, smaller counts or displacements"
            )
        if apart and offset < end:
            raise ValueError(
                f"{what}: blocks {before} and {rank} overlap, so that the result is undefined; "
                "change counts or displacements"
            )
        end, before = offset + count, rank


def operands(
    definition: Collective, place: Place, sendbuf: Any, recvbuf: Any, counts: Sequence[int] | None
) -> Operands:
    """Parse and check the two buffers of a method whose blocks vary as one rank calls it.

    Args:
        definition: the collective, under the method's name.
        place: rank, size and root.
        sendbuf, recvbuf: as the caller passed them; what is not significant is not looked at.
        counts: elements of each rank's block of the result (Reduce_scatter).

    Raises:
        TypeError, ValueError, BufferError, Unsupported: see :func:`mpicoll.buffers.pair.operands`.
    """
    if definition.name == "reduce_scatter":
        return _reduce_scatter(definition, place, sendbuf, recvbuf, counts)
    scatters = definition.name == "scatter"
    sends = not definition.input_alone and bool([*definition.held(place)])
    receives = not definition.output_alone and bool([*definition.wanted(place)])
    whole, alone = (sendbuf, recvbuf) if scatters else (recvbuf, sendbuf)
    if alone is MPI.IN_PLACE and (sends or receives):
        buffer, cut = _side(definition, place, whole, not scatters, True)
        return Operands(buffer, buffer, True, (cut, cut))
    for side, given in (("send", sendbuf), ("receive", recvbuf)):
        if given is MPI.IN_PLACE:
            raise no_place(definition, side, place)
    if scatters and not sends:
        recv, output = _side(definition, place, recvbuf, True, False)
        return Operands(None, recv, False, (output, output))
    send, input = _side(definition, place, sendbuf, False, sends)
    if not sends and not receives:
        return Operands(send, None, False, (input, input))
    recv, output = _side(definition, place, recvbuf, True, receives)
    _check_pair(definition, send, recv, input.counts[place.rank], output.counts[place.rank])
    _check_apart(definition, (send, input, sends), (recv, output, receives))
    # Where one side is the rank's own block alone, the other knows the lengths of all.
    return Operands(send, recv, False, (input if sends else output, output if receives else input))


def _side(
    definition: Collective, place: Place, message: Any, writable: bool, whole: bool
) -> tuple[Buffer, Layout]:
    """A buffer of blocks of all ranks, or of this rank's block alone; its blocks in bytes."""
    what = "receive buffer" if writable else "send buffer"
    if not whole:
        alone = parse(message, what=what, writable=writable, moved=True)
        lengths = [alone.block_bytes * (rank == place.rank) for rank in range(place.size)]
        return alone, layout.displaced(lengths)
    read = parse_typed if definition.method == "Alltoallw" else parse_vector
    buffer, vector = read(message, what=what, writable=writable, blocks=place.size)
    return buffer, layout.scaled(vector, buffer.itemsize)


def _reduce_scatter(
    definition: Collective, place: Place, sendbuf: Any, recvbuf: Any, counts: Any
) -> Operands:
    if recvbuf is MPI.IN_PLACE:
        raise no_place(definition, "receive", place)
    in_place = sendbuf is MPI.IN_PLACE
    recv = parse(recvbuf, what="receive buffer", writable=True)
    send = recv if in_place else parse(sendbuf, what="send buffer")
    cut = layout.displaced(naturals(counts, place.size, "recvcounts", "receive buffer"))
    total, own = sum(cut.counts), cut.counts[place.rank]
    needed = [("send", send, total)]
    if not in_place:
        needed.append(("receive", recv, own))
        check_types(send, recv, reduces=True)
        _check_apart(definition, (send, cut, False), (recv, cut, False))
        _check_order(send, recv)
    for side, buffer, count in needed:
        if buffer.length != count:
            raise ValueError(
                f"{side} buffer of {plural(buffer.length, 'element')}, but recvcounts="
                f"{list(cut.counts)} ask for {count}; change one, or pass [buffer, count, datatype]"
            )
    return Operands(send, recv, in_place, (cut, cut))


def _check_pair(
    definition: Collective, send: Buffer, recv: Buffer, sent: int, received: int
) -> None:
    """What a rank sends to itself must be what it receives from itself."""
    if definition.method != "Alltoallw":
        check_types(send, recv, reduces=False)
    if sent != received:
        raise ValueError(
            f"this rank sends {plural(sent, 'byte')} to itself but receives {received}: the counts "
            "must be equal; change one"
        )
    _check_order(send, recv)


def _check_order(send: Buffer, recv: Buffer) -> None:
    """Blocks of any lengths do not say which elements of two shapes correspond."""
    if {send.order, recv.order} == {"C", "F"}:
        raise order_error(send, recv)


def _intervals(buffer: Buffer, blocks: Layout, whole: bool) -> list[tuple[int, int]]:
    """Addresses of the bytes used, first and behind the last."""
    base = buffer.memory.ctypes.data
    pairs = zip(blocks.offsets, blocks.counts, strict=True) if whole else [(0, buffer.memory.size)]
    return [(base + offset, base + offset + count) for offset, count in pairs if count]


def _check_apart(
    definition: Collective, send: tuple[Buffer, Layout, bool], recv: tuple[Buffer, Layout, bool]
) -> None:
    """The blocks used must be apart; of strided arrays, the arrays."""
    if send[0].packed is not None or recv[0].packed is not None:
        check_apart(send[0], recv[0], definition)
        return
    sent, received = _intervals(*send), _intervals(*recv)
    if any(a < d and c < b for a, b in sent for c, d in received):
        side = "receive" if definition.name == "scatter" else "send"
        raise ValueError(
            "blocks of send and receive buffer overlap, which MPI forbids; pass MPI.IN_PLACE as "
            f"the {side} buffer, or a copy"
        )
