"""Arrays that the GPUs of a communicator read and write where they lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mpicoll.comm.intracomm import Intracomm
from mpicoll.cuda.arrays import recognise
from mpicoll.cuda.registered import Registered
from mpicoll.engine import progress
from mpicoll.runtime.state import State


def empty_on_device(shape: int | tuple[int, ...], dtype: npt.DTypeLike, comm: Intracomm) -> Any:
    """A registered CuPy array, which long collectives of a communicator access in place.

    Use it like any other CuPy array.  The shape may differ between ranks.  The memory is an
    allocation of its own.  It is released in the first registration on ``comm`` (this function,
    :func:`register`, a persistent operation) after all ranks have dropped their arrays, or when
    ``comm`` has been freed and the array is gone.  If the transport is not ``cuda_ipc``, or there
    are more than 256 such arrays, it is an ordinary array.

    Collective.

    Args:
        shape: of this rank's array.
        dtype: of its elements, which are not set.
        comm: an :class:`mpicoll.Intracomm`.

    Raises:
        ModuleNotFoundError: there is no CuPy.
        MemoryError: on all ranks, if one of them does not have so much memory; says how much.
        TypeError: not such a communicator.
    """
    import cupy

    state = _state(comm)
    peers = _peers(state)
    if peers is None:
        return cupy.empty(shape, dtype)
    lengths = (shape,) if isinstance(shape, int) else shape
    nbytes = math.prod(lengths) * np.dtype(dtype).itemsize
    with state.guard.hearing(), progress.meanwhile():
        address, token = peers.empty(nbytes)
    memory = cupy.cuda.UnownedMemory(address, nbytes, token, peers.device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def register(array: Any, comm: Intracomm) -> Registered:
    """Register an array, so that long collectives of a communicator access it in place.

    The array and its memory are kept until ``close()`` of the returned object has been called on
    all ranks and ``empty``, ``register`` or a persistent operation is called after that, or until
    ``comm`` is freed.  Memory that another process cannot map (CuPy's ``MemoryAsyncPool``, managed
    memory, virtual memory management) is not registered: then ``direct`` of the returned object is
    False on all ranks.

    Collective.

    Args:
        array: contiguous, with ``__cuda_array_interface__``, on the current device.
        comm: an :class:`mpicoll.Intracomm`.

    Raises:
        TypeError: no such array, or not such a communicator.
        BufferError: not contiguous.
    """
    state = _state(comm)
    peers = _peers(state)
    found = recognise(array)
    if found is None:
        raise TypeError(f"expected an array in device memory, not {type(array).__name__}")
    if not found.is_contiguous:
        raise BufferError(
            f"not contiguous in device memory (shape {found.shape}, strides {found.strides}), so "
            "it cannot be registered; register cupy.ascontiguousarray(array), or a copy"
        )
    if peers is None:
        return Registered(None, ())
    with state.guard.hearing(), progress.meanwhile():
        return peers.register([(found.ptr, found.nbytes)], array)


def _peers(state: State) -> Any:
    """What runs the collectives of a communicator between GPUs, None if nothing does."""
    return None if state.gpus is None else state.gpus.peers


def _state(comm: Any) -> State:
    """What belongs to a communicator."""
    if not isinstance(comm, Intracomm):
        kind = type(comm)
        raise TypeError(
            f"comm must be an mpicoll.Intracomm, not {kind.__module__}.{kind.__qualname__}"
        )
    return comm._connected()


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike, comm: Intracomm) -> npt.NDArray[Any]:
    """An array in shared memory, which collectives of a communicator read in place, without a copy.

    Use it like any other array, as a send or receive buffer of ``comm`` or another communicator.
    Messages from it to ranks of the same node on ``comm`` are faster.  The shape may differ between
    ranks.  The memory belongs to all ranks of the node.  It is released in the first call of
    ``empty`` on ``comm`` after all of them have dropped their arrays, or when ``comm`` has been
    freed and the arrays are gone.  If memory cannot be shared, or there are more than 64 such
    arrays, it is an ordinary array.  A forked child shares it with its parent.

    Collective; time limits do not apply to it.

    Args:
        shape: of this rank's array.
        dtype: of its elements, which are not set.
        comm: an :class:`mpicoll.Intracomm`.

    Raises:
        TypeError: not such a communicator; or a dtype of Python objects.
        ValueError: a negative shape.
    """
    state = _state(comm)
    model = np.broadcast_to(np.empty((), dtype), shape)  # checks both, and takes no memory
    if model.dtype.hasobject:
        raise TypeError(f"an array of {model.dtype} holds Python objects, which cannot be shared")
    with progress.meanwhile():
        memory = state.windows.take(model.nbytes)
    return np.ndarray(model.shape, model.dtype, memory)
