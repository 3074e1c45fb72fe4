"""What an object exports by DLPack, looked at and not taken over, as mpi4py does.

Whoever takes an export over renames its capsule, and calls its deleter later: then a producer that
frees its descriptor with the capsule leaves that deleter nothing.  Whoever looks only keeps the
capsule, which frees the export when it goes.  See
https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

#: DLPack's numbers of devices: the host; CUDA's, and what CUDA devices share with the host.
CPU, CUDA, CUDA_MANAGED = 1, 2, 13
#: Those whose memory the CPU reaches: CPU, CUDA and ROCm pinned, CUDA managed.
HOST = (CPU, 3, 11, CUDA_MANAGED)

#: Its types of elements, in NumPy's letters.
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_BFLOAT = 4
_READ_ONLY = 1


class Export(NamedTuple):
    """An array that an object exports.

    Attributes:
        address: of the first element.
        dtype: of an element; None where NumPy has none for it, then it is only moved.
        itemsize: bytes of an element.
        shape, strides: elements along each axis, and bytes from one to the next.
        writable: whether the memory may be written.
        capsule: keeps the memory alive.
    """

    address: int
    dtype: np.dtype[Any] | None
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writable: bool
    capsule: Any

    def array(self) -> npt.NDArray[Any]:
        """The same as NumPy's, where it is in memory of the host; of no type if it has none."""
        found = array_at(self.address, self.itemsize, self.shape, self.strides, self.capsule)
        if not self.writable:
            found.flags.writeable = False
        return found if self.dtype is None else found.view(self.dtype)


class _Addresses:
    """What NumPy takes for memory of the host."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner  # stays alive as long as what NumPy makes of this


def array_at(
    address: int, itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any
) -> npt.NDArray[np.void]:
    """An array of what is at an address; the address alone counts until somebody looks there.

    Args:
        address: of the first element.
        itemsize: bytes of an element.
        shape, strides: elements along each axis, and bytes from one to the next.
        owner: stays alive as long as the array.
    """
    if 0 in shape:
        return np.empty(shape, f"V{itemsize}")
    interface = {
        "version": 3,
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{itemsize}",
        "data": (address, False),
    }
    return np.asarray(_Addresses(interface, owner))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    """What a capsule has since DLPack 1.0; before that, the tensor was first."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def look(owner: Any, what: str = "buffer") -> Export:
    """The array that an object exports, where it lies.

    The exporter is told to order nothing on a stream: the caller's own stream does.

    Args:
        owner: has ``__dlpack__`` and ``__dlpack_device__``.
        what: how to call it in an error.

    Raises:
        BufferError: it does not export itself; a tensor that requires a gradient, for example.
        TypeError: elements that have no bytes.
    """
    if getattr(owner, "requires_grad", False) is True:
        raise BufferError(f"{what}: a tensor that requires a gradient; pass tensor.detach()")
    try:
        capsule = _capsule(owner)
    except Exception as error:
        raise BufferError(f"{what}: {error}; copy it to the host") from None
    tensor, writable = _tensor(capsule, what)
    itemsize = tensor.bits // 8
    if tensor.lanes != 1 or not itemsize or tensor.bits % 8:
        raise TypeError(f"{what}: DLPack elements of {tensor.lanes} x {tensor.bits} bits")
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(n * itemsize for n in tensor.strides[: tensor.ndim])
    else:
        strides = strides_of(shape, itemsize)
    address = (tensor.data or 0) + tensor.byte_offset
    dtype = _dtype(tensor.code, itemsize)
    return Export(address, dtype, itemsize, shape, strides, writable, capsule)


def strides_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes from one element to the next along each axis of an array in C order."""
    return tuple(accumulate(shape[:0:-1], mul, initial=itemsize))[::-1] if shape else ()


def _capsule(owner: Any) -> Any:
    if int(owner.__dlpack_device__()[0]) == CPU:
        return _exported(owner, {})
    try:
        return _exported(owner, {"stream": -1})
    except Exception:  # JAX takes -1, by which nothing is to be ordered, for a stream's handle
        return _exported(owner, {"stream": None})


def _exported(owner: Any, stream: dict[str, Any]) -> Any:
    try:
        return owner.__dlpack__(**stream, max_version=(1, 0), copy=False)
    except TypeError:  # an exporter of before DLPack 1.0
        return owner.__dlpack__(**stream)


def _tensor(capsule: Any, what: str) -> tuple[Tensor, bool]:
    """The tensor of a capsule, and whether it may be written.

    Whatever version is asked for, an exporter may have the older one alone.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        address = _pointer(capsule, b"dltensor_versioned")
        managed = ctypes.cast(address, ctypes.POINTER(Versioned)).contents
        if managed.major != 1:
            raise BufferError(
                f"{what}: exported by DLPack {managed.major}.{managed.minor}, of which 0 and 1 are "
                "understood; copy it to the host"
            )
        return managed.tensor, not managed.flags & _READ_ONLY
    if _is_valid(capsule, b"dltensor"):
        address = _pointer(capsule, b"dltensor")
        return ctypes.cast(address, ctypes.POINTER(Tensor)).contents, True
    raise BufferError(f"{what}: __dlpack__ has not returned a capsule of DLPack that is unused")


def _dtype(code: int, itemsize: int) -> np.dtype[Any] | None:
    if code == _BFLOAT:
        return bfloat16()
    return np.dtype(f"{_KINDS[code]}{itemsize}") if code in _KINDS else None


def bfloat16() -> np.dtype[Any] | None:
    """NumPy's bfloat16, None where what makes it is not installed: then it can be moved alone."""
    try:
        import ml_dtypes  # noqa: F401
    except ModuleNotFoundError:
        return None
    return np.dtype("bfloat16")
