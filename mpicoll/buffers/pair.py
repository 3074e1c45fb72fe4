"""The two buffers of a call, as one rank makes it: parsed, checked against each other.

Where one is in C and the other in Fortran order, element [i, j] of one goes to element [i, j] of
the other: one of them goes by value, in the order of the other.  The order in which the elements
travel is that of the buffer which every rank has, of the send buffer of a reduction, of the buffer
of one block where the other has a block of every rank along its first axis; so ranks agree on it
wherever those buffers are of one order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from mpicoll.base.wording import plural
from mpicoll.buffers import device_packing, packing
from mpicoll.buffers.buffer import Buffer
from mpicoll.buffers.parsing import parse
from mpicoll.cuda.arrays import DeviceArray
from mpicoll.schedule.collectives import Collective, Place
from mpicoll.schedule.layout import Layout

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"


class Operands(NamedTuple):
    """The buffers of one rank's call.

    Attributes:
        send: what the rank gives; None if nothing.
        recv: what the rank gets; None if nothing.  In place, ``send`` and ``recv`` name the same
            memory wherever the rank has both.
        in_place: whether the caller passed ``MPI.IN_PLACE`` (always so for a broadcast).
        layouts: the blocks of input and output, where their lengths may differ: in elements for
            reductions, else in bytes.  A block that this rank neither gives nor gets is empty.
    """

    send: Buffer | None
    recv: Buffer | None
    in_place: bool = False
    layouts: tuple[Layout, Layout] | None = None


def operands(definition: Collective, place: Place, sendbuf: Any, recvbuf: Any) -> Operands:
    """Parse and check the two buffers of a collective call as one rank makes it.

    A buffer that is not significant on this rank (the receive buffer of a gather away from the
    root, ...) is not looked at.

    Args:
        definition: the collective.
        place: rank, size and root, with a block a rank if the collective has that.
        sendbuf: as the caller passed it; None for a broadcast, which has one buffer.
        recvbuf: as the caller passed it.

    Raises:
        TypeError, ValueError, BufferError: see :func:`mpicoll.buffers.parse`; and datatypes or
            counts of the two buffers that differ, buffers that overlap, orders of axes that cannot
            be brought together, ``MPI.IN_PLACE`` where it has no place.
        Unsupported: see :func:`mpicoll.buffers.parse`.
    """
    if definition.name == "barrier":
        return Operands(None, None)
    moved = not definition.reduces
    sent, received = len([*definition.held(place)]), len([*definition.wanted(place)])
    if definition.name == "bcast":
        buffer = parse(recvbuf, what="buffer", writable=not place.is_root, moved=True)
        return Operands(buffer if place.is_root else None, buffer, in_place=True)
    scatter = definition.name == "scatter"
    if sendbuf is MPI.IN_PLACE or recvbuf is MPI.IN_PLACE:
        if recvbuf is MPI.IN_PLACE and not (scatter and place.is_root):
            raise no_place(definition, "receive", place)
        input_only = scatter or (definition.rooted and not received)
        if sendbuf is MPI.IN_PLACE and input_only:
            raise no_place(definition, "send", place)
        whole, what = (sendbuf, "send buffer") if scatter else (recvbuf, "receive buffer")
        buffer = parse(
            whole, what=what, writable=not scatter, blocks=max(sent, received), moved=moved
        )
        return Operands(buffer, buffer, in_place=True)
    send = parse(sendbuf, what="send buffer", blocks=sent, moved=moved) if sent else None
    recv = None
    if received:
        recv = parse(recvbuf, what="receive buffer", writable=True, blocks=received, moved=moved)
    if send is not None and recv is not None:
        _check_pair(send, recv, definition)
        send, recv = _in_one_order(send, recv, definition, place.size)
    return Operands(send, recv)


def no_place(definition: Collective, side: str, place: Place) -> ValueError:
    """The error for ``MPI.IN_PLACE`` where it cannot stand."""
    method = definition.method
    if definition.name == "scatter":
        rule = "its receive buffer at the root"
    else:
        rule = "its send buffer" + (" at the root" if definition.rooted else "")
    where = f" at rank {place.rank} (root is {place.root})" if definition.rooted else ""
    return ValueError(
        f"MPI.IN_PLACE as {side} buffer of {method}{where}: {method} takes it as {rule} alone; "
        "pass an array"
    )


def _check_pair(send: Buffer, recv: Buffer, definition: Collective) -> None:
    """Send and receive buffer must be of one type and length, and apart in memory."""
    check_types(send, recv, definition.reduces)
    if send.block_bytes != recv.block_bytes:
        unit = " a block" if definition.block_per_rank else ""
        raise ValueError(
            f"send buffer of {plural(send.length, 'element')}{unit} but receive buffer "
            f"of {recv.length}: the counts must be equal; change one, or pass [buffer, count, "
            "datatype]"
        )
    check_apart(send, recv, definition)


def check_apart(send: Buffer, recv: Buffer, definition: Collective) -> None:
    """Raise if two buffers have memory in common."""
    a, b = _held(send), _held(recv)
    if np.may_share_memory(a, b) and _shared(a, b):
        same = a.size == b.size and a.ctypes.data == b.ctypes.data and a.strides == b.strides
        how = "are the same memory" if same else "overlap"
        side = "receive" if definition.name == "scatter" else "send"
        raise ValueError(
            f"send and receive buffer {how}, which MPI forbids; pass MPI.IN_PLACE as the {side} "
            "buffer, or a copy"
        )


def _shared(a: Array, b: Array) -> bool:
    """Whether two arrays have bytes in common; also where that is too hard to tell."""
    try:
        return bool(np.shares_memory(a, b, max_work=_WORK))
    except RuntimeError:
        return True


#: Candidate solutions looked at to tell whether two strided arrays have bytes in common.
_WORK: Any = 10_000


def _held(buffer: Buffer) -> Array:
    """The caller's memory, all of it where it is strided."""
    if buffer.packed is None or buffer.array is None:
        return buffer.memory
    return buffer.array.elements if isinstance(buffer.array, DeviceArray) else buffer.array


def _in_one_order(
    send: Buffer, recv: Buffer, definition: Collective, size: int
) -> tuple[Buffer, Buffer]:
    """The buffers so that their elements lie in the same order, see the module.

    Raises:
        ValueError: their orders differ, and their shapes do not say which elements correspond.
    """
    if {send.order, recv.order} != {"C", "F"}:
        return send, recv
    a, b = _shape(send), _shape(recv)
    if a is None or b is None:
        raise order_error(send, recv)
    if definition.name == "alltoall" and a == b:
        # Block r is element r of the first axis, so both go in C order.
        return (
            (_ordered(send, "C", 1), recv) if send.order == "F" else (send, _ordered(recv, "C", 1))
        )
    if not definition.block_per_rank and a == b:
        return send, _ordered(recv, send.order, 1)
    if definition.input_alone and b in _of_blocks(a, size):
        return send, _ordered(recv, send.order, size)
    if definition.output_alone and a in _of_blocks(b, size):
        return _ordered(send, recv.order, size), recv
    raise order_error(send, recv)


def _shape(buffer: Buffer) -> tuple[int, ...] | None:
    """Shape of the array whose elements the message is, if it is all of them."""
    array = buffer.array
    return None if array is None or array.nbytes != buffer.memory.size else array.shape


def _of_blocks(block: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """Shapes of an array of ``size`` blocks along its first axis."""
    return [(size, *block), (size * block[0], *block[1:])]


def _ordered(buffer: Buffer, order: str, blocks: int) -> Buffer:
    """The same elements by value, each of some blocks along the first axis in an order."""
    array = buffer.array
    assert array is not None
    if isinstance(array, DeviceArray):
        there = device_packing.strided(array, order, "buffer", blocks)
        buffer = buffer._replace(device=there.target)
        return buffer._replace(memory=there.memory, packed=there, order=order)
    packed = packing.strided(array, order, blocks)
    return buffer._replace(memory=packed.memory, packed=packed, order=order)


def order_error(send: Buffer, recv: Buffer) -> ValueError:
    """The error for a C and an F order that cannot be brought together."""
    return ValueError(
        f"send buffer in {send.order} order but receive buffer in {recv.order} order: the "
        "result would be transposed; copy one with numpy.asarray(array, order=...)"
    )


def check_types(send: Buffer, recv: Buffer, reduces: bool) -> None:
    """Raise if two datatypes do not match.  What is only moved matches untyped bytes too."""
    if send.dtype is None or recv.dtype is None:
        match = send.datatype == recv.datatype
    else:
        untyped = not reduces and np.dtype(np.uint8) in (send.dtype, recv.dtype)
        match = untyped or send.dtype == recv.dtype
    if not match:
        raise ValueError(
            f"send buffer of {send.name} but receive buffer of {recv.name}: both must have the "
            "same datatype; convert one with array.astype"
        )
