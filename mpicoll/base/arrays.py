"""Where arrays are, of training or of a sweep: NumPy's in memory, CuPy's on the current GPU.

Most of NumPy's functions take CuPy's arrays and give CuPy's; what is here is the rest.  CuPy is
imported only where that is asked for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpicoll.base import dlpack

Array = NDArray[Any]

#: Where a run can be.
DEVICES = ("cpu", "gpu")


def use(device: str, number: int = 0) -> None:
    """Let this process make arrays on a device; before its communicator is built.

    Args:
        device: One of `DEVICES`.
        number: Of the process among those of its host, which take GPUs in turn.

    Raises:
        ModuleNotFoundError: CuPy is not installed.
        RuntimeError: There is no GPU.
    """
    if device == "gpu":
        cupy = _cupy()
        cupy.cuda.Device(number % cupy.cuda.runtime.getDeviceCount()).use()


def _cupy() -> Any:
    try:
        import cupy
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "a GPU needs CuPy: pip install cupy-cuda12x or cupy-cuda13x, or give device cpu"
        ) from None
    return cupy


def room() -> tuple[str, int]:
    """The current GPU, by a name that is its own on its host, and the bytes that it has left."""
    cuda = _cupy().cuda
    return cuda.Device().pci_bus_id, int(cuda.runtime.memGetInfo()[0])


def library_of(array: Any) -> Any:
    """The module that an array is of: CuPy, else NumPy."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else np


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of a name; NumPy knows `bfloat16` only where the package ml_dtypes is installed.

    Raises:
        ModuleNotFoundError: It is `bfloat16`, and the package is missing.
    """
    if name != "bfloat16":
        return np.dtype(name)
    found = dlpack.bfloat16()
    if found is None:
        raise ModuleNotFoundError(
            "dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes, or give dtype "
            "float16 or float32"
        )
    return found


def on(device: str, array: Array) -> Array:
    """An array of the host on a device."""
    return array if device == "cpu" else _cupy().asarray(array)


def host(array: Any) -> Array:
    """An array of any device in memory; itself if it is there."""
    return array if library_of(array) is np else array.get()


def put(target: Array, values: Any) -> None:
    """Copy values into an array of the same shape, each wherever it is."""
    library = library_of(target)
    target[...] = host(values) if library is np else library.asarray(values)


class Stopwatch(NamedTuple):
    """How long things take where arrays are.

    Attributes:
        mark: Marks this moment; the mark before the last one is forgotten.
        seconds: Between two marks; waits until the second one is reached.
    """

    mark: Callable[[], Any]
    seconds: Callable[[Any, Any], float]


def stopwatch(device: str) -> Stopwatch:
    """The stopwatch of a device.

    On a GPU marks are events on the current stream.  So nobody waits for the stream between them,
    and what calls have put there is counted to its end.
    """
    if device == "cpu":
        return Stopwatch(time.perf_counter, lambda begin, end: end - begin)
    cuda = _cupy().cuda
    events = cycle((cuda.Event(), cuda.Event()))  # made before, as that takes time

    def mark() -> Any:
        event = next(events)
        event.record()
        return event

    def seconds(begin: Any, end: Any) -> float:
        end.synchronize()
        return 1e-3 * float(cuda.get_elapsed_time(begin, end))

    return Stopwatch(mark, seconds)


def hosted(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays by name, in memory."""
    return {name: host(array) for name, array in arrays.items()}
