"""Parse and check the buffers that mpi4py accepts: each becomes a flat view of its memory.

A message is an array (or bytes, array.array, memoryview, DLPack object, ...), or a list or tuple of
it: ``[buffer, datatype]``, ``[buffer, count]``, ``[buffer, count, datatype]``,
``[buffer, (count, displacement), datatype]``, ``[buffer, count, displacement, datatype]``.
Counts and displacements are in elements of the datatype.  A count is that of one block where a
collective takes a block a rank (all-gather's receive buffer, ...), as in MPI.

A contiguous array, in C or Fortran order, is used in place, as in mpi4py.  Any other array is
copied, in the order of its axes in memory: Fortran's if the first axis has the smallest strides,
else C's.  Counts and displacements are in its elements, in that order.

A count given together with a datatype is not checked: it may reach beyond the memory that the owner
reports, as in mpi4py.  :attr:`Buffer.beyond` says so.

Errors are of mpi4py's classes: TypeError for an object that is no buffer or has no datatype,
KeyError for an unknown datatype code, ValueError for counts, BufferError for memory that is not
writable.  Legal buffers that mpicoll cannot handle raise :class:`Unsupported`, so that the caller
can pass them to the MPI library.  This must be the same on all ranks.  Collectives that only move
data require equal type signatures, so derived datatypes are copied (see
:mod:`mpicoll.buffers.packing`).  Reductions require equal datatypes, so derived datatypes are
unsupported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from mpicoll.base import dlpack
from mpicoll.base.wording import plural
from mpicoll.buffers import device_packing, packing
from mpicoll.buffers.buffer import Buffer, Bytes, Kind, View
from mpicoll.buffers.datatypes import byte_order_error, kind_of, kind_of_dtype
from mpicoll.buffers.integers import natural
from mpicoll.buffers.packing import Packed, Part
from mpicoll.cuda.arrays import DeviceArray, is_immutable, recognise
from mpicoll.errors import Unsupported

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "by_value",
    "goes_by_value",
    "items",
    "parse",
    "reaching",
    "view",
]


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
        TypeError: no buffer, or no MPI datatype; a KeyError too, for the code of none.
        ValueError: a count that does not fit the buffer.
        BufferError: not writable, not in this machine's byte order, not in memory that the CPU
            reaches; not contiguous, where it is no array or has a derived datatype.
        Unsupported: derived datatypes, ``MPI.BOTTOM``.
    """
    owner, count, displacement, datatype = _unpack(message, what)
    if moved and goes_by_value(owner, datatype):
        _, extent = datatype.Get_extent()

        def parts(held: int) -> list[Part]:
            entries = held - displacement * extent
            number = blocks * (_share(entries, extent, blocks, what) if count is None else count)
            return [Part(displacement * extent, number, datatype)]

        trusted = count is not None
        return by_value(message, count or 0, parts, what, writable, blocks, trusted=trusted)
    seen = view(owner, datatype, count or 0, what, writable)
    return _range(seen, count, displacement, blocks, what, writable, datatype is not None)


def view(owner: Any, datatype: Any, counted: int, what: str, writable: bool) -> View:
    """All of the owner's elements.

    ``datatype`` overrules the owner's own; ``counted``: elements that the message asks for, as far
    as it says.  Raises as :func:`parse` does.
    """
    kind = None if datatype is None else kind_of(datatype, what)
    if owner is None or owner is MPI.BOTTOM:
        return View(*_bottom(owner, counted, kind, what))
    array = _array(owner, what)
    if isinstance(array, DeviceArray):
        return _device_view(array, kind, writable, what)
    dtype = array.dtype
    if dtype.hasobject or dtype.itemsize == 0:
        raise TypeError(
            f"{what}: elements of dtype {dtype} have no bytes to send; convert them by "
            "array.astype, or send objects by the lower-case method"
        )
    if kind is None:
        kind = kind_of_dtype(dtype, what)
    elif not dtype.isnative and kind.datatype != MPI.BYTE:
        raise byte_order_error(dtype, what)
    order = _order(array)
    if writable and not array.flags.writeable:
        raise BufferError(
            f"{what}: read-only; pass a writable array (array.copy(), or bytearray for bytes)"
        )
    if array.flags.forc:
        return View(array.ravel(order="K").view(np.uint8), kind, order, array)
    _check_distinct(array, writable, what)
    packed = packing.strided(array, order)
    return View(packed.memory, kind, order, array, packed)


def _check_distinct(array: npt.NDArray[Any] | DeviceArray, writable: bool, what: str) -> None:
    """Raise if elements that are written have one address."""
    if writable and any(n > 1 and not s for n, s in zip(array.shape, array.strides, strict=True)):
        raise BufferError(
            f"{what}: several elements at one address (shape {array.shape}, strides "
            f"{array.strides}); pass array.copy()"
        )


def _device_view(array: DeviceArray, kind: Kind | None, writable: bool, what: str) -> View:
    """All elements of an array in device memory."""
    dtype = array.dtype
    if kind is None:
        kind = Kind(None, None, array.itemsize) if dtype is None else kind_of_dtype(dtype, what)
    elif dtype is not None and not dtype.isnative and kind.datatype != MPI.BYTE:
        raise byte_order_error(dtype, what)
    if writable and not array.writable:
        name = type(array.owner).__name__
        raise BufferError(
            f"{what}: a {name} that is read-only in device memory; pass a writable "
            "array, cupy.array(array) for example"
        )
    order = _order(array.elements)
    if array.is_contiguous:
        return View(array.addresses, kind, order, array, device=array)
    _check_distinct(array, writable, what)
    packed = device_packing.strided(array, order, what)
    return View(packed.memory, kind, order, array, packed, packed.target)


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
    *,
    trusted: bool,
) -> Buffer:
    """A buffer of bytes that are a copy of elements of any datatypes.

    Args:
        message: the argument, a list or tuple that begins with the owner of the memory.
        counted: elements that it asks for, as far as it says.
        parts: the elements, given the bytes of memory that there are.
        what, writable, blocks: see :func:`parse`.
        trusted: whether they may reach beyond that memory.

    Raises:
        TypeError, ValueError, BufferError: see :func:`parse`.
    """
    owner, beyond = message[0], ""
    if owner is MPI.BOTTOM:
        packed = packing.absolute(parts(0), what)
    else:
        seen = view(owner, MPI.BYTE, counted, what, writable)
        if seen.packed is not None:
            raise BufferError(
                f"{what}: not contiguous, but a derived datatype says where elements are in "
                "memory; pass the array that this one is a view of, or a contiguous copy"
            )
        elements = parts(seen.memory.size)
        beyond = packing.beyond(elements, seen.memory.size)
        if beyond and not (trusted and seen.device is None):
            raise ValueError(f"{what}: {beyond}; pass a larger buffer or a smaller count")
        if seen.device is not None:
            there = device_packing.typed(seen.device, elements, what)
            return _of_bytes(there, writable, blocks, device=there.target)
        if beyond:
            base = seen.memory.ctypes.data
            moved = [part._replace(offset=base + part.offset) for part in elements]
            packed = packing.absolute(moved, what)
        else:
            packed = packing.typed(seen.memory, elements)
    return _of_bytes(packed, writable, blocks, given=message, beyond=_warned(what, beyond))


def _of_bytes(packed: Packed, writable: bool, blocks: int, **more: Any) -> Buffer:
    return Buffer(
        packed.memory,
        packed.memory.size // blocks,
        blocks,
        np.dtype(np.uint8),
        1,
        MPI.BYTE,
        writable,
        packed=packed,
        **more,
    )


def items(message: Any, what: str, form: str) -> tuple[Any, Any, Any, Any]:
    """Buffer, count, displacement and datatype as they are given; None for what is not there.

    Args:
        message: a buffer, or a list of these.
        what: names it in errors.
        form: how a list may look, for errors.

    Raises:
        ValueError: a list of one item, or of more than four.
    """
    if not isinstance(message, (list, tuple)):
        return message, None, None, None
    match message:
        case [owner, MPI.Datatype() | str() as datatype]:
            return owner, None, None, datatype
        case [owner, count]:
            return owner, count, None, None
        case [owner, count, datatype]:
            return owner, count, None, datatype
        case [owner, count, displacement, datatype]:
            return owner, count, displacement, datatype
    raise ValueError(f"{what}: a list of {plural(len(message), 'item')}; pass {form}")


def _unpack(message: Any, what: str) -> tuple[Any, int | None, int, Any]:
    """Buffer, count (None: all there is), displacement and datatype (None: the buffer's own)."""
    owner, count, displacement, datatype = items(
        message,
        what,
        "[buffer, count, datatype] or a shorter form of it (for a list of numbers: "
        "numpy.array(numbers))",
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


def _bottom(owner: Any, counted: int, kind: Kind | None, what: str) -> tuple[Bytes, Kind]:
    if owner is MPI.BOTTOM:
        raise Unsupported(f"{what} is MPI.BOTTOM (absolute addresses)")
    if kind is None:
        raise TypeError(f"{what}: None is no buffer; pass an array (of length 0 for nothing)")
    if counted:
        raise ValueError(f"{what}: the buffer is None but the count is {counted}; pass an array")
    return np.empty(0, np.uint8), kind


def _array(owner: Any, what: str) -> npt.NDArray[Any] | DeviceArray:
    """The owner as an array."""
    if isinstance(owner, np.ndarray):
        return owner.view(np.ndarray)
    refusal: Exception | None = None
    try:
        return np.asarray(memoryview(owner))
    except TypeError:
        pass  # has no buffer
    except Exception as error:  # of any class: JAX's, of what is on a GPU, is its own
        refusal = error
    on_device = recognise(owner, what)
    if on_device is not None:
        return on_device
    device = getattr(owner, "__dlpack_device__", None)
    if device is not None:
        return _exported(owner, int(device()[0]), what)
    if refusal is not None:
        raise TypeError(f"{what}: {refusal}; pass [buffer, count, datatype]")
    raise TypeError(
        f"{what}: expected an array, bytes or another buffer, or [buffer, count, datatype], not "
        f"{type(owner).__name__}"
    )


def _exported(owner: Any, device: int, what: str) -> npt.NDArray[Any]:
    """An array that is exported by DLPack from memory of the host."""
    if device not in dlpack.HOST:
        raise BufferError(
            f"{what}: a {type(owner).__name__} in the memory of a device that is no CUDA one "
            f"(DLPack's type {device}); copy it to the host"
        )
    found = dlpack.look(owner, what)
    return found._replace(writable=found.writable and not is_immutable(owner)).array()


def _order(array: npt.NDArray[Any]) -> str:
    """The order of the axes, "" where both orders are the same."""
    flags = array.flags
    if flags.c_contiguous or flags.f_contiguous:
        return "" if flags.c_contiguous and flags.f_contiguous else "FC"[flags.c_contiguous]
    strides = [abs(s) for n, s in zip(array.shape, array.strides, strict=True) if n > 1]
    if len(strides) < 2:
        return ""
    return "F" if all(strides) and strides == sorted(strides) else "C"


def _range(
    seen: View,
    count: int | None,
    displacement: int,
    blocks: int,
    what: str,
    writable: bool,
    typed: bool,
) -> Buffer:
    """The bytes used, as blocks; ``typed``: whether the message names the datatype."""
    kind, held = seen.kind, seen.memory.size
    offset = displacement * kind.itemsize
    if offset > held:
        raise ValueError(
            f"{what}: displacement {displacement} is beyond the end of a buffer of "
            f"{plural(held // kind.itemsize, 'element')} of {plural(kind.itemsize, 'byte')}"
        )
    if count is None:
        count = _share(held - offset, kind.itemsize, blocks, what)
    elif typed:
        seen = reaching(seen, offset + count * blocks * kind.itemsize, what)
    used = count * blocks * kind.itemsize
    if used > seen.memory.size - offset:
        times = f"{blocks} blocks of " if blocks > 1 else ""
        raise ValueError(
            f"{what}: too small: {times}{plural(count, 'element')} of "
            f"{plural(kind.itemsize, 'byte')} would need {plural(used, 'byte')}, there are "
            f"{held - offset}; pass a larger buffer or a smaller count"
        )
    return seen.buffer(seen.memory[offset : offset + used], count, blocks, writable)


def reaching(seen: View, end: int, what: str) -> View:
    """The same memory up to a byte that the caller names, behind what the owner tells of.

    What goes by value, or lies in the memory of a device, stays as it is.
    """
    held = seen.memory.size
    if end <= held or seen.packed is not None or seen.device is not None:
        return seen
    memory = packing.at(seen.memory.ctypes.data, end)
    beyond = f"counts reach to byte {end} of a buffer of {plural(held, 'byte')}"
    return seen._replace(memory=memory, beyond=_warned(what, beyond))


def _warned(what: str, beyond: str) -> str:
    """What to say of a buffer that is used beyond its end."""
    return beyond and f"{what}: {beyond}, which is used as the message says, unchecked"


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
            f"{what}: {plural(entries, 'element')} cannot be cut into {blocks} equal blocks, one a "
            f"rank; make their number a multiple of {blocks} or pass [buffer, count, datatype]"
        )
    return count
