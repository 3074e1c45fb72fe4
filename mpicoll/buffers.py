"""What mpi4py takes as a buffer, as a flat view of the memory used: parsed, checked, never copied.

A message is an array (or bytes, array.array, memoryview, DLPack object, ...), or a list or tuple of
it: ``[buffer, datatype]``, ``[buffer, count]``, ``[buffer, count, datatype]``,
``[buffer, (count, displacement), datatype]``, ``[buffer, count, displacement, datatype]``.
Counts and displacements are in elements of the datatype.  A count is that of one block where a
collective takes a block a rank (all-gather's receive buffer, ...), as in MPI.

Errors are of the classes that mpi4py raises: TypeError for what is no buffer or has no datatype,
ValueError for counts, BufferError for memory that is not contiguous or not writable.  What a
program may legally pass but mpicoll cannot serve raises :class:`Unsupported` instead, so that the
caller can hand it to the MPI library.  That must be the same on all ranks: to collectives that only
move data, of which MPI wants equal type signatures alone, derived datatypes go by value (see
:mod:`mpicoll.packing`); to reductions, of which it wants equal datatypes, they are unsupported.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from mpi4py import MPI
from mpi4py.util.dtlib import to_numpy_dtype

from mpicoll import packing
from mpicoll.collectives import Collective, Place
from mpicoll.layout import Layout
from mpicoll.packing import Packed, Part

__all__ = [
    "Buffer",
    "Kind",
    "Operands",
    "Unsupported",
    "by_value",
    "differ",
    "goes_by_value",
    "kind_of",
    "natural",
    "no_place",
    "operands",
    "parse",
    "view",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Type codes of NumPy that name the same type in MPI ("E" does not: bfloat16 there, complex here).
_CODES = frozenset("?bhilqBHILQefdgFDGcS")
#: DLPack device types whose memory the CPU reaches: CPU, CUDA and ROCm pinned, CUDA managed.
_HOST = (1, 3, 11, 13)


class Unsupported(TypeError):
    """A legal argument that only the MPI library's own collective can serve; says why."""


@dataclass(frozen=True)
class Buffer:
    """One argument of a collective.

    Attributes:
        memory: the bytes used, all blocks; a view of the caller's memory.
        count: elements of one block.
        blocks: number of blocks.
        dtype: NumPy dtype of an element, None if it has none (then only moved, not reduced).
        itemsize: bytes of an element.
        datatype: MPI datatype of an element, None if the library has none.
        writable: whether the memory may be written.
        order: "C" or "F" for an array of which the order of the axes matters, else "".
        packed: what stands behind memory that is a copy; then elements are bytes.
        given: the argument as mpi4py takes it, where that is not this memory.
    """

    memory: Bytes
    count: int
    blocks: int
    dtype: np.dtype[Any] | None
    itemsize: int
    datatype: MPI.Datatype | None
    writable: bool
    order: str = ""
    packed: Packed | None = None
    given: Any = None

    @property
    def name(self) -> str:
        """The element's type in words."""
        if self.datatype is not None:
            return str(self.datatype.Get_name())
        return str(self.dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.count * self.itemsize

    def message(self, reduced: bool) -> list[Any]:
        """The argument as mpi4py wants it: memory, count of one block, datatype."""
        if self.given is not None:
            return list(self.given)
        if self.datatype is None:
            return [self.memory, self.block_bytes, MPI.BYTE]
        if reduced and self.datatype == MPI.BYTE:
            return [self.memory, self.count, MPI.UINT8_T]  # bytes are no numbers to MPI
        return [self.memory, self.count, self.datatype]


class Kind(NamedTuple):
    """An element: its MPI datatype, its NumPy dtype, its extent in bytes."""

    datatype: MPI.Datatype | None
    dtype: np.dtype[Any] | None
    itemsize: int


def parse(
    message: Any,
    *,
    what: str = "buffer",
    writable: bool = False,
    blocks: int = 1,
    moved: bool = False,
) -> Buffer:
    """The memory, count and type that a message names.

    Args:
        message: see the module's docstring.
        what: how to call it in an error, e.g. "send buffer".
        writable: whether it is going to be written.
        blocks: number of blocks; an explicit count is that of one block.
        moved: whether it is only moved, not reduced, so that any datatype will do.

    Raises:
        TypeError: no buffer, or no MPI datatype.
        ValueError: a count that does not fit the buffer.
        BufferError: not contiguous, not writable, not in this machine's byte order, not in memory
            that the CPU reaches.
        Unsupported: derived datatypes, ``MPI.BOTTOM``.
    """
    owner, count, displacement, datatype = _unpack(message, what)
    if moved and goes_by_value(owner, datatype):
        _, extent = datatype.Get_extent()

        def parts(held: int) -> list[Part]:
            entries = held - displacement * extent
            number = blocks * (_share(entries, extent, blocks, what) if count is None else count)
            return [Part(displacement * extent, number, datatype)]

        return by_value(message, count or 0, parts, what, writable, blocks)
    memory, kind, order = view(owner, datatype, count or 0, what, writable)
    memory, count = _range(memory, count, displacement, kind, blocks, what)
    return Buffer(memory, count, blocks, kind.dtype, kind.itemsize, kind.datatype, writable, order)


def view(
    owner: Any, datatype: Any, counted: int, what: str, writable: bool
) -> tuple[Bytes, Kind, str]:
    """All of the owner's bytes, the kind of its elements, and the order of its axes.

    ``datatype`` overrules the owner's own; ``counted``: elements that the message asks for, as far
    as it says.  Raises as :func:`parse` does.
    """
    kind = None if datatype is None else kind_of(datatype, what)
    if owner is None or owner is MPI.BOTTOM:
        memory, dtype, order = _bottom(owner, counted, kind, what)
    else:
        memory, dtype, order = _view(owner, writable, what)
    if kind is None:
        kind = _type_of_dtype(dtype, what)
    elif not dtype.isnative and kind.datatype != MPI.BYTE:
        raise _byte_order(dtype, what)
    return memory, kind, order


def goes_by_value(owner: Any, datatype: Any) -> bool:
    """Whether elements that are only moved have to be copied one behind the other."""
    typed = isinstance(datatype, MPI.Datatype) and datatype != MPI.DATATYPE_NULL
    return typed and (owner is MPI.BOTTOM or not packing.is_flat(datatype))


def by_value(
    message: Any,
    counted: int,
    parts: Callable[[int], Sequence[Part]],
    what: str,
    writable: bool,
    blocks: int = 1,
) -> Buffer:
    """A buffer of bytes that are a copy of elements of any datatypes.

    Args:
        message: the argument, a list or tuple that begins with the owner of the memory.
        counted: elements that it asks for, as far as it says.
        parts: the elements, given the bytes of memory that there are.
        what, writable, blocks: see :func:`parse`.

    Raises:
        TypeError, ValueError, BufferError: see :func:`parse`.
    """
    owner = message[0]
    if owner is MPI.BOTTOM:
        packed = packing.absolute(parts(0), what)
    else:
        byte = kind_of(MPI.BYTE, what)
        memory = view(owner, byte.datatype, counted, what, writable)[0]
        packed = packing.typed(memory, parts(memory.size), what)
    return Buffer(
        packed.memory,
        packed.memory.size // blocks,
        blocks,
        np.dtype(np.uint8),
        1,
        MPI.BYTE,
        writable,
        packed=packed,
        given=message,
    )


def _unpack(message: Any, what: str) -> tuple[Any, int | None, int, Any]:
    """Buffer, count (None: all there is), displacement and datatype (None: the buffer's own)."""
    if not isinstance(message, (list, tuple)):
        return message, None, 0, None
    owner: Any
    count: Any = None
    displacement: Any = None
    datatype: Any = None
    if len(message) == 2:
        owner, second = message
        if isinstance(second, (MPI.Datatype, str)):
            datatype = second
        else:
            count = second
    elif len(message) == 3:
        owner, count, datatype = message
    elif len(message) == 4:
        owner, count, displacement, datatype = message
    else:
        raise ValueError(
            f"{what}: a list of {len(message)} items; pass [buffer, count, datatype] or a shorter "
            "form of it (for a list of numbers: numpy.array(numbers))"
        )
    if isinstance(count, (list, tuple)):
        if len(count) != 2 or len(message) == 4:
            raise ValueError(f"{what}: {count!r} in the place of (count, displacement)")
        count, displacement = count
    return (
        owner,
        None if count is None else natural(count, "count", what),
        0 if displacement is None else natural(displacement, "displacement", what),
        datatype,
    )


def natural(value: Any, name: str, what: str) -> int:
    """A count or displacement as an int.

    Raises:
        TypeError: no integer.
        ValueError: negative.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: {name} {value!r} must be an integer") from None
    if number < 0:
        raise ValueError(f"{what}: {name} {number} must not be negative")
    return number


def _bottom(
    owner: Any, counted: int, kind: Kind | None, what: str
) -> tuple[Bytes, np.dtype[Any], str]:
    if owner is MPI.BOTTOM:
        raise Unsupported(f"{what} is MPI.BOTTOM (absolute addresses)")
    if kind is None:
        raise TypeError(f"{what}: None is no buffer; pass an array (of length 0 for nothing)")
    if counted:
        raise ValueError(f"{what}: the buffer is None but the count is {counted}; pass an array")
    return np.empty(0, np.uint8), np.dtype(np.uint8), ""


def _view(owner: Any, writable: bool, what: str) -> tuple[Bytes, np.dtype[Any], str]:
    """A flat view of the owner's bytes, its elements' dtype, and the order of its axes."""
    if isinstance(owner, np.ndarray):
        array = owner.view(np.ndarray)
    else:
        array, memory = _array(owner, writable, what)
        if memory is not None:
            return memory, array.dtype, _order(array)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferError(
            f"{what}: not contiguous (shape {array.shape}, strides {array.strides}); pass "
            "numpy.ascontiguousarray(array)"
            + (" and copy its contents back afterwards" if writable else "")
        )
    if array.dtype.hasobject or array.dtype.itemsize == 0:
        raise TypeError(f"{what}: elements of dtype {array.dtype} have no bytes to send")
    if writable and not array.flags.writeable:
        raise BufferError(
            f"{what}: read-only; pass a writable array (array.copy(), or bytearray for bytes)"
        )
    return array.ravel(order="K").view(np.uint8), array.dtype, _order(array)


def _array(owner: Any, writable: bool, what: str) -> tuple[npt.NDArray[Any], Bytes | None]:
    """What is no array as an array; and its memory, if that cannot be had through the array."""
    try:
        return np.asarray(memoryview(owner)), None
    except TypeError:
        pass  # has no buffer
    except (ValueError, RuntimeError) as error:
        raise TypeError(f"{what}: {error}; pass [buffer, count, datatype]") from None
    device = getattr(owner, "__dlpack_device__", None)
    if device is None and not hasattr(owner, "__cuda_array_interface__"):
        raise TypeError(
            f"{what}: expected an array, bytes or another buffer, or [buffer, count, datatype], "
            f"not {type(owner).__name__}"
        )
    if device is None or device()[0] not in _HOST:
        raise BufferError(
            f"{what}: a {type(owner).__name__} in device memory, which this MPI library is not "
            "known to reach; copy it to the host"
        )
    try:
        array = np.from_dlpack(owner)
        # NumPy takes what comes without a read-only flag for read-only, mpi4py for writable.
        held = MPI.buffer.frombuffer(owner, readonly=not writable).cast("B")
        memory = np.frombuffer(held, np.uint8)
    except (BufferError, RuntimeError, TypeError) as error:
        raise BufferError(f"{what}: {error}; pass a contiguous array in host memory") from None
    return array, memory


def _order(array: npt.NDArray[Any]) -> str:
    """The order of the axes, "" where both orders are the same."""
    flags = array.flags
    if flags.c_contiguous and flags.f_contiguous:
        return ""
    return "C" if flags.c_contiguous else "F"


def kind_of(datatype: Any, what: str) -> Kind:
    """The kind of elements that a message names explicitly.  Raises as :func:`parse` does."""
    if isinstance(datatype, str):
        try:
            datatype = MPI.Datatype.fromcode(datatype)
        except ValueError:
            raise TypeError(f"{what}: no MPI datatype has the code {datatype!r}") from None
    if not isinstance(datatype, MPI.Datatype):
        raise TypeError(f"{what}: {datatype!r} in the place of an MPI datatype")
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError(f"{what}: the datatype is MPI.DATATYPE_NULL, which this library lacks")
    if not datatype.is_predefined:
        raise Unsupported(f"{what} has a derived datatype ({datatype.Get_name() or 'unnamed'})")
    return _predefined(datatype.handle)


@cache
def _predefined(handle: int) -> Kind:
    datatype = MPI.Datatype.fromhandle(handle)
    try:
        dtype = np.dtype(to_numpy_dtype(datatype))
    except (TypeError, ValueError):
        dtype = None
    if dtype is not None and dtype.itemsize != datatype.extent:
        dtype = None
    return Kind(datatype, dtype, datatype.extent)


def _type_of_dtype(dtype: np.dtype[Any], what: str) -> Kind:
    """The type that an array has by itself."""
    if not dtype.isnative:
        raise _byte_order(dtype, what)
    kind = _native(dtype)
    if kind is None:
        raise TypeError(
            f"{what}: no MPI datatype for elements of dtype {dtype}; to move its bytes pass "
            "[array, MPI.BYTE]"
        )
    return kind


@cache
def _native(dtype: np.dtype[Any]) -> Kind | None:
    if dtype.name == "bfloat16":
        datatype = getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL)
        return Kind(None if datatype == MPI.DATATYPE_NULL else datatype, dtype, 2)
    if dtype.char not in _CODES or dtype.names or (dtype.kind == "S" and dtype.itemsize > 1):
        return None
    try:
        return Kind(MPI.Datatype.fromcode(dtype.char), dtype, dtype.itemsize)
    except ValueError:
        return Kind(None, dtype, dtype.itemsize)


def _byte_order(dtype: np.dtype[Any], what: str) -> BufferError:
    return BufferError(
        f"{what}: dtype {dtype.str} is not in this machine's byte order; convert with "
        "array.astype(array.dtype.newbyteorder('='))"
    )


def _range(
    memory: Bytes, count: int | None, displacement: int, kind: Kind, blocks: int, what: str
) -> tuple[Bytes, int]:
    """The bytes used, and the elements of one block."""
    held, offset = memory.size, displacement * kind.itemsize
    if offset > held:
        raise ValueError(
            f"{what}: displacement {displacement} is beyond the end of a buffer of "
            f"{held // kind.itemsize} elements of {kind.itemsize} bytes"
        )
    if count is None:
        count = _share(held - offset, kind.itemsize, blocks, what)
    used = count * blocks * kind.itemsize
    if used > held - offset:
        times = f"{blocks} blocks of " if blocks > 1 else ""
        raise ValueError(
            f"{what}: too small: {times}{count} elements of {kind.itemsize} bytes need {used} "
            f"bytes, there are {held - offset}; pass a larger buffer or a smaller count"
        )
    return memory[offset : offset + used], count


def _share(held: int, extent: int, blocks: int, what: str) -> int:
    """Elements of one block where the buffer is cut into equal ones."""
    if held and extent < 1:
        raise ValueError(
            f"{what}: how many elements of {extent} bytes fit cannot be told; pass a count"
        )
    entries, rest = divmod(max(held, 0), max(extent, 1))
    if rest:
        raise ValueError(
            f"{what}: {held} bytes are not a multiple of the datatype's {extent} bytes; pass a "
            "count"
        )
    count, rest = divmod(entries, blocks)
    if rest:
        raise ValueError(
            f"{what}: {entries} elements cannot be cut into {blocks} equal blocks, one a "
            f"rank; make their number a multiple of {blocks} or pass [buffer, count, datatype]"
        )
    return count


@dataclass(frozen=True)
class Operands:
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
        TypeError, ValueError, BufferError: see :func:`parse`; and datatypes or counts of the two
            buffers that differ, buffers that overlap, ``MPI.IN_PLACE`` where it has no place.
        Unsupported: see :func:`parse`.
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
    if differ(send, recv, definition.reduces):
        raise ValueError(
            f"send buffer of {send.name} but receive buffer of {recv.name}: both must have the "
            "same datatype; convert one with array.astype"
        )
    if send.block_bytes != recv.block_bytes:
        unit = " a block" if definition.block_per_rank else ""
        raise ValueError(
            f"send buffer of {send.count} elements{unit} but receive buffer of {recv.count}: "
            "the counts must be equal; change one, or pass [buffer, count, datatype]"
        )
    if {send.order, recv.order} == {"C", "F"}:
        raise ValueError(
            f"send buffer in {send.order} order but receive buffer in {recv.order} order: the "
            "result would be transposed; copy one with numpy.asarray(array, order=...)"
        )
    if np.may_share_memory(send.memory, recv.memory):
        same = (
            send.memory.size == recv.memory.size
            and send.memory.ctypes.data == recv.memory.ctypes.data
        )
        how = "are the same memory" if same else "overlap"
        side = "receive" if definition.name == "scatter" else "send"
        raise ValueError(
            f"send and receive buffer {how}, which MPI forbids; pass MPI.IN_PLACE as the {side} "
            "buffer, or a copy"
        )


def differ(send: Buffer, recv: Buffer, reduces: bool) -> bool:
    """Whether two datatypes do not match.  What is only moved matches untyped bytes too."""
    if send.dtype is None or recv.dtype is None:
        return send.datatype != recv.datatype
    if not reduces and np.dtype(np.uint8) in (send.dtype, recv.dtype):
        return False
    return send.dtype != recv.dtype
