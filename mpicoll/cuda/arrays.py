"""What is an array in the memory of a CUDA device, and where its elements are.

Taken is what has ``__cuda_array_interface__`` (CuPy, PyTorch, Numba, JAX, ...), else what DLPack
exports from a CUDA device.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpicoll.base import dlpack
from mpicoll.cuda.driver import driver, problem
from mpicoll.errors import CudaError

if TYPE_CHECKING:
    import numpy.typing as npt

_LEGACY_STREAM = 1


class DeviceArray(NamedTuple):
    """An array in device memory.

    Attributes:
        ptr: address of the first element.
        nbytes: of all elements.
        dtype: of an element; None where NumPy has none for it, then it is only moved.
        itemsize: bytes of an element.
        shape: number of elements along each axis.
        strides: bytes from one element to the next along each axis.
        writable: whether it may be written.
        device: number of its device, as CUDA counts in this process.
        stream: handle of the stream that orders its use: the one that is current now.
        owner: the object that it is.
        export: what keeps the memory alive besides.
        ordered: whether its library uses the memory again in the order of that stream alone.
    """

    ptr: int
    nbytes: int
    dtype: np.dtype[Any] | None
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writable: bool
    device: int
    stream: int
    owner: Any
    export: Any = None
    ordered: bool = True

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one behind the other, in C or in Fortran order."""
        return bool(self.elements.flags.forc)

    @property
    def addresses(self) -> npt.NDArray[np.uint8]:
        """The addresses of the bytes, where it is contiguous; see :attr:`elements`."""
        return dlpack.array_at(self.ptr, 1, (self.nbytes,), (1,), self).view(np.uint8)

    @property
    def elements(self) -> npt.NDArray[np.void]:
        """An array of the elements' addresses, to reckon with: the host must not look at them."""
        return dlpack.array_at(self.ptr, self.itemsize, self.shape, self.strides, self)


def is_device(message: Any) -> bool:
    """Whether an argument of a call is, or begins with, an array in device memory."""
    if isinstance(message, np.ndarray):
        return False
    if isinstance(message, (list, tuple)):
        return bool(message) and is_device(message[0])
    device = getattr(message, "__dlpack_device__", None)
    if device is not None:
        kind = device()[0]
        if kind != dlpack.CUDA_MANAGED:
            return bool(kind == dlpack.CUDA)
    return hasattr(message, "__cuda_array_interface__")


def is_immutable(owner: Any) -> bool:
    """Whether an object is an array of JAX: nobody may write one, whatever it exports."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(owner, jax.Array)


def recognise(owner: Any, what: str = "buffer") -> DeviceArray | None:
    """The array that an object is in device memory; None if it is none.

    JAX's arrays are waited for: what JAX does is on streams of its own, which nobody else knows.

    Raises:
        BufferError: it is one, but masked, or not to be had.
        TypeError: elements that have no bytes.
    """
    if not is_device(owner) or isinstance(owner, (list, tuple)):
        return None
    if problem():
        raise BufferError(
            f"{what}: a {type(owner).__name__} in device memory, and there is no CUDA driver "
            f"({problem()}); copy it to the host"
        )
    found = _found(owner, what)
    if not is_immutable(owner):
        return found
    owner.block_until_ready()
    return found._replace(writable=False, ordered=False)


def _found(owner: Any, what: str) -> DeviceArray:
    try:
        interface = owner.__cuda_array_interface__
    except Exception as error:
        # There is none, or it has no name for the type (PyTorch, JAX), or none for a gradient.
        if hasattr(owner, "__dlpack__"):
            return _from_dlpack(owner, what)
        raise _untold(owner, error, what) from None
    try:
        return _from_interface(owner, interface, what)
    except (RuntimeError, KeyError, AttributeError) as error:
        raise _untold(owner, error, what) from None


def _untold(owner: Any, error: Exception, what: str) -> BufferError:
    return BufferError(
        f"{what}: a {type(owner).__name__} in device memory that does not tell where it is "
        f"({type(error).__name__}: {error}); copy it to the host"
    )


def _from_interface(owner: Any, interface: dict[str, Any], what: str) -> DeviceArray:
    """See Numba's "CUDA Array Interface (Version 3)"."""
    if interface.get("mask") is not None:
        raise BufferError(f"{what}: a masked array; pass one without a mask")
    dtype, itemsize = _dtype(owner, interface["typestr"], what)
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    strides = dlpack.strides_of(shape, itemsize) if strides is None else tuple(strides)
    device = _device(address, what)
    stream = interface.get("stream")
    stream = current_stream(owner, device) if stream is None else one_handle(stream)
    nbytes, writable = itemsize * math.prod(shape), not read_only
    return DeviceArray(
        address, nbytes, dtype, itemsize, shape, strides, writable, device, stream, owner
    )


def _from_dlpack(owner: Any, what: str) -> DeviceArray:
    device = int(owner.__dlpack_device__()[1])
    address, dtype, itemsize, shape, strides, writable, capsule = dlpack.look(owner, what)
    nbytes, stream = itemsize * math.prod(shape), current_stream(owner, device)
    return DeviceArray(
        address, nbytes, dtype, itemsize, shape, strides, writable, device, stream, owner, capsule
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
        return dlpack.bfloat16(), 2
    if dtype.hasobject or not dtype.itemsize:
        raise TypeError(f"{what}: elements of dtype {dtype} have no bytes to send")
    return dtype, dtype.itemsize


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
