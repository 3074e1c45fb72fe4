"""What is an array in the memory of a CUDA device, and where its elements are.

Taken is what has ``__cuda_array_interface__`` (CuPy, PyTorch, Numba, ...), else what DLPack exports
from a CUDA device.  The array must be contiguous, in C or in Fortran order.
"""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from mpicoll.cuda.driver import driver, problem
from mpicoll.errors import CudaError

#: DLPack's numbers of the memory of CUDA devices, and of what they share with the host.
_DLPACK_CUDA, _DLPACK_MANAGED = 2, 13
#: Its types of elements, in NumPy's letters.
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_DLPACK_BFLOAT = 4
_LEGACY_STREAM = 1


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in device memory.

    Attributes:
        ptr: address of the first element.
        nbytes: of all elements.
        dtype: of an element; None where NumPy has none for it, then it is only moved.
        itemsize: bytes of an element.
        shape: number of elements along each axis.
        order: of the axes: "C" or "F", "" where both are the same.
        writable: whether it may be written.
        device: number of its device, as CUDA counts in this process.
        stream: handle of the stream that orders its use: the one that is current now.
        owner: the object that it is.
        export: what keeps the memory alive besides.
    """

    ptr: int
    nbytes: int
    dtype: np.dtype[Any] | None
    itemsize: int
    shape: tuple[int, ...]
    order: str
    writable: bool
    device: int
    stream: int
    owner: Any
    export: Any = None

    @property
    def addresses(self) -> npt.NDArray[np.uint8]:
        """An array of the bytes' addresses, to reckon with: the host must not look at them."""
        if not self.nbytes:
            return np.empty(0, np.uint8)
        return np.asarray(_Addresses(self))


class _Addresses:
    """What NumPy takes for memory of the host."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array  # stays alive as long as what NumPy makes of this
        self.__array_interface__ = {
            "version": 3,
            "shape": (array.nbytes,),
            "typestr": "|u1",
            "data": (array.ptr, False),
        }


def is_device(message: Any) -> bool:
    """Whether an argument of a call is, or begins with, an array in device memory."""
    if isinstance(message, np.ndarray):
        return False
    if isinstance(message, (list, tuple)):
        return bool(message) and is_device(message[0])
    device = getattr(message, "__dlpack_device__", None)
    if device is not None:
        kind = device()[0]
        if kind != _DLPACK_MANAGED:
            return bool(kind == _DLPACK_CUDA)
    return hasattr(message, "__cuda_array_interface__")


def recognise(owner: Any, what: str = "buffer") -> DeviceArray | None:
    """The array that an object is in device memory; None if it is none.

    Raises:
        BufferError: it is one, but not contiguous, masked, or not to be had.
        TypeError: elements that have no bytes.
    """
    if not is_device(owner) or isinstance(owner, (list, tuple)):
        return None
    if problem():
        raise BufferError(
            f"{what}: a {type(owner).__name__} in device memory, and there is no CUDA driver "
            f"({problem()}); copy it to the host"
        )
    try:
        try:
            interface = owner.__cuda_array_interface__
        except (AttributeError, KeyError, TypeError):
            # There is none, or, of PyTorch, no name there for the type.
            return _from_dlpack(owner, what)
        return _from_interface(owner, interface, what)
    except (RuntimeError, KeyError, AttributeError) as error:
        kind = type(owner).__name__
        raise BufferError(
            f"{what}: a {kind} in device memory that does not tell where it is "
            f"({type(error).__name__}: {error}); copy it to the host"
        ) from None


def _from_interface(owner: Any, interface: dict[str, Any], what: str) -> DeviceArray:
    """See Numba's "CUDA Array Interface (Version 3)"."""
    if interface.get("mask") is not None:
        raise BufferError(f"{what}: a masked array; pass one without a mask")
    dtype, itemsize = _dtype(owner, interface["typestr"], what)
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    order = _order(shape, interface.get("strides"), itemsize, what)
    device = _device(address, what)
    stream = interface.get("stream")
    stream = current_stream(owner, device) if stream is None else one_handle(stream)
    nbytes, writable = itemsize * math.prod(shape), not read_only
    return DeviceArray(
        address, nbytes, dtype, itemsize, shape, order, writable, device, stream, owner
    )


def one_handle(stream: int) -> int:
    """The same handle for the same stream: the legacy default one has two, 0 and 1.

    CuPy and the driver call it 0, and the array interface, to which 0 says nothing, 1.
    """
    return 0 if stream == _LEGACY_STREAM else stream


def current_stream(owner: Any, device: int) -> int:
    """The handle of the stream that the owner's library uses now; 0, the default one, if unknown.

    CuPy's arrays say so themselves, by version 3 of the interface.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.Tensor):
        return one_handle(int(torch.cuda.current_stream(device).cuda_stream))
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(owner, cupy.ndarray):
        return one_handle(int(cupy.cuda.get_current_stream(device).ptr))
    return 0


def _dtype(owner: Any, typestr: str, what: str) -> tuple[np.dtype[Any] | None, int]:
    """The type of an element, and its bytes."""
    dtype = np.dtype(typestr)
    own = getattr(owner, "dtype", None)
    if isinstance(own, np.dtype):
        dtype = own  # the interface has no name for bfloat16
    elif str(own) == "torch.bfloat16":
        return _bfloat16(), 2
    if dtype.hasobject or not dtype.itemsize:
        raise TypeError(f"{what}: elements of dtype {dtype} have no bytes to send")
    return dtype, dtype.itemsize


def _bfloat16() -> np.dtype[Any] | None:
    """NumPy's bfloat16, None where what makes it is not installed: then it can be moved alone."""
    try:
        import ml_dtypes  # noqa: F401
    except ModuleNotFoundError:
        return None
    return np.dtype("bfloat16")


def _order(shape: Sequence[int], strides: Sequence[int] | None, itemsize: int, what: str) -> str:
    """The order of the axes of a contiguous array, "" where both are the same."""
    long = [axis for axis, length in enumerate(shape) if length != 1]
    if strides is None or 0 in shape:
        return "C" if len(long) > 1 and 0 not in shape else ""
    orders = []
    for name, axes in (("C", long[::-1]), ("F", long)):
        *steps, _ = accumulate((shape[axis] for axis in axes), operator.mul, initial=itemsize)
        if [strides[axis] for axis in axes] == steps:
            orders.append(name)
    if not orders:
        raise BufferError(
            f"{what}: not contiguous in device memory (shape {tuple(shape)}, strides "
            f"{tuple(strides)}); pass cupy.ascontiguousarray(array), or a copy"
        )
    return "" if len(orders) == 2 else orders[0]


def _device(address: int, what: str) -> int:
    """The device of an address; the current one where there is nothing."""
    if not address:
        return driver().current()
    try:
        device = driver().place(address)
    except CudaError as error:
        raise BufferError(f"{what}: {error}") from None
    if device is None:
        raise BufferError(
            f"{what}: address {address:#x} is in the memory of no CUDA device; has it been freed?"
        )
    return device


# ---- DLPack: https://dmlc.github.io/dlpack/latest/c_api.html ----


class _Tensor(ctypes.Structure):
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


def _from_dlpack(owner: Any, what: str) -> DeviceArray:
    device = int(owner.__dlpack_device__()[1])
    stream = current_stream(owner, device)
    # -1: the exporter shall not order anything, the caller's stream does.
    capsule = owner.__dlpack__(stream=-1)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    itemsize = tensor.bits // 8
    if tensor.lanes != 1 or not itemsize or tensor.bits % 8:
        raise TypeError(f"{what}: DLPack elements of {tensor.lanes} x {tensor.bits} bits")
    dtype: np.dtype[Any] | None
    if tensor.code == _DLPACK_BFLOAT:
        dtype = _bfloat16()
    elif tensor.code in _DLPACK_KINDS:
        dtype = np.dtype(f"{_DLPACK_KINDS[tensor.code]}{itemsize}")
    else:
        dtype = None
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = [n * itemsize for n in tensor.strides[: tensor.ndim]] if tensor.strides else None
    order = _order(shape, strides, itemsize, what)
    address = (tensor.data or 0) + tensor.byte_offset
    nbytes = itemsize * math.prod(shape)
    # The capsule, which nobody takes over, frees the export when it goes.
    return DeviceArray(
        address, nbytes, dtype, itemsize, shape, order, True, device, stream, owner, capsule
    )
