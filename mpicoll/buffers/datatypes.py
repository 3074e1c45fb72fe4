"""What datatypes mean: of MPI's, and of NumPy's."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util.dtlib import to_numpy_dtype

from mpicoll.buffers.buffer import Kind
from mpicoll.errors import UnknownDatatype, Unsupported

#: Type codes of NumPy that name the same type in MPI ("E" does not: bfloat16 there, complex here).
_CODES = frozenset("?bhilqBHILQefdgFDGcS")


def kind_of(datatype: Any, what: str) -> Kind:
    """The kind of elements that a message names explicitly.  Raises as :func:`parse` does."""
    if isinstance(datatype, str):
        try:
            datatype = MPI.Datatype.fromcode(datatype)
        except ValueError:
            raise UnknownDatatype(f"{what}: no MPI datatype has the code {datatype!r}") from None
    if not isinstance(datatype, MPI.Datatype):
        raise TypeError(
            f"{what}: {datatype!r} in the place of an MPI datatype such as MPI.DOUBLE (pass "
            "numbers as an array, by numpy.array)"
        )
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


def kind_of_dtype(dtype: np.dtype[Any], what: str) -> Kind:
    """The type that an array has by itself."""
    if not dtype.isnative:
        raise byte_order_error(dtype, what)
    kind = _native(dtype)
    if kind is None:
        raise UnknownDatatype(
            f"{what}: no MPI datatype for elements of dtype {dtype}; to move its bytes pass "
            "[array, MPI.BYTE]"
        )
    return kind


@cache
def _native(dtype: np.dtype[Any]) -> Kind | None:
    bfloat16 = dtype.name == "bfloat16"
    other = dtype.char not in _CODES or dtype.names or (dtype.kind == "S" and dtype.itemsize > 1)
    if other and not bfloat16:
        return None
    datatype = None
    # mpi4py may name what its MPI library does not have.
    with suppress(AttributeError, ValueError, MPI.Exception):
        found = MPI.BFLOAT16_T if bfloat16 else MPI.Datatype.fromcode(dtype.char)
        if found != MPI.DATATYPE_NULL and found.Get_size() == dtype.itemsize:
            datatype = found
    return Kind(datatype, dtype, dtype.itemsize)


def byte_order_error(dtype: np.dtype[Any], what: str) -> BufferError:
    return BufferError(
        f"{what}: dtype {dtype.str} is not in this machine's byte order; convert with "
        "array.astype(array.dtype.newbyteorder('='))"
    )
